"""`headway inspect`: where the ranks of a pipeline stand or stood, and why it does not go on, by their traces."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from headway.cli import USAGE_ERROR
from headway.spec.catalog import load_table
from headway.spec.language import SpecError
from headway.spec.trace import RingReader, TraceError, trace_path

SUMMARY = "show where the ranks of a pipeline stand, or stood when they ended, from their traces"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("directory", type=Path, help="where the ranks' traces lie (rank0.trace, rank1.trace, ...)")
    parser.add_argument("--table", default="serving", help="table name, module:function or file.py:function")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of words")
    parser.add_argument("--rows", type=int, default=30, metavar="N", help="last rows to draw (default 30; 0: none)")


def run(arguments: argparse.Namespace) -> int:
    """Print; exit status 2 when the traces cannot be read."""
    import msgspec

    from headway.engine.simulation.diagram import space_time
    from headway.engine.watchdog import explain, positions

    try:
        table = load_table(arguments.table)
        readers = _readers(table.fingerprint, arguments.directory)
    except (SpecError, TraceError) as error:
        print(f"headway inspect: {error}", file=sys.stderr)
        return USAGE_ERROR
    gone = [rank for rank, reader in enumerate(readers) if not _alive(reader.header.pid)]
    # Of processes that are gone, say how long a rank had stood when the last of them wrote its last row.
    latest = max((record.time_ns for reader in readers if (record := reader.last()) is not None), default=0)
    where = positions(table, readers, latest if len(gone) == len(readers) else time.monotonic_ns())
    if not where:
        print("no rank has begun its first row")
        return 0
    stall = explain(where)
    if arguments.json:
        plain = {"ranks": [{**msgspec.to_builtins(p), "words": p.words()} for p in where], "gone": gone}
        print(json.dumps({**plain, "cycle": stall.cycle, "blamed": stall.blamed, "missing": stall.missing}))
        return 0
    for place in where:
        print(place.words() + ("; its process is gone" if place.rank in gone else ""))
    print(_summary(stall.cycle, stall.blamed, stall.missing))
    if arguments.rows > 0:
        print(f"\n{space_time(table, readers, arguments.rows)}")
    return 0


def _readers(fingerprint: str, directory: Path) -> list[RingReader]:
    first = RingReader(trace_path(directory, 0))
    readers = [first, *(RingReader(trace_path(directory, rank)) for rank in range(1, first.header.ranks))]
    for reader in readers:
        if reader.header.fingerprint != fingerprint:
            raise TraceError(f"{reader.path}: written under table {reader.header.fingerprint[:12]}")
    return readers


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _summary(cycle: list[int], blamed: int, missing: str) -> str:
    if cycle:
        return "they wait for one another: " + " -> ".join(f"rank {rank}" for rank in [*cycle, cycle[0]])
    return f"it is the turn of rank {blamed}" + (f" to {missing}" if missing else "")
