"""Tables by name, and tables that users bring: `module:function` or `path/to/file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from headway.spec.boot import boot_table
from headway.spec.language import SpecError
from headway.spec.ring import ring_table, ring_transport
from headway.spec.serving import serving_table
from headway.spec.sglang import Traffic, fork_table, sglang_table
from headway.spec.sglang.disaggregation import disaggregated_table
from headway.spec.table import Protocol
from headway.spec.transports import POSTED, Transport

TABLES: dict[str, Callable[..., Protocol]] = {
    "serving": serving_table,
    "serving-in-step": partial(serving_table, overlap=0),
    "boot": boot_table,
    "ring": ring_table,
    "sglang": lambda: Traffic().attach(sglang_table()),
    "sglang-fork": lambda: Traffic().attach(fork_table()),
    "sglang-prefill": lambda: Traffic(stops=False).attach(disaggregated_table("prefill")),
    "sglang-decode": lambda: Traffic(stops=False).attach(disaggregated_table("decode")),
}
TRANSPORTS: dict[str, Callable[..., Transport]] = {"ring": ring_transport}


def table_transport(name: str, settings: dict[str, int] | None = None) -> Transport:
    """The contract that the table called `name` is meant for; `posted` unless it says otherwise."""
    return TRANSPORTS[name](**(settings or {})) if name in TRANSPORTS else POSTED


def load_table(name: str, settings: dict[str, int] | None = None) -> Protocol:
    """The table called `name`, or made by `module:function` or `file.py:function` with `settings` as keywords.

    Raises `SpecError` when there is none, or when what is there makes no table.
    """
    make = TABLES.get(name) or _import(name)
    try:
        table = make(**(settings or {}))
    except TypeError as error:
        raise SpecError(f"table {name!r}: {error}") from error
    if not isinstance(table, Protocol):
        raise SpecError(f"table {name!r}: made a {type(table).__name__}, not a Protocol")
    return table


def _import(name: str) -> Callable[..., Any]:
    source, colon, function = name.rpartition(":")
    if not colon or not function:
        raise SpecError(f"table {name!r}: unknown; allowed: {', '.join(TABLES)}, module:function, or file.py:function")
    try:
        if source.endswith(".py"):
            found = importlib.util.spec_from_file_location(Path(source).stem, source)
            if found is None or found.loader is None:
                raise SpecError(f"table {name!r}: {source} is no Python file")
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
    except (ImportError, OSError, SyntaxError) as error:
        raise SpecError(f"table {name!r}: {error}") from error
    if not hasattr(module, function):
        raise SpecError(f"table {name!r}: {source} has no {function!r}")
    made: Callable[..., Any] = getattr(module, function)
    return made
