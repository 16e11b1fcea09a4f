"""`headway replay`: take ranks through an interleaving that a search found, and see where they end up."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli import USAGE_ERROR
from headway.spec.language import SpecError

if TYPE_CHECKING:
    from headway.engine.replay import Script
    from headway.spec.table import Protocol
    from headway.spec.transports import Transport
    from headway.verification.model import Model

SUMMARY = "replay a counterexample with real processes over gloo, and over simulated wires"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("counterexample", nargs="?", type=Path, metavar="FILE", help="a counterexample in JSON")
    what.add_argument("--incident", metavar="ID", help="search this incident, and replay what is found")
    parser.add_argument(
        "--on", choices=("simulator", "gloo", "both"), default="both", help="which ranks (default: both)"
    )
    parser.add_argument("--table", help="the table, when it is no incident: name, module:function or file.py:function")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the counterexample there, in JSON")


def run(arguments: argparse.Namespace) -> int:
    """Replay; exit status 1 when the ranks do not end up where the search says, 2 for wrong usage."""
    from headway.engine.replay import ReplayError, replay_simulated

    try:
        model, script, story = _read(arguments) if arguments.counterexample else _search(arguments.incident)
        if arguments.save is not None:
            arguments.save.write_text(json.dumps(story, indent=2) + "\n")
    except (SpecError, ValueError, OSError, KeyError, TypeError) as error:
        print(f"headway replay: {error}", file=sys.stderr)
        return USAGE_ERROR
    table, transports = model.protocol, model.network.transports
    print(f"{table.name}: {script.law}, after {len(script.steps)} steps; found by search: {_rows(script.rows)}")
    same = True
    try:
        if arguments.on != "gloo":
            same &= _compare("simulator", replay_simulated(table, script, transports), script)
        if arguments.on != "simulator":
            same &= _processes(table, script, transports)
    except (ReplayError, SpecError) as error:
        print(f"headway replay: {error}", file=sys.stderr)
        return 1
    return 0 if same else 1


def _rows(rows: list[str]) -> str:
    return ", ".join(f"rank {rank} at {row!r}" for rank, row in enumerate(rows))


def _compare(where: str, rows: list[str], script: Script) -> bool:
    same = rows == script.rows
    print(f"{where}: {_rows(rows)}: {'the same rows' if same else 'NOT the same rows'}")
    return same


def _processes(table: Protocol, script: Script, transports: Mapping[str, Transport]) -> bool:
    from headway.engine.replay import HeldProcesses
    from headway.engine.watchdog import diagnose, positions

    with (
        tempfile.TemporaryDirectory(prefix="headway-replay-") as folder,
        HeldProcesses(table, script, transports, Path(folder)) as processes,
    ):
        same = _compare("gloo", processes.play(), script)
        where = positions(processes.table, processes.readers(), time.monotonic_ns())
        stall = diagnose(where, {"wire": 0.1})
        if stall is not None:
            print(f"watchdog: {stall.words()}")
        return same


def _search(incident_id: str) -> tuple[Model, Script, dict[str, Any]]:
    from headway.spec.incidents import find_incident
    from headway.verification.explore import explore
    from headway.verification.model import Model
    from headway.verification.report import tell

    incident = find_incident(incident_id)
    model = Model(incident.table(), incident.ranks, incident.slot_count, incident.transport, dict(incident.transports))
    example = explore(model).counterexample
    if example is None:
        raise SpecError(f"incident {incident_id!r}: no counterexample; nothing to replay")
    story = tell(model, example).to_json()
    return model, _script(model, story), story


def _read(arguments: argparse.Namespace) -> tuple[Model, Script, dict[str, Any]]:
    from headway.spec.catalog import load_table
    from headway.spec.incidents import INCIDENTS
    from headway.spec.transports import parse_transport
    from headway.verification.model import Model

    story = json.loads(arguments.counterexample.read_text())
    incident = next((one for one in INCIDENTS if one.id == story["table"]), None)
    table = load_table(arguments.table) if arguments.table else incident.table() if incident else None
    if table is None:
        raise SpecError(f"{arguments.counterexample}: table {story['table']!r} is no incident; name it by --table")
    if table.fingerprint != story["fingerprint"]:
        raise SpecError(
            f"{arguments.counterexample}: found under table {story['fingerprint'][:12]}; "
            f"{table.name!r} is {table.fingerprint[:12]} now"
        )
    transports = {name: parse_transport(text) for name, text in story["transports"].items()}
    model = Model(table, story["ranks"], story["slots"], transports=transports)
    return model, _script(model, story), story


def _script(model: Model, story: dict[str, Any]) -> Script:
    import msgspec

    from headway.engine.replay import Script, ScriptStep
    from headway.verification.report.script import scripted
    from headway.verification.states import Step

    steps = scripted(model, [Step(**step) for step in story["steps"]])
    rows = [position["row"] for position in msgspec.to_builtins(story["positions"])]
    return Script(model.ranks, model.slots, msgspec.convert(steps, list[ScriptStep]), rows, story["law"])
