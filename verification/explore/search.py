"""`explore`: a model, an engine and its bounds in; a verdict out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.spec.language import SpecError
from headway.verification.explore.automata import build_automata
from headway.verification.explore.breadth import Count, breadth_first
from headway.verification.explore.compiler import HAS_NUMBA
from headway.verification.explore.depth import depth_first, random_walk
from headway.verification.explore.tables import Compiled, compile_tables
from headway.verification.explore.trace import path_to
from headway.verification.model import Model
from headway.verification.reduction import Touching, orders
from headway.verification.verdict import Counterexample, Verdict, replay

Ints = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]

ENGINES = ("bfs", "dfs", "walk", "numpy")
MEMORY = 4 << 30


@dataclass(frozen=True)
class Bounds:
    """What a search may use: bytes of memory, threads (0: one a core), and steps of a random walk from a seed."""

    memory: int = MEMORY
    threads: int = 0
    steps: int = 1_000_000
    seed: int = 0


def explore(
    model: Model,
    *,
    engine: str = "bfs",
    reduced: bool = False,
    stop_at_first: bool = True,
    bounds: Bounds | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Search the states of a model.

    "bfs" goes breadth first on all threads and finds shortest counterexamples; "numpy" does the same without numba, on
    one thread; "dfs" goes depth first; "walk" walks at random and never exhausts. `reduced` expands one rank a state
    where that is enough and takes every order of `reduction.orders`: states and transitions are then those of all.
    `progress` is told states and depth. Raises `SpecError` for an unknown engine.
    """
    if engine not in ENGINES:
        raise SpecError(f"engine {engine!r}: unknown; allowed: {', '.join(ENGINES)}")
    bounds = bounds or Bounds()
    compiled = compile_tables(build_automata(model))
    notes: list[str] = []
    if not HAS_NUMBA and engine == "bfs":
        engine = "numpy"
        notes.append("numba is not installed: searched with numpy")
    reduced = reduced and engine != "walk"
    if reduced:
        notes += [f"not reduced: {reason}" for reason in Touching(model).reasons()]
    verdict: Verdict | None = None
    for order in orders(model.ranks) if reduced else [list(range(model.ranks))]:
        count, path = _search(compiled, engine, order, reduced, stop_at_first, bounds, progress)
        found = replay(model, [compiled.unpack(state) for state in path]) if path else None
        verdict = _joined(verdict, count, found)
        if found is not None and stop_at_first:
            break
    if verdict is None:
        raise SpecError("there is no order of ranks to search")
    if not verdict.exhausted and verdict.holds:
        notes.append(f"not exhausted: {verdict.states:,} states")
    return Verdict(**{**vars(verdict), "notes": tuple(notes)})


def _search(
    compiled: Compiled,
    engine: str,
    order: list[int],
    reduced: bool,
    stop_at_first: bool,
    bounds: Bounds,
    progress: Progress | None,
) -> tuple[Count, list[Ints]]:
    """How far one search went, and the packed states on the way to what it found."""
    if engine == "walk":
        return random_walk(compiled, steps=bounds.steps, seed=bounds.seed, progress=progress)
    if engine == "dfs":
        return depth_first(compiled, order=order, reduced=reduced, memory=bounds.memory, progress=progress)
    if engine == "numpy":
        from headway.verification.explore.vectors import breadth_first as with_numpy

        count = with_numpy(
            compiled, order=order, reduced=reduced, stop_at_first=stop_at_first, memory=bounds.memory, progress=progress
        )
    else:
        count = breadth_first(
            compiled,
            order=order,
            reduced=reduced,
            stop_at_first=stop_at_first,
            memory=bounds.memory,
            threads=bounds.threads,
            progress=progress,
        )
    path = path_to(compiled, count, order=order, reduced=reduced, memory=bounds.memory) if count.found else []
    return count, path


def _joined(verdict: Verdict | None, count: Count, found: Counterexample | None) -> Verdict:
    """The verdict of several orders together."""
    if verdict is None:
        return Verdict(
            count.states, count.transitions, count.depth, count.deadlocks, count.exhausted, found, count.stops
        )
    return Verdict(
        verdict.states + count.states,
        verdict.transitions + count.transitions,
        max(verdict.depth, count.depth),
        max(verdict.deadlocks, count.deadlocks),
        verdict.exhausted and count.exhausted,
        verdict.counterexample or found,
        max(verdict.stops, count.stops),
    )
