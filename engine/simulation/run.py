"""Runs one schedule and judges it: whoever asked got exactly the right tokens, and everything ended clean."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from headway.engine.messages import Abort, Decision, Generated, Intake, Report, Stop, Submit
from headway.engine.simulation.hub import Hub
from headway.engine.simulation.model import expected_tokens
from headway.engine.simulation.pipeline import EndlessError, Simulation
from headway.engine.simulation.schedule import ROW_TIME, Client, Schedule, simpler
from headway.engine.watchdog import Position, positions
from headway.spec.serving import passes_ahead, serving_table
from headway.spec.table import Protocol
from headway.spec.transports import parse_transport

_MOST_TIME = 60 * 10**9  # of virtual time: beyond it, or beyond as many rows of a rank, a run is called endless
_MOST_ROWS = 50_000


@dataclass(frozen=True)
class Outcome:
    """What came of a run. `law` is empty when nothing was wrong; `stopped` says why the group stopped early, if so."""

    schedule: Schedule
    law: str
    finding: str
    stopped: str
    passes: int
    rows: int
    time: int
    positions: list[Position]
    diagram: str


@dataclass
class Answer:
    """What a client has got so far."""

    client: Client
    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    error: str = ""


@lru_cache(maxsize=1)
def production() -> Protocol:
    """The production table."""
    return serving_table()


class Judge:
    """Watches the reports of a run."""

    def __init__(self, schedule: Schedule, abort: Callable[[int, int], None]) -> None:
        self._stages, self._abort = schedule.ranks, abort
        self._lossy = bool(schedule.refusals or schedule.pages_by_rank)
        self.answers = {client.submit.request: Answer(client) for client in schedule.clients}
        self.finding = ""

    def see(self, time: int, report: Report) -> None:
        """Take a report."""
        if not isinstance(report, Generated):
            return
        answer = self.answers[report.request]
        if answer.finish:
            self.finding = self.finding or f"request {report.request} was reported on after its end"
        answer.tokens += report.tokens
        answer.finish, answer.error = report.finish, report.error
        patience = answer.client.patience
        if 0 <= patience < len(answer.tokens):
            self.finding = self.finding or f"request {report.request} went on after its client had left"
        if patience == len(answer.tokens) and not answer.finish:
            self._abort(time, report.request)

    def tokens(self) -> str:
        """What is wrong with the tokens that went out, empty if nothing is."""
        if self.finding:
            return self.finding
        for request, answer in self.answers.items():
            wanted, finish = expected_tokens(answer.client.submit, self._stages)
            if answer.tokens != wanted[: len(answer.tokens)]:
                return f"request {request} got the tokens {answer.tokens}, expected {wanted}"
            if answer.finish in ("stop", "length") and (answer.tokens, answer.finish) != (wanted, finish):
                return (
                    f"request {request} ended by {answer.finish!r} after {len(answer.tokens)} of {len(wanted)} tokens"
                )
        return ""

    def ends(self, untaken: list[Intake]) -> str:
        """Whose request did not end as it should have, empty if all did; none of `untaken` is owed an answer."""
        late = {message.request for message in untaken if isinstance(message, Submit)}
        for request, answer in self.answers.items():
            if request in late:
                continue
            may_abort = answer.client.leaves >= 0 or answer.client.patience >= 0
            if not answer.finish:
                return f"request {request} never ended"
            if answer.finish == "abort" and not may_abort:
                return f"request {request} was aborted, though nobody asked for it"
            if answer.finish == "error" and answer.error.startswith("refused") and not self._lossy:
                return f"request {request} ended with an error: {answer.error}"
        return ""


def run_schedule(
    schedule: Schedule,
    table: Protocol | None = None,
    directory: Path | None = None,
    check_traces: Callable[[Path], str] | None = None,
    watch: Callable[[Simulation], str] | None = None,
    watch_every: int = 0,
    most_time: int = _MOST_TIME,
    **replaced: Any,
) -> Outcome:
    """One run under `table` (production's when None), traced into `directory` (a temporary one when None).

    `check_traces` may find fault with the traces at the end, `watch` with the running pipeline every `watch_every`
    nanoseconds, also when nothing happens any more; beyond `most_time` nanoseconds a run is called endless. `replaced`
    goes to `Simulation`.
    """
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="headway-simulation-", dir=_memory()) as temporary:
            folder = Path(temporary)
            return run_schedule(schedule, table, folder, check_traces, watch, watch_every, most_time, **replaced)
    return _run(schedule, table or production(), directory, check_traces, watch, watch_every, most_time, replaced)


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _run(
    schedule: Schedule,
    table: Protocol,
    directory: Path,
    check_traces: Callable[[Path], str] | None,
    watch: Callable[[Simulation], str] | None,
    watch_every: int,
    most_time: int,
    replaced: dict[str, Any],
) -> Outcome:
    simulation, judge = build(schedule, table, directory, replaced)
    hub = simulation.hub
    law = finding = stopped = ""
    try:
        simulation.start()
        if schedule.kill is not None:
            hub.run(until=schedule.kill.at)
            if not hub.ended and not hub.failed:
                hub.kill(schedule.kill.rank)
                stopped = f"rank {schedule.kill.rank} was killed"
        while not stopped:
            pause = min(hub.now + (watch_every or most_time), most_time)
            hub.run(until=pause)
            if hub.failed or hub.ended or hub.now >= most_time or (hub.quiet and watch is None):
                break
            hub.now = pause if watch is not None else hub.now
            if watch is not None and (finding := watch(simulation)):
                law = "watchdog"
                break
        if not law:
            law, finding, stopped = _judge(schedule, simulation, judge, stopped)
        if not law and check_traces is not None and (finding := check_traces(directory)):
            law = "conformance"
        readers = simulation.readers()
        now = max(hub.now, *(fiber.clock for fiber in hub.fibers))
        where = positions(table, readers, now)
        rows = sum(reader.written for reader in readers)
        from headway.engine.simulation.diagram import space_time

        diagram = space_time(table, readers) if law else ""
        passes = max((position.this_pass for position in where), default=0) + 1
        return Outcome(schedule, law, finding, stopped, passes, rows, hub.now, where, diagram)
    finally:
        simulation.close()


def build(
    schedule: Schedule, table: Protocol, directory: Path, replaced: dict[str, Any], timed: bool = True
) -> tuple[Simulation, Judge]:
    """The pipeline of a schedule, its clients at the desk, and the judge of what they get."""
    random = [Random(f"{schedule.seed} rank {rank}") for rank in range(schedule.ranks)]
    late = [Random(f"{schedule.seed} wires {rank}") for rank in range(schedule.ranks)]
    pauses = {(pause.rank, pause.step): pause.duration for pause in schedule.pauses}
    speeds = schedule.speeds or [100] * schedule.ranks
    jitter = schedule.jitter

    def delay(rank: int, step: int) -> int:
        return pauses.get((rank, step), 0) + (random[rank].randrange(jitter) if jitter else 0)

    def latency(channel: str, source: int, ordinal: int, encoded: Any) -> int:
        return schedule.latency + (late[source].randrange(jitter) if jitter else 0)

    def spend(rank: int, tokens: int, samples: int) -> int:
        return schedule.token_time * tokens * speeds[rank] // 100

    contracts = {"control": parse_transport(schedule.control), "tensor": parse_transport(schedule.tensor)}
    judge = Judge(schedule, lambda time, request: simulation.desk.send(time, Abort(request)))
    simulation = Simulation(
        table,
        schedule.ranks,
        replace(schedule.limits, ahead=passes_ahead(table, schedule.ranks, schedule.limits.slots)),
        directory,
        {channel.name: contracts[channel.kind] for channel in table.channels},
        hub=Hub(schedule.ranks, timed, delay),
        pages_by_rank=schedule.pages_by_rank,
        spend=spend,
        latency=latency,
        refuse=lambda rank: refusals([ordinal for r, ordinal in schedule.refusals if r == rank]),
        on_report=judge.see,
        row_time=ROW_TIME,
        gate_bound=schedule.gate_bound,
        most_rows=_MOST_ROWS,
        **replaced,
    )
    for client in schedule.clients:
        simulation.desk.send(client.at, client.submit)
        if client.leaves >= 0:
            simulation.desk.send(client.leaves, Abort(client.submit.request))
    simulation.desk.send(schedule.stop_at, Stop())
    return simulation, judge


def refusals(ordinals: list[int]) -> Callable[[Decision], str] | None:
    """Refuse the launched decisions with these ordinals, counted from 0."""
    if not ordinals:
        return None
    count = -1

    def refuse(_: Decision) -> str:
        nonlocal count
        count += 1
        return "a refusal by chance" if count in ordinals else ""

    return refuse


def _judge(schedule: Schedule, simulation: Simulation, judge: Judge, stopped: str) -> tuple[str, str, str]:
    """The broken law and what was found, or two empty texts; and why the group stopped early, if it did."""
    hub = simulation.hub
    wrong = judge.tokens()
    if wrong:
        return "tokens", wrong, stopped
    for fiber in hub.fibers:
        if fiber.error is not None:
            reason = f"rank {fiber.rank} stopped: {type(fiber.error).__name__}: {fiber.error}"
            if schedule.gate_bound < 0.1 and "has not sent" in reason:
                return "", "", reason
            return "progress" if isinstance(fiber.error, EndlessError) else "exception", reason, reason
    if stopped:
        return "", "", stopped
    if not hub.ended:
        if not hub.quiet:
            return "progress", f"not at its end after {hub.now // 10**9} s of virtual time", ""
        stuck = [fiber.rank for fiber in hub.fibers if not fiber.ended]
        return "deadlock", f"ranks {stuck} cannot go on", ""
    unended = judge.ends(simulation.desk.untaken)
    if unended:
        return "requests", unended, ""
    left = simulation.network.leftovers()
    if left:
        return "matched traffic", f"never received: {'; '.join(left)}", ""
    if simulation.scheduler.pool.free != schedule.limits.pages:
        free = simulation.scheduler.pool.free
        return "pages", f"{free} of {schedule.limits.pages} pages are free at the end", ""
    kept = [rank for rank, books in enumerate(simulation.books) if books.entries]
    return (
        ("books", f"rank {kept[0]} still has {list(simulation.books[kept[0]].entries)}", "") if kept else ("", "", "")
    )


def shrink(outcome: Outcome, again: Callable[[Schedule], Outcome], attempts: int = 300) -> tuple[Outcome, int]:
    """The smallest schedule found that breaks the same law, and how many runs it took."""
    tried = 0
    improved = True
    while improved and tried < attempts:
        improved = False
        for candidate in simpler(outcome.schedule):
            tried += 1
            other = again(candidate)
            if other.law == outcome.law:
                outcome, improved = other, True
                break
            if tried >= attempts:
                break
    return outcome, tried
