"""Depth-first search and random walks: for violations in spaces too large to exhaust."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.verification.explore import kernels as k
from headway.verification.explore.breadth import Count, Table, Worker, expansion
from headway.verification.explore.tables import Compiled, Tables

Ints = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]

_BUDGET = 1 << 17  # states or steps between two reports of progress
_FULL = 2


def depth_first(
    compiled: Compiled, *, order: list[int], reduced: bool, memory: int, progress: Progress | None = None
) -> tuple[Count, list[Ints]]:
    """Search depth first up to the first violation; the packed states on the way to it. `memory` is in bytes."""
    words, most = compiled.words, compiled.most_successors
    worker, ordered = Worker(compiled, 1), compiled.ordered(order)
    worker.recent = worker.recent[:0]
    path, pool = np.empty((1 << 12, words), np.int64), np.empty((1 << 13, words), np.int64)
    start, table = np.zeros(1 << 12, np.int64), Table(words, memory)
    pool[0] = compiled.initial()
    path[0] = compiled.initial()  # a root above the initial state, so that this one is a successor like others
    at = np.array([1, 1, 0, 0], np.int64)
    outcome = _FULL
    while True:
        tables, (_, _, *buffers) = _split(expansion(compiled, worker, path, 0, 0, ordered, reduced))
        outcome = k.depth_first(*tables, path, *buffers, table.rows, pool, start, at, _BUDGET)
        if progress is not None:
            progress(int(at[2]), int(at[0]))
        if outcome in (0, 1):
            break
        if outcome == _FULL:
            table.used = int(at[2])
            if path.nbytes + pool.nbytes > memory or not table.make_room(1):
                break
            if int(at[0]) + 1 >= len(path):
                path, start = np.concatenate([path, np.empty_like(path)]), np.concatenate([start, np.zeros_like(start)])
            if int(at[1]) + most > len(pool):
                pool = np.concatenate([pool, np.empty_like(pool)])
    count = _count(worker, int(at[2]), int(at[3]) - 1, outcome == 0)
    return count, [path[i].copy() for i in range(1, int(at[0]))] if outcome == 1 else []


def random_walk(
    compiled: Compiled, *, steps: int, seed: int, longest: int = 1 << 16, progress: Progress | None = None
) -> tuple[Count, list[Ints]]:
    """Walk `steps` random steps from the initial state, anew at every end; the states on the way to a violation.

    The same seed walks the same way. States are counted as often as they are passed.
    """
    worker = Worker(compiled, 1)
    worker.recent = worker.recent[:0]
    path = np.empty((longest, compiled.words), np.int64)
    path[0] = compiled.initial()
    generator = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x1234567) % (1 << 64) or 1)
    walked, length, found = 0, 1, False
    tables, (_, _, *buffers) = _split(
        expansion(compiled, worker, path, 0, 0, compiled.ordered(list(range(compiled.model.ranks))))
    )
    while walked < steps and not found:
        length, found, taken, generator = k.walk(*tables, path, *buffers, generator, min(_BUDGET, steps - walked))
        walked += int(taken)
        if progress is not None:
            progress(walked, int(length))
    return _count(worker, walked, int(length), False), [path[i].copy() for i in range(length)] if found else []


def _split(arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The tables, and what follows the states, of the arguments of `kernels.expand`."""
    tables = len(Tables._fields)
    return arguments[:tables], arguments[tables + 1 :]


def _count(worker: Worker, states: int, depth: int, exhausted: bool) -> Count:
    counters = worker.counters
    return Count(
        states,
        int(counters[k.TRANSITIONS]),
        depth,
        int(counters[k.DEADLOCKS]),
        int(counters[k.BROKEN]),
        int(counters[k.STOPS]),
        exhausted,
    )
