"""What a search says, whichever engine it was: how far it went, what it found, and the way there."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import networkx

from headway.verification.model import Model
from headway.verification.states import Broken, State, Step


@dataclass(frozen=True)
class Waiting:
    """A rank that cannot go on: at which row, for which rank (None when it is done or can go on)."""

    rank: int
    row: str
    this_pass: int
    on: int | None


@dataclass(frozen=True)
class Counterexample:
    """A way to a broken law or a deadlock, who stands where at its end, and the wait-for cycle if any."""

    law: str
    finding: str
    steps: tuple[Step, ...]
    positions: tuple[Waiting, ...]
    cycle: tuple[Waiting, ...]


@dataclass(frozen=True)
class Verdict:
    """What a search found.

    `depth` counts the levels: the states on the longest shortest path. `stops` counts the fail-stops of gates.
    `exhausted` is False when the search ended before it had seen every state. `notes` say what it could not do.
    """

    states: int
    transitions: int
    depth: int
    deadlocks: int
    exhausted: bool
    counterexample: Counterexample | None
    stops: int = 0
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether no violation was found."""
        return self.counterexample is None


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


def stuck(model: Model, state: State) -> Broken | None:
    """What is wrong with a state in which no rank can take a step; None when it is a proper end."""
    if model.ended(state):
        return model.quiescence(state)
    first = next(w for w in positions(model, state) if w.on is not None or w.row != "end")
    return Broken("deadlock", first.rank, first.row, "no rank can go on")


def counterexample(model: Model, steps: tuple[Step, ...], state: State, broken: Broken) -> Counterexample:
    """The counterexample whose last state before the violation is `state`."""
    stand = positions(model, state)
    return Counterexample(broken.law, broken.finding, steps, stand, wait_cycle(stand))


def replay(model: Model, path: list[State]) -> Counterexample:
    """The counterexample along a path of states, found again step by step in the reference model.

    Raises `RuntimeError` when the model does not take one of the steps or sees no violation at the end: then an engine
    and the model disagree.
    """
    steps = []
    for before, after in itertools.pairwise(path):
        steps.append(_step_between(model, before, after))
    last, moved = path[-1], False
    for rank in range(model.ranks):
        for step, reached in model.successors(last, rank):
            moved = True
            if isinstance(reached, Broken):
                return counterexample(model, (*steps, step), last, reached)
    broken = None if moved else stuck(model, last)
    if broken is None:
        raise RuntimeError("an engine reports a violation that the reference model does not see")
    return counterexample(model, tuple(steps), last, broken)


def _step_between(model: Model, before: State, after: State) -> Step:
    for rank in range(model.ranks):
        for step, reached in model.successors(before, rank):
            if reached == after:
                return step
    raise RuntimeError("an engine takes a step that the reference model does not take")
