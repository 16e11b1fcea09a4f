"""`headway laws`: the laws of the protocol, and how each is checked."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from headway.cli import USAGE_ERROR
from headway.spec.incidents import ELSEWHERE, INCIDENTS
from headway.spec.language import SpecError
from headway.spec.laws import BROKEN, LAWS, Law, law

SUMMARY = "list the laws of the protocol, and how each is checked"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("law", nargs="*", help="laws to show, such as L4 (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print; exit status 2 for an unknown law."""
    try:
        chosen = [law(_number(word)) for word in arguments.law] or list(LAWS)
    except SpecError as error:
        print(f"headway laws: {error}", file=sys.stderr)
        return USAGE_ERROR
    records = [_record(one) for one in chosen]
    if arguments.json:
        print(json.dumps(records, indent=2))
        return 0
    console = Console(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 160)
    grid = Table("law", "name", "demands", "checked by", "not checked", "incidents", show_lines=True)
    for record in records:
        ways = "\n".join(f"{way}: {what}" for way, what in record["checked"].items())
        grid.add_row(
            record["law"], record["name"], record["demands"], ways, record["unchecked"], str(len(record["incidents"]))
        )
    console.print(grid)
    return 0


def _number(word: str) -> int:
    digits = word.removeprefix("L").removeprefix("l")
    if not digits.isdecimal():
        raise SpecError(f"law {word!r}: unknown; allowed: L1 to L{len(LAWS)}")
    return int(digits)


def _record(one: Law) -> dict[str, Any]:
    return {
        "law": one.label,
        "name": one.name,
        "demands": one.demands,
        "checked": dict(one.checked),
        "unchecked": one.unchecked,
        "found as": [broken for broken, numbers in BROKEN.items() if one.number in numbers],
        "incidents": [incident.id for incident in INCIDENTS if one.number in incident.laws],
        "elsewhere": [entry.source for entry in ELSEWHERE if one.number in entry.laws],
    }
