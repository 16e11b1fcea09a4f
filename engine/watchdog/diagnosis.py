"""From the last record of each rank's ring to who waits for whom, and whether that can still end well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import networkx

from headway.engine.recorder import RingReader
from headway.spec.table import Await, Gate, Local, Protocol, Receive, Role, Row


class Position(msgspec.Struct, frozen=True):
    """Where a rank stands: its row, what the row does, for how long (seconds), and the rank it waits on, if any."""

    rank: int
    row: str
    doing: str
    this_pass: int
    slot: int
    seconds: float
    waits_on: int | None = None
    channel: str = ""
    nature: str = "step"

    def words(self) -> str:
        """As a clause of a sentence."""
        what = f"rank {self.rank} {self.doing} at {self.row!r} (pass {self.this_pass}, slot {self.slot})"
        on = f" on rank {self.waits_on}" if self.waits_on is not None else ""
        return f"{what}{on} for {self.seconds:.1f} s"


class Stall(msgspec.Struct, frozen=True):
    """A pipeline that has stopped: where every rank stands, and the ring of ranks that wait for one another, if any."""

    positions: list[Position]
    cycle: list[int]
    blamed: int

    def words(self) -> str:
        """In one line."""
        where = "; ".join(position.words() for position in self.positions)
        if self.cycle:
            ring = " -> ".join(f"rank {rank}" for rank in [*self.cycle, self.cycle[0]])
            return f"the pipeline is stuck in a cycle {ring}: {where}"
        return f"the pipeline is stuck, and it is the turn of rank {self.blamed}: {where}"


def position(role: Role, ranks: int, rank: int, reader: RingReader, now_ns: int) -> Position | None:
    """Where a rank stands by its ring; None before its first row."""
    record = reader.last()
    if record is None:
        return None
    row = role.rows[record.row]
    seconds = (now_ns - record.time_ns) / 1e9
    slot = record.this_pass % reader.header.slots
    operation = row.operation
    if record.done or not isinstance(operation, Await | Receive | Gate):
        doing, nature = ("computes", operation.nature) if isinstance(operation, Local) else ("is", "step")
        if nature == "idle":
            doing = "sleeps"
        return Position(rank, row.name, doing, record.this_pass, slot, seconds, nature=nature)
    downstream = isinstance(operation, Await)
    peer = (rank + 1) % ranks if downstream else (rank - 1) % ranks
    return Position(rank, row.name, "waits", record.this_pass, slot, seconds, peer, operation.channel, "wire")


def positions(protocol: Protocol, readers: Sequence[RingReader], now_ns: int) -> list[Position]:
    """Where each rank that has begun stands; `now_ns` is CLOCK_MONOTONIC."""
    ranks = len(readers)
    found = (position(protocol.role_of(r, ranks), ranks, r, reader, now_ns) for r, reader in enumerate(readers))
    return [p for p in found if p is not None]


def diagnose(protocol: Protocol, where: Sequence[Position], bounds: Mapping[str, float]) -> Stall | None:
    """A stall, if some rank has been at its row for longer than the bound of the row's nature and nothing excuses it.

    A wait is excused while the rank at the end of its chain of waits is at work within its own bound, or sleeps and
    the rank that waits for it is at the start of a pass, where nothing is owed.
    """
    by_rank = {p.rank: p for p in where}
    ranks = len(where)
    graph = networkx.DiGraph([(p.rank, p.waits_on) for p in where if p.waits_on is not None])
    for late in where:
        if late.nature not in bounds or late.seconds <= bounds[late.nature]:
            continue
        chain = [late.rank]
        while (on := by_rank[chain[-1]].waits_on) is not None and on in by_rank and on not in chain:
            chain.append(on)
        end = by_rank[chain[-1]]
        if end.waits_on is None and _excused(protocol, ranks, by_rank, chain, bounds):
            continue
        if any(by_rank[r].seconds <= bounds.get(by_rank[r].nature, float("inf")) for r in chain[:-1]):
            continue
        cycle = next((list(c) for c in networkx.simple_cycles(graph)), [])
        first = cycle.index(min(cycle)) if cycle else 0
        return Stall(list(where), cycle[first:] + cycle[:first], end.rank)
    return None


def _excused(
    protocol: Protocol, ranks: int, by_rank: Mapping[int, Position], chain: list[int], bounds: Mapping[str, float]
) -> bool:
    end = by_rank[chain[-1]]
    if end.nature == "idle":
        return all(_between_passes(protocol.role_of(r, ranks), by_rank[r].row) for r in chain[:-1])
    return len(chain) > 1 and end.seconds <= bounds.get(end.nature, float("inf"))


def _between_passes(role: Role, row_name: str) -> bool:
    row: Row = role.row(row_name)
    return row.at == role.start
