"""From where the ranks stand to who waits for whom, whether that can still end well, and whose turn it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import networkx

from headway.engine.watchdog.position import Position


class Stall(msgspec.Struct, frozen=True):
    """A pipeline that has stopped: where every rank stands, and why it does not go on.

    `cycle`: the ranks that wait for one another in a ring, from the lowest. Without one, `blamed` is the rank whose
    turn it was, and `missing` what it had to do.
    """

    positions: list[Position]
    cycle: list[int]
    blamed: int
    missing: str = ""

    def words(self) -> str:
        """In one line."""
        where = "; ".join(position.words() for position in self.positions)
        if self.cycle:
            ring = " -> ".join(f"rank {rank}" for rank in [*self.cycle, self.cycle[0]])
            return f"the pipeline is stuck in a cycle {ring}: {where}"
        turn = f" to {self.missing}" if self.missing else ""
        return f"the pipeline is stuck, and it is the turn of rank {self.blamed}{turn}: {where}"


def diagnose(where: Sequence[Position], bounds: Mapping[str, float]) -> Stall | None:
    """A stall, if some rank has been at its row for longer than the bound of the row's nature and nothing excuses it.

    A wait is excused while the rank at the end of its chain of waits is at work within its own bound, or sleeps and
    the ranks that wait for it are at the start of a pass, where nothing is owed. What has no bound is never late.
    """
    by_rank = {p.rank: p for p in where}

    def late(rank: int) -> bool:
        standing = by_rank[rank]
        return standing.nature in bounds and standing.seconds > bounds[standing.nature]

    for rank in by_rank:
        if not late(rank):
            continue
        chain, closed = _chain(by_rank, rank)
        waiting = chain if closed or by_rank[chain[-1]].waits_on is not None else chain[:-1]
        if not all(map(late, waiting)):
            continue
        end = by_rank[chain[-1]]
        if end.waits_on is None and end.rank != rank and not late(end.rank):
            if end.nature not in ("idle", "ended"):
                continue
            if all(by_rank[r].begins for r in waiting):
                continue
        return explain(where, rank)
    return None


def explain(where: Sequence[Position], first: int | None = None) -> Stall:
    """Who waits for whom, taken as final: the ring if there is one, else whose turn it is by the waits of rank `first`.

    `first` is the rank that has waited longest unless given. Raises `ValueError` when no rank has begun.
    """
    if not where:
        raise ValueError("no rank has begun its first row")
    by_rank = {p.rank: p for p in where}
    waiting = [p for p in where if p.waits_on is not None]
    if first is None:
        first = max(waiting or where, key=lambda p: p.seconds).rank
    cycle = wait_cycle(where)
    chain, closed = _chain(by_rank, first)
    end = by_rank[chain[-1]]
    if cycle or closed:
        return Stall(list(where), cycle, cycle[0] if cycle else end.rank)
    if end.waits_on is not None:  # on a rank that has not begun
        return Stall(list(where), [], end.waits_on, end.awaited)
    missing = by_rank[chain[-2]].awaited if len(chain) > 1 else ""
    return Stall(list(where), [], end.rank, missing)


def wait_cycle(where: Sequence[Position]) -> list[int]:
    """The ranks that wait for one another in a ring, from the lowest; empty when there is none."""
    graph = networkx.DiGraph([(p.rank, p.waits_on) for p in where if p.waits_on is not None])
    cycle = next((list(c) for c in networkx.simple_cycles(graph)), [])
    first = cycle.index(min(cycle)) if cycle else 0
    return cycle[first:] + cycle[:first]


def _chain(by_rank: Mapping[int, Position], rank: int) -> tuple[list[int], bool]:
    """The rank, whom it waits on, and so on; and whether that comes back to one of them."""
    chain = [rank]
    while (on := by_rank[chain[-1]].waits_on) is not None and on in by_rank:
        if on in chain:
            return chain, True
        chain.append(on)
    return chain, False
