"""`headway coverage`: which rows of the table, and which outcomes, the traces of some runs executed."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from headway.cli import USAGE_ERROR
from headway.spec.catalog import load_table
from headway.spec.language import SpecError
from headway.spec.trace import TraceError

SUMMARY = "report which rows and outcomes of the table the traces of some runs executed"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="traces of a run, or a folder of such")
    parser.add_argument("--table", default="serving", help="table name, module:function or file.py:function")
    parser.add_argument("--counts", action="store_true", help="print every item with how often it was executed")


def run(arguments: argparse.Namespace) -> int:
    """Report; exit status 1 when something is neither executed nor known to be impossible, 2 for unreadable traces."""
    from headway.verification.conform import read_traces
    from headway.verification.conform.coverage import Item, covered, items
    from headway.verification.conform.uncovered import reason_not_executed

    runs = [d.parent for root in arguments.directories for d in sorted(root.rglob("rank0.trace"))]
    counts: Counter[Item] = Counter()
    try:
        protocol = load_table(arguments.table)
        if not runs:
            raise TraceError(f"no rank0.trace in {', '.join(map(str, arguments.directories))}")
        for directory in runs:
            counts += covered(protocol, read_traces(protocol, directory))
    except (SpecError, TraceError) as error:
        print(f"headway coverage: {error}", file=sys.stderr)
        return USAGE_ERROR
    everything = items(protocol)
    if arguments.counts:
        for item in everything:
            print(f"{counts[item]:>10}  {item.words()}")
    missing = [item for item in everything if not counts[item]]
    unexplained = [item for item in missing if not reason_not_executed(protocol, item)]
    for item in missing:
        print(f"not executed: {item.words()}: {reason_not_executed(protocol, item) or 'NO REASON KNOWN'}")
    done, total = len(everything) - len(missing), len(everything)
    print(f"{done} of {total} rows and outcomes executed in {len(runs)} run(s); {len(unexplained)} without a reason")
    return 1 if unexplained else 0
