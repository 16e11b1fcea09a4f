"""Breadth-first search over the reference model, with and without reduction: the oracle for faster engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headway.verification.model import Model
from headway.verification.reduction import Touching
from headway.verification.states import Broken, State, Step
from headway.verification.verdict import Counterexample, Verdict, counterexample, stuck


def search(
    model: Model,
    *,
    order: Sequence[int] | None = None,
    reduced: bool = False,
    limit: int = 10_000_000,
    stop_at_first: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Verdict:
    """Every interleaving of the model, breadth first, with the ranks taken in `order`.

    `reduced` expands one rank a state where that is enough (see `reduction`); the caller runs every order. `progress`
    is called once a level with the number of states and the depth; a search ends only with a level.
    """
    start = model.initial()
    parents: dict[State, tuple[State, Step] | None] = {start: None}
    touching = Touching(model) if reduced else None
    ranks = list(range(model.ranks)) if order is None else list(order)
    closing = touching.closing(ranks) if touching else ()
    level = [start]
    transitions = depth = deadlocks = stops = 0
    found: Counterexample | None = None
    while level:
        depth += 1
        following: dict[State, None] = {}
        for state in level:
            moves = _moves(model, state, ranks, touching, closing)
            transitions += len(moves)
            for step, after in moves:
                if isinstance(after, Broken):
                    found = found or _trace(model, parents, state, step, after)
                    continue
                stops += not after.ranks
                if after not in parents:
                    parents[after] = (state, step)
                    following[after] = None
            if not moves:
                broken = stuck(model, state)
                if broken is not None:
                    deadlocks += not model.ended(state)
                    found = found or _trace(model, parents, state, None, broken)
        if found and stop_at_first:
            return Verdict(len(parents), transitions, depth, deadlocks, False, found, stops)
        if progress is not None:
            progress(len(parents), depth)
        if len(parents) > limit:
            return Verdict(len(parents), transitions, depth, deadlocks, False, found, stops)
        level = list(following)
    return Verdict(len(parents), transitions, depth, deadlocks, True, found, stops)


def _moves(
    model: Model, state: State, ranks: Sequence[int], touching: Touching | None, closing: tuple[frozenset[str], ...]
) -> list[tuple[Step, State | Broken]]:
    if touching is not None:
        for rank in ranks:
            moves = list(model.successors(state, rank))
            row = model.row_at(state, rank)
            if moves and row is not None:
                if row.name not in closing[rank] and not touching.touches(state, rank, row):
                    return moves
                break
    return [move for rank in ranks for move in model.successors(state, rank)]


def _trace(
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
    return counterexample(model, tuple(reversed(steps)), state, broken)
