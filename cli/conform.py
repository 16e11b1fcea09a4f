"""`headway conform`: replay the traces of a pipeline against its table."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from headway.cli import USAGE_ERROR
from headway.spec.catalog import load_table
from headway.spec.language import SpecError
from headway.spec.trace import TraceError

SUMMARY = "replay the traces of a pipeline against its table"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("directory", type=Path, help="where the ranks' traces lie (rank0.trace, rank1.trace, ...)")
    parser.add_argument("--table", default="serving", help="table name, module:function or file.py:function")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of words")


def run(arguments: argparse.Namespace) -> int:
    """Replay; exit status 1 when a trace diverges, 2 when the traces cannot be read."""
    from headway.verification.conform import conform

    started = time.perf_counter()
    try:
        report = conform(load_table(arguments.table), arguments.directory)
    except (SpecError, TraceError) as error:
        print(f"headway conform: {error}", file=sys.stderr)
        return USAGE_ERROR
    if arguments.json:
        plain = {"holds": report.holds, "rows": report.rows, "ranks": report.ranks, "wrapped": list(report.wrapped)}
        print(json.dumps({**plain, "divergences": [divergence.plain() for divergence in report.divergences]}))
    else:
        print(f"{report.words()} ({time.perf_counter() - started:.2f} s)")
        for other in report.divergences[1:]:
            print(f"also: {other.words()}")
    return 0 if report.holds else 1
