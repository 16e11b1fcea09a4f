"""`headway verify`: check a table in every interleaving."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from headway.cli import USAGE_ERROR
from headway.spec.catalog import load_table, table_transport
from headway.spec.language import SpecError
from headway.spec.table import Local, Protocol
from headway.spec.transports import Transport, parse_transport
from headway.spec.workload import Workload
from headway.verification.explore import ENGINES, explore
from headway.verification.explore.search import Bounds
from headway.verification.export import SpinError, SpinResult, run_spin, spin_installed
from headway.verification.model import Model
from headway.verification.report import diagram, page, tell, words
from headway.verification.verdict import Verdict

SUMMARY = "check a table in every interleaving: deadlock, lost and mistaken messages, handles, bounds"
_DEFAULT_RANKS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Checked:
    """One configuration and what came of it. `disagreement` says where SPIN found something else."""

    model: Model
    workload: Workload | None
    verdict: Verdict
    seconds: float
    spin: SpinResult | None = None
    disagreement: str = ""

    @property
    def word(self) -> str:
        """The verdict in a word or two."""
        example = self.verdict.counterexample
        if example is not None:
            return example.law
        return "holds" if self.verdict.exhausted else f"not exhausted: {self.verdict.states:,} states"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add = parser.add_argument
    add("--table", default="serving", help="table name, module:function or file.py:function (default: serving)")
    add("--ranks", type=int, nargs="+", metavar="P", help="numbers of ranks (default: 1 2 3 4)")
    add("--slots", type=int, nargs="+", metavar="L", help="numbers of slots (default: P and P+1)")
    add("--set", action="append", default=[], metavar="NAME=N", help="P, L or a setting of the table")
    add(
        "--transport",
        action="append",
        default=[],
        metavar="[CHANNEL=]NAME",
        help="posted (default), rendezvous, lazy, credits(K), stream_ordered(K), dropped; for all or one channel",
    )
    add("--requests", type=int, default=2, help="requests that arrive, at any pass (default 2)")
    add("--passes", type=int, default=2, help="passes that each request needs (default 2)")
    add("--refusals", type=int, default=1, help="grants that each rank may refuse (default 1)")
    add("--no-workload", action="store_true", help="the table as it is: local steps may return anything")
    add("--gate-timeouts", action="store_true", help="closed gates may give up at any time (a fail-stop)")
    add("--engine", choices=ENGINES, default="bfs")
    add("--unreduced", action="store_true", help="expand every rank in every state")
    add("--memory", type=float, default=4.0, metavar="GIB", help="memory of one search, at most")
    add("--threads", type=int, default=0, metavar="N", help="default: one a core")
    add("--steps", type=int, default=1_000_000, help="steps of a random walk")
    add("--seed", type=int, default=0, help="of a random walk")
    add("--with-spin", action="store_true", help="compare with SPIN: verdicts, and unreduced the number of states")
    add("--report", type=Path, metavar="DIR", help="write each counterexample as JSON, diagram (SVG) and page (HTML)")
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check and print; exit status 0 when all holds, 1 for a violation, 2 for wrong usage.

    A search that its memory did not let finish is no proof: it counts as a violation for the exit status, except for
    a random walk, which never finishes.
    """
    try:
        models = list(_models(arguments))
        if arguments.memory <= 0 or arguments.threads < 0 or arguments.steps < 1:
            raise SpecError(
                f"--memory = {arguments.memory}, --threads = {arguments.threads}, --steps = {arguments.steps}; "
                "allowed: more than 0 GiB, 0 or more threads, 1 or more steps"
            )
        if arguments.with_spin and not spin_installed():
            raise SpecError("--with-spin: spin or gcc is not installed (Debian: apt-get install spin gcc)")
        checked = []
        for number, (model, workload) in enumerate(models, start=1):
            with _progress(f"[{number}/{len(models)}] {_instance(model)}", arguments.json) as report:
                checked.append(_check(model, workload, arguments, report))
    except (SpecError, SpinError) as error:
        print(f"headway verify: {error}", file=sys.stderr)
        return USAGE_ERROR
    if arguments.report is not None:
        _write_reports(arguments.report, checked)
    if arguments.json:
        print(json.dumps([_record(one) for one in checked], indent=2))
    else:
        _print(checked)
    unfinished = arguments.engine != "walk" and not all(one.verdict.exhausted for one in checked)
    violated = not all(one.verdict.holds for one in checked)
    return 1 if violated or unfinished or any(one.disagreement for one in checked) else 0


# --- what to check -----------------------------------------------------------------------------------------


def _models(arguments: argparse.Namespace) -> Iterator[tuple[Model, Workload | None]]:
    settings = dict(_setting(text) for text in arguments.set)
    fixed_ranks, fixed_slots = settings.pop("P", None), settings.pop("L", None)
    table = load_table(arguments.table, settings)
    default, by_channel = table_transport(arguments.table, settings), dict[str, Transport]()
    for text in arguments.transport:
        channel, equals, name = text.rpartition("=")
        if equals:
            by_channel[table.channel(channel).name] = parse_transport(name)
        else:
            default = parse_transport(name)
    workload = _workload(table, arguments)
    checked = workload.attach(table) if workload else table
    all_ranks = [fixed_ranks] if fixed_ranks is not None else arguments.ranks or _covered(table)
    for ranks in all_ranks:
        usual = [ranks] if fixed_ranks is not None else [ranks, ranks + 1]
        slots = [fixed_slots] if fixed_slots is not None else arguments.slots or usual
        for count in dict.fromkeys(slots):
            yield Model(checked, ranks, count, default, by_channel, arguments.gate_timeouts), workload


def _setting(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or not value.lstrip("-").isdigit():
        raise SpecError(f"--set {text}: allowed: NAME=INTEGER")
    return name, int(value)


def _covered(table: Protocol) -> list[int]:
    """The default numbers of ranks for which the table has roles."""
    covered = [
        ranks
        for ranks in _DEFAULT_RANKS
        if all(any(role.covers(rank, ranks) for role in table.roles) for rank in range(ranks))
    ]
    if not covered:
        raise SpecError(f"table {table.name!r} has no roles for {_DEFAULT_RANKS} ranks; give --ranks")
    return covered


def _workload(table: Protocol, arguments: argparse.Namespace) -> Workload | None:
    """The environment of the production table, for every table that has the rows it drives."""
    if min(arguments.requests, arguments.passes) < 1 or arguments.refusals < 0:
        raise SpecError(
            f"--requests = {arguments.requests}, --passes = {arguments.passes}, --refusals = {arguments.refusals}; "
            "allowed: 1 or more, 1 or more, 0 or more"
        )
    bindings = {r.operation.binding for role in table.roles for r in role.rows if isinstance(r.operation, Local)}
    ghosts = any(variable.ghost for role in table.roles for variable in role.variables)
    drives = {"wait_for_requests", "poll_requests", "plan", "apply_output"} <= bindings
    if arguments.no_workload or ghosts or not drives:
        return None
    return Workload(arguments.requests, arguments.passes, arguments.refusals)


def _check(
    model: Model, workload: Workload | None, arguments: argparse.Namespace, report: Callable[[int, int], None]
) -> Checked:
    bounds = Bounds(int(arguments.memory * 2**30), arguments.threads, arguments.steps, arguments.seed)
    start = time.perf_counter()
    verdict = explore(model, engine=arguments.engine, reduced=not arguments.unreduced, bounds=bounds, progress=report)
    seconds = time.perf_counter() - start
    if not arguments.with_spin:
        return Checked(model, workload, verdict, seconds)
    spin, disagreement = run_spin(model), ""
    if spin.holds != verdict.holds:
        disagreement = f"SPIN says {'holds' if spin.holds else 'violated'}"
    elif verdict.holds and arguments.unreduced and spin.states != verdict.states:
        disagreement = f"SPIN stores {spin.states:,} states"
    return Checked(model, workload, verdict, seconds, spin, disagreement)


# --- what comes out ----------------------------------------------------------------------------------------


@contextmanager
def _progress(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A line on standard error that says how far a search is."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        if not quiet:
            print(f"checking {what}", file=sys.stderr, flush=True)
        yield lambda states, depth: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what)
        yield lambda states, depth: bar.update(task, description=f"{what}: {states:,} states, depth {depth}")


def _instance(model: Model) -> str:
    return f"{model.protocol.name} P={model.ranks} L={model.slots}"


def _transports(model: Model) -> str:
    by_channel = {name: transport.name for name, transport in model.network.transports.items()}
    if len(set(by_channel.values())) == 1:
        return next(iter(by_channel.values()))
    return ", ".join(f"{channel} {name}" for channel, name in by_channel.items())


def _write_reports(folder: Path, checked: list[Checked]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for one in checked:
        if one.verdict.counterexample is not None:
            story = tell(one.model, one.verdict.counterexample)
            stem = folder / f"{one.model.protocol.name}-P{one.model.ranks}-L{one.model.slots}"
            stem.with_suffix(".json").write_text(json.dumps(story.to_json(), indent=2) + "\n")
            stem.with_suffix(".svg").write_text(diagram(story))
            stem.with_suffix(".html").write_text(page(story))
            print(f"wrote {stem}.json, .svg and .html", file=sys.stderr)


def _record(one: Checked) -> dict[str, Any]:
    verdict, workload = one.verdict, one.workload
    example = verdict.counterexample
    return {
        "table": one.model.protocol.name,
        "fingerprint": one.model.protocol.fingerprint,
        "ranks": one.model.ranks,
        "slots": one.model.slots,
        "transports": {name: transport.name for name, transport in one.model.network.transports.items()},
        "workload": None if workload is None else vars(workload),
        "states": verdict.states,
        "transitions": verdict.transitions,
        "depth": verdict.depth,
        "deadlocks": verdict.deadlocks,
        "exhausted": verdict.exhausted,
        "holds": verdict.holds,
        "verdict": one.word,
        "seconds": round(one.seconds, 3),
        "notes": list(verdict.notes),
        "spin": None if one.spin is None else vars(one.spin),
        "disagreement": one.disagreement,
        "counterexample": None if example is None else tell(one.model, example).to_json(),
    }


def _print(checked: list[Checked]) -> None:
    width = None if sys.stdout.isatty() else 160
    console = Console(width=width, highlight=False)
    first = checked[0]
    environment = (
        "no workload" if first.workload is None else " ".join(f"{k} {v}" for k, v in vars(first.workload).items())
    )
    console.print(f"table {first.model.protocol.name}, {_transports(first.model)}; {environment}")
    grid = Table("configuration", "states", "transitions", "verdict", "seconds")
    if first.spin is not None:
        grid.add_column("SPIN")
    for one in checked:
        spin = [] if one.spin is None else [one.disagreement or "agrees"]
        cells = (f"P={one.model.ranks} L={one.model.slots}", f"{one.verdict.states:,}", f"{one.verdict.transitions:,}")
        grid.add_row(*cells, one.word, f"{one.seconds:.2f}", *spin)
    console.print(grid)
    for note in dict.fromkeys(note for one in checked for note in one.verdict.notes):
        console.print(note, markup=False)
    violated = next((one for one in checked if one.verdict.counterexample is not None), None)
    if violated is not None and violated.verdict.counterexample is not None:
        console.print(f"\n{_instance(violated.model)}:", markup=False)
        for line in words(violated.model, violated.verdict.counterexample):
            console.print(line, markup=False, soft_wrap=True)
