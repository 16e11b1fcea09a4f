"""Breadth-first search over the reference model, with and without reduction: the oracle for faster engines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import networkx

from headway.verification.model import Model
from headway.verification.states import Broken, State, Step


@dataclass(frozen=True)
class Waiting:
    """A rank that cannot go on: at which row, for which rank (None when it is done)."""

    rank: int
    row: str
    this_pass: int
    on: int | None


@dataclass(frozen=True)
class Counterexample:
    """A shortest way to a broken law or a deadlock, who stands where at its end, and the wait-for cycle if any."""

    law: str
    finding: str
    steps: tuple[Step, ...]
    positions: tuple[Waiting, ...]
    cycle: tuple[Waiting, ...]


@dataclass(frozen=True)
class Verdict:
    """What a search found. `exhausted` is False when it ended at its state limit."""

    states: int
    transitions: int
    depth: int
    deadlocks: int
    exhausted: bool
    counterexample: Counterexample | None

    @property
    def holds(self) -> bool:
        """Whether no violation was found."""
        return self.counterexample is None


def search(
    model: Model,
    *,
    reduced: bool = False,
    limit: int = 10_000_000,
    stop_at_first: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Verdict:
    """Every interleaving of the model, breadth first.

    `reduced` expands one rank a state: every channel has one producer and one consumer and an enabled row stays enabled
    until its rank takes it, so the rows of any one enabled rank form a persistent set. `progress` is called
    now and then with the number of states and the depth.
    """
    start = model.initial()
    parents: dict[State, tuple[State, Step] | None] = {start: None}
    frontier = deque([(start, 0)])
    transitions = depth = deadlocks = 0
    found: Counterexample | None = None
    while frontier:
        state, depth = frontier.popleft()
        moved = False
        for rank in range(model.ranks):
            taken = False
            for step, after in model.successors(state, rank):
                taken = moved = True
                transitions += 1
                if isinstance(after, Broken):
                    if found is None:
                        found = _counterexample(model, parents, state, step, after)
                    if stop_at_first:
                        return Verdict(len(parents), transitions, depth, deadlocks, False, found)
                elif after not in parents:
                    parents[after] = (state, step)
                    frontier.append((after, depth + 1))
            if taken and reduced:
                break
        if not moved:
            broken = model.quiescence(state) if model.ended(state) else _deadlock(model, state)
            if broken is not None:
                deadlocks += not model.ended(state)
                found = found or _counterexample(model, parents, state, None, broken)
                if stop_at_first:
                    return Verdict(len(parents), transitions, depth, deadlocks, False, found)
        if progress is not None and len(parents) % 4096 < 8:
            progress(len(parents), depth)
        if len(parents) > limit:
            return Verdict(len(parents), transitions, depth, deadlocks, False, found)
    return Verdict(len(parents), transitions, depth, deadlocks, True, found)


def positions(model: Model, state: State) -> tuple[Waiting, ...]:
    """Where each rank stands and on whom it waits."""
    result = []
    for rank in range(model.ranks):
        row = model.row_at(state, rank)
        at = "end" if row is None else row.name
        result.append(Waiting(rank, at, state.ranks[rank].this_pass, model.waits_for(state, rank)))
    return tuple(result)


def wait_cycle(waiting: tuple[Waiting, ...]) -> tuple[Waiting, ...]:
    """The ranks that wait for one another in a ring, in order; empty when there is none."""
    graph = networkx.DiGraph([(w.rank, w.on) for w in waiting if w.on is not None])
    for cycle in networkx.simple_cycles(graph):
        first = cycle.index(min(cycle))
        return tuple(waiting[rank] for rank in cycle[first:] + cycle[:first])
    return ()


def _deadlock(model: Model, state: State) -> Broken:
    stuck = next(w for w in positions(model, state) if w.on is not None or w.row != "end")
    return Broken("deadlock", stuck.rank, stuck.row, "no rank can go on")


def _counterexample(
    model: Model,
    parents: dict[State, tuple[State, Step] | None],
    state: State,
    last: Step | None,
    broken: Broken,
) -> Counterexample:
    steps = [] if last is None else [last]
    at: State = state
    while (parent := parents[at]) is not None:
        at, step = parent
        steps.append(step)
    stand = positions(model, state)
    return Counterexample(broken.law, broken.finding, tuple(reversed(steps)), stand, wait_cycle(stand))
