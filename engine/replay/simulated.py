"""Ranks of any table over simulated wires, driven row by row, without time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headway.engine.loop import Endpoints, compile_program, run
from headway.engine.replay.script import ReplayError, Script, executable, scripted_bindings
from headway.engine.simulation.hub import Hub
from headway.engine.simulation.model import ValuesCodec
from headway.engine.wires.simulated import SimulatedNetwork
from headway.spec.language import Value
from headway.spec.table import Local, Protocol
from headway.spec.transports import Transport


class SteppedRecorder:
    """Keeps the row that a rank is in, and lets it park at rows that touch no wire."""

    def __init__(self, hub: Hub, rank: int, local: list[bool]) -> None:
        self._hub, self._rank, self._local = hub, rank, local
        self.row, self.this_pass = 0, 0

    def enter(self, row: int, this_pass: int, *fields: int) -> None:
        """A row begins."""
        self.row, self.this_pass = row, this_pass
        if self._local[row]:
            self._hub.wait_until(self._rank, "local", "", lambda: True, None)

    def done(self, *fields: int) -> None:
        """Its operation obtained something."""


class SteppedRanks:
    """All ranks of `protocol` in one process; `step` lets one of them perform the row that it stands at."""

    def __init__(self, protocol: Protocol, ranks: int, slots: int, transports: Mapping[str, Transport]) -> None:
        table = executable(protocol, transports)
        self.hub = Hub(ranks, timed=False)
        codecs = {channel.name: ValuesCodec() for channel in table.channels}
        self.network = SimulatedNetwork(table, ranks, self.hub, transports, codecs)
        self._outcomes: list[Mapping[str, Value]] = [{} for _ in range(ranks)]
        self._roles = [table.role_of(rank, ranks) for rank in range(ranks)]
        self._recorders: list[SteppedRecorder] = []
        mains: list[Callable[[], None]] = []
        for rank, role in enumerate(self._roles):
            program = compile_program(table, rank, ranks, slots, faulty=True)
            local = [row.operation is None or isinstance(row.operation, Local) for row in role.rows]
            recorder = SteppedRecorder(self.hub, rank, local)
            self._recorders.append(recorder)
            bound = scripted_bindings(role, partial(self._standing, rank), partial(self._outcome, rank))
            outgoing: dict[str, Any] = self.network.outgoing_ends(rank)
            forget = {name: end.forget for name, end in outgoing.items()}
            wires = Endpoints(outgoing, self.network.incoming_ends(rank), forget=forget)
            mains.append(partial(run, program, bound, wires, recorder))
        self.hub.start(mains)

    def _standing(self, rank: int) -> int:
        return self._recorders[rank].row

    def _outcome(self, rank: int) -> Mapping[str, Value]:
        return self._outcomes[rank]

    def row(self, rank: int) -> str:
        """The row that a rank stands at, or "end"."""
        fiber = self.hub.fibers[rank]
        return "end" if fiber.ended and fiber.error is None else self._roles[rank].rows[self._standing(rank)].name

    def enabled(self, rank: int) -> bool:
        """Whether a rank can perform its row now."""
        return self.hub.enabled(rank)

    def step(self, rank: int, outcome: Mapping[str, Value]) -> BaseException | None:
        """Perform one row; the error that ended the rank, if it did."""
        self._outcomes[rank] = outcome
        self.hub.step(rank)
        return self.hub.fibers[rank].error

    def close(self) -> None:
        """End all ranks."""
        for rank in range(len(self._roles)):
            self.hub.kill(rank)


def replay_simulated(protocol: Protocol, script: Script, transports: Mapping[str, Transport]) -> list[str]:
    """Go the way of the script; the rows at which the ranks stand then. Raises `ReplayError` where they cannot."""
    ranks = SteppedRanks(protocol, script.ranks, script.slots, transports)
    try:
        for number, step in enumerate(script.steps, 1):
            where = f"step {number}, rank {step.rank}"
            if ranks.row(step.rank) != step.row:
                raise ReplayError(f"{where}: stands at {ranks.row(step.rank)!r}, not {step.row!r}")
            if not ranks.enabled(step.rank):
                raise ReplayError(f"{where}: cannot go on at {step.row!r}")
            error = ranks.step(step.rank, step.outcome)
            if error is not None and (number < len(script.steps) or script.law == "deadlock"):
                raise ReplayError(f"{where}, {step.row!r}: {type(error).__name__}: {error}")
        rows = [ranks.row(rank) for rank in range(script.ranks)]
        if script.law == "deadlock":
            able = [rank for rank in range(script.ranks) if ranks.enabled(rank)]
            if able:
                raise ReplayError(f"ranks {able} can go on: {rows}")
        return rows
    finally:
        ranks.close()
