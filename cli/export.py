"""`headway export`: the same table for a checker that somebody else wrote."""

from __future__ import annotations

import argparse
import sys

from headway.cli import USAGE_ERROR
from headway.spec.catalog import load_table
from headway.spec.language import SpecError
from headway.spec.transports import parse_transport
from headway.spec.workload import Workload

SUMMARY = "write a table under a transport as a Promela model, for SPIN"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("format", choices=("promela",))
    parser.add_argument("--table", default="serving", help="table name, module:function or file.py:function")
    parser.add_argument("--ranks", type=int, default=2, metavar="P")
    parser.add_argument("--slots", type=int, metavar="L", help="default P")
    parser.add_argument("--transport", default="posted")
    parser.add_argument("--requests", type=int, default=2)
    parser.add_argument("--passes", type=int, default=2, help="passes that each request needs")
    parser.add_argument("--refusals", type=int, default=0, help="grants that each rank may refuse")


def run(arguments: argparse.Namespace) -> int:
    """Print the model; exit status 2 when there is no such table, or no translation."""
    from headway.verification.export import promela
    from headway.verification.model import Model

    try:
        table = load_table(arguments.table)
        if arguments.table == "serving":
            table = Workload(arguments.requests, arguments.passes, arguments.refusals).attach(table)
        slots = arguments.ranks if arguments.slots is None else arguments.slots
        model = Model(table, arguments.ranks, slots, transport=parse_transport(arguments.transport))
        print(promela(model), end="")
    except SpecError as error:
        print(f"headway export: {error}", file=sys.stderr)
        return USAGE_ERROR
    return 0
