"""The way to a state that a breadth-first search found: it keeps no parents, so the levels are searched again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headway.verification.explore import kernels as k
from headway.verification.explore.breadth import Count, Worker, breadth_first, expansion
from headway.verification.explore.tables import Compiled

Ints = npt.NDArray[np.int64]


def path_to(compiled: Compiled, count: Count, *, order: list[int], reduced: bool, memory: int) -> list[Ints]:
    """Packed states from the initial one to what a search found, by a shortest way; the least predecessor each step."""
    found = count.found
    if found is None:
        return []
    count = breadth_first(
        compiled,
        order=order,
        reduced=reduced,
        stop_at_first=False,
        memory=memory,
        keep_levels=True,
        deepest=found.depth,
    )
    path = [found.state]
    for level in reversed(count.levels[:-1]):
        level = level[np.lexsort(level.T[::-1])]
        path.append(level[_predecessor(compiled, level, path[-1], compiled.ordered(order))].copy())
    return path[::-1]


def _predecessor(compiled: Compiled, level: Ints, target: Ints, order: Ints) -> int:
    """The first row of a level that leads to `target`, by halving the rows that can be it."""
    low, high = 0, len(level)
    while high - low > 1:
        middle = (low + high) // 2
        if _leads_to(compiled, level, low, middle, target, order):
            high = middle
        else:
            low = middle
    if not _leads_to(compiled, level, low, high, target, order):
        raise RuntimeError("a level of the search has no state that leads to the next one")
    return low


def _leads_to(compiled: Compiled, level: Ints, low: int, high: int, target: Ints, order: Ints) -> bool:
    worker = Worker(compiled, 1)
    while low < high:
        low = k.expand(*expansion(compiled, worker, level, low, high, order))
        if np.any(np.all(worker.out[0, : worker.filled[0]] == target, axis=1)):
            return True
        worker.filled[0] = 0
    return False
