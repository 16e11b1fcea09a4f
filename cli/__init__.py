"""The command line: one module a command, each with `SUMMARY`, `configure(parser)` and `run(arguments) -> int`."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence

USAGE_ERROR = 2


def command_names() -> list[str]:
    """The commands there are: the modules of this folder, with dashes."""
    return [m.name.replace("_", "-") for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit with its status: 0 for success, 1 for a violation or failure, 2 for wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="headway", description="Pipeline-parallel LLM serving under a verified table."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    names = command_names()
    # Only the command that is asked for is imported: `headway table` must not load torch.
    for name in [words[0]] if words and words[0] in names else names:
        module = importlib.import_module(f"headway.cli.{name.replace('-', '_')}")
        command = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        module.configure(command)
        command.set_defaults(run=module.run)
    arguments = parser.parse_args(words)
    sys.exit(arguments.run(arguments))
