"""`headway incidents`: run the incident corpus, and compare each verdict with the one it must get."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.cli import USAGE_ERROR
from headway.spec.incidents import ELSEWHERE, INCIDENTS, find_incident
from headway.spec.language import SpecError
from headway.verification.corpus import Found, run_incident
from headway.verification.explore.search import Bounds

SUMMARY = "run the incident corpus: each reported failure must get the verdict that its source gives"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("incident", nargs="*", metavar="ID", help="incidents to run (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--elsewhere", action="store_true", help="list the incidents that are no matter of a table")
    parser.add_argument("--memory", type=float, default=4.0, metavar="GIB", help="memory of one search, at most (GiB)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="threads (default: one a core)")


def run(arguments: argparse.Namespace) -> int:
    """Run and print; exit status 1 when a verdict differs, 2 for an unknown id."""
    if arguments.elsewhere:
        return _print_elsewhere(arguments.json)
    try:
        chosen = [find_incident(name) for name in arguments.incident] or list(INCIDENTS)
    except SpecError as error:
        print(f"headway incidents: {error}", file=sys.stderr)
        return USAGE_ERROR
    if arguments.memory <= 0 or arguments.threads < 0:
        what = f"--memory = {arguments.memory}, --threads = {arguments.threads}"
        print(f"headway incidents: {what}; allowed: more than 0 GiB, 0 or more threads", file=sys.stderr)
        return USAGE_ERROR
    bounds = Bounds(memory=int(arguments.memory * 2**30), threads=arguments.threads)
    found = []
    bar = Progress(console=Console(stderr=True), transient=True) if sys.stderr.isatty() else None
    with bar or nullcontext():
        task = bar.add_task("incidents", total=len(chosen)) if bar else None
        for incident in chosen:
            if bar is not None and task is not None:
                bar.update(task, description=incident.id)
            found.append(run_incident(incident, bounds=bounds))
            if bar is not None and task is not None:
                bar.advance(task)
    if arguments.json:
        print(json.dumps([_record(one) for one in found], indent=2))
    else:
        _print(found)
    return 0 if all(one.agrees for one in found) else 1


def _record(one: Found) -> dict[str, Any]:
    incident, example = one.incident, one.counterexample
    return {
        "id": incident.id,
        "title": incident.title,
        "laws": [f"L{number}" for number in incident.laws],
        "expected": incident.expected.describe(),
        "found": one.words,
        "agrees": one.agrees,
        "disagreement": one.disagreement,
        "states": one.states,
        "seconds": round(one.seconds, 3),
        "base": incident.base,
        "edits": [change.text for change in incident.edits],
        "ranks": incident.ranks,
        "slots": incident.slot_count,
        "transports": {name: transport.name for name, transport in incident.transports},
        "steps": len(example.steps) if example else 0,
        "cycle": [w.rank for w in example.cycle] if example else [],
        "source": incident.source,
        "note": incident.note,
    }


def _print(found: list[Found]) -> None:
    console = Console(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 200)
    grid = Table("id", "title", "law", "expected", "found", "states", "seconds")
    for one in found:
        incident = one.incident
        grid.add_row(
            incident.id,
            incident.title,
            ", ".join(f"L{number}" for number in incident.laws),
            incident.expected.describe(),
            one.words if one.agrees else f"[bold red]{one.words}[/]",
            f"{one.states:,}",
            f"{one.seconds:.2f}",
        )
    console.print(grid)
    wrong = [one for one in found if not one.agrees]
    for one in wrong:
        console.print(f"[bold red]{one.incident.id}[/]: {one.disagreement}", highlight=False)
    total = sum(one.seconds for one in found)
    console.print(f"{len(found)} incidents, {len(wrong)} disagreements, {total:.1f} s", highlight=False)


def _print_elsewhere(as_json: bool) -> int:
    if as_json:
        print(json.dumps([vars(entry) for entry in ELSEWHERE], indent=2))
        return 0
    grid = Table("source", "title", "law", "why no table expresses it", "who looks")
    for entry in ELSEWHERE:
        laws = ", ".join(f"L{number}" for number in entry.laws)
        grid.add_row(entry.source, entry.title, laws, entry.reason, entry.where)
    Console(soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 160).print(grid)
    return 0
