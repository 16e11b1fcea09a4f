"""`headway table`: print a table as text."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from headway.cli import USAGE_ERROR
from headway.spec.catalog import load_table
from headway.spec.language import SpecError, show
from headway.spec.table import Await, Collective, Fields, Gate, Local, Operation, Post, Probe, Receive, Role

SUMMARY = "print a protocol table: location, guard, operation, effect, next"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("role", nargs="?", help="the role to print (default: all)")
    parser.add_argument("--table", default="serving", help="table name, module:function or file.py:function")
    parser.add_argument("--compiled", metavar="RANK/P", help="print the Python that a rank runs, such as 0/3")


def run(arguments: argparse.Namespace) -> int:
    """Print; exit status 2 for an unknown table or role."""
    try:
        table = load_table(arguments.table)
        if arguments.compiled:
            rank, ranks = (int(part) for part in arguments.compiled.split("/"))
            from headway.engine.loop.compile import compile_program

            print(compile_program(table, rank, ranks, ranks).source, end="")
            return 0
        roles = [table.role(arguments.role)] if arguments.role else list(table.roles)
    except (SpecError, ValueError) as error:
        print(f"headway table: {error}", file=sys.stderr)
        return USAGE_ERROR
    console = Console(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 200)
    console.print(f"table {table.name}, fingerprint {table.fingerprint[:12]}", highlight=False)
    for role in roles:
        console.print(_rows(role))
    return 0


def _rows(role: Role) -> Table:
    grid = Table("location", "guard", "operation", "effect", "next", title=f"role {role.name}", title_justify="left")
    for row in role.rows:
        effects = _assignments(row.effects) + ("; next pass" if row.advances else "")
        grid.add_row(row.at, show(row.guard), operation_text(row.operation), effects.removeprefix("; "), row.to)
    return grid


def _assignments(fields: Fields, sign: str = ":=") -> str:
    return ", ".join(f"{name} {sign} {show(expr)}" for name, expr in fields)


def operation_text(operation: Operation) -> str:
    """An operation in one line."""
    if isinstance(operation, Receive):
        expect = f" expecting {_assignments(operation.expect, '=')}" if operation.expect else ""
        return f"receive {operation.channel}{expect}"
    if isinstance(operation, Post):
        return f"post {operation.channel}({_assignments(operation.fields, '=')})"
    if isinstance(operation, Await):
        return f"await {operation.channel}"
    if isinstance(operation, Gate):
        return f"gate {operation.channel}"
    if isinstance(operation, Local):
        reads = ", ".join(show(read) if not isinstance(read, str) else read for read in operation.reads)
        gives = ", ".join([*operation.writes, *(name for name, _ in operation.returns)])
        return f"{operation.binding}({reads})" + (f" -> {gives}" if gives else "")
    if isinstance(operation, Probe):
        return f"probe {operation.channel} -> ready"
    if isinstance(operation, Collective):
        return f"collective {operation.name}"
    return "-"
