"""Breadth-first search in levels, on several threads: expand into bins by owner of the hash, then owners insert.

Only the hash tables and two levels are kept. The result does not depend on the number of threads: of several violations
in one level the least packed state is reported.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.verification.explore import kernels as k
from headway.verification.explore.tables import Compiled

Ints = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]

_CHUNK = 1 << 13  # states of a level that a thread expands between two insertions
_STEP = 1 << 13  # successors that a single thread writes between two: what stays in its cache
_ROOM = 1 << 15  # rows of a bin
_RECENT = 1 << 13  # successors that a thread remembers, to leave out the commonest repetitions
_FULLEST = 0.6
_SERIAL_BELOW = 2048  # a smaller level is not worth a second thread


@dataclass
class Found:
    """What a search found: a packed state that is stuck or breaks a law, and the level it is in."""

    state: Ints
    depth: int
    stuck: bool


@dataclass
class Count:
    """How far a search went."""

    states: int = 1
    transitions: int = 0
    depth: int = 0
    deadlocks: int = 0
    broken: int = 0
    stops: int = 0
    exhausted: bool = True
    found: Found | None = None
    levels: list[Ints] = field(default_factory=list)


class Table:
    """A hash table of packed states that doubles in place, within a bound on its bytes."""

    def __init__(self, words: int, memory: int) -> None:
        self.words, self.memory, self.used = words, memory, 0
        self._area = mmap.mmap(-1, 8 * words << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.rows = self._view()

    def _view(self) -> Ints:
        self._area.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(self._area, np.int64).reshape(-1, self.words)

    def make_room(self, incoming: int) -> bool:
        """Grow so that `incoming` more states fit; False when memory does not allow it."""
        while self.used + incoming > _FULLEST * (places := len(self.rows)):
            if 16 * places * self.words > self.memory:
                return False
            del self.rows  # the area can be moved only while nothing refers to it
            self._area.resize(16 * places * self.words)
            self.rows = self._view()
            k.spread(self.rows, places)
        return True


def breadth_first(
    compiled: Compiled,
    *,
    order: list[int],
    reduced: bool = False,
    stop_at_first: bool = True,
    memory: int = 1 << 32,
    threads: int = 0,
    keep_levels: bool = False,
    deepest: int | None = None,
    progress: Progress | None = None,
) -> Count:
    """All states, level by level. `memory` is in bytes; `threads` 0 is one a core; `deepest` ends after that level."""
    threads = threads or os.cpu_count() or 1
    search = _Search(compiled, order, reduced, memory, threads)
    with ThreadPoolExecutor(threads) as pool:
        return search.run(pool, stop_at_first, keep_levels, deepest, progress)


class Worker:
    """The buffers of one thread."""

    def __init__(self, compiled: Compiled, shards: int) -> None:
        words, most = compiled.words, compiled.most_successors
        room = (_STEP if shards == 1 else _ROOM) + most
        self.out = np.empty((shards, room, words), np.int64)
        self.filled = np.zeros(shards, np.int64)
        self.scratch = np.empty((most, words), np.int64)
        self.recent = np.zeros((_RECENT, words), np.int64)
        self.counters = np.zeros(k.COUNTERS, np.int64)
        self.dead = np.zeros(words, np.int64)
        self.broken = np.zeros(words, np.int64)
        self.fresh = np.empty((room, words), np.int64)


def expansion(
    compiled: Compiled, w: Worker, states: Ints, low: int, high: int, order: Ints, reduced: bool = False
) -> tuple[Any, ...]:
    """The arguments of `kernels.expand` for some rows; `order` is from `Compiled.ordered`."""
    to = (w.out, w.filled, w.scratch, w.recent, w.counters, w.dead, w.broken)
    return (*compiled.tables, states, low, high, order, reduced, *to)


class _Search:
    def __init__(self, compiled: Compiled, order: list[int], reduced: bool, memory: int, threads: int) -> None:
        self.compiled, self.reduced = compiled, reduced
        self.order = compiled.ordered(order)
        self.tables = [Table(compiled.words, memory // threads) for _ in range(threads)]
        self.workers = [Worker(compiled, threads) for _ in range(threads)]
        self.count = Count()

    def run(
        self,
        pool: ThreadPoolExecutor,
        stop_at_first: bool,
        keep_levels: bool,
        deepest: int | None,
        progress: Progress | None,
    ) -> Count:
        """The whole search; the state of a group that a gate has stopped is counted, but not kept."""
        count, first_stop = self.count, None
        for depth in self._levels(pool, stop_at_first, keep_levels, deepest, progress):
            if count.stops and first_stop is None:
                first_stop = depth + 1
        if first_stop is not None:
            count.states += 1
            count.depth = max(count.depth, first_stop) if count.exhausted else count.depth
        return count

    def _levels(
        self,
        pool: ThreadPoolExecutor,
        stop_at_first: bool,
        keep_levels: bool,
        deepest: int | None,
        progress: Progress | None,
    ) -> Iterator[int]:
        """Search level by level; after each, its depth."""
        count = self.count
        level = self.compiled.initial()[None]
        shard = int(k.shard_of(np.uint64(k.hash_state(level, 0)), len(self.workers)))
        self.tables[shard].used += k.insert(self.tables[shard].rows, level, 1, np.empty_like(level), 0)
        told = time.monotonic()
        while len(level):
            if keep_levels:
                count.levels.append(level)
            count.depth += 1
            if deepest is not None and count.depth >= deepest:
                return
            level, complete = self._level(pool, level)
            self._settle()
            count.exhausted = complete and (count.found is None or not stop_at_first)
            yield count.depth
            if not count.exhausted:
                return
            if progress is not None and time.monotonic() - told > 0.1:
                told = time.monotonic()
                progress(count.states, count.depth)

    def _level(self, pool: ThreadPoolExecutor, level: Ints) -> tuple[Ints, bool]:
        """The next level, and whether memory sufficed for all of it."""
        parts = list(self._sweeps(level) if len(self.workers) == 1 else self._rounds(pool, level))
        complete = all(part is not None for part in parts)
        following = np.concatenate([level[:0], *(part for part in parts if part is not None)])
        self.count.states += len(following)
        return following, complete

    def _arguments(self, worker: Worker, level: Ints, low: int, high: int) -> tuple[Any, ...]:
        return expansion(self.compiled, worker, level, low, high, self.order, self.reduced)

    def _sweeps(self, level: Ints) -> Iterator[Ints | None]:
        """New states after a level, found on one thread; None when memory ran out."""
        worker, table, low, high = self.workers[0], self.tables[0], 0, len(level)
        while low < high:
            low = k.expand(*self._arguments(worker, level, low, high))
            count = int(worker.filled[0])
            if not table.make_room(count):
                yield None
                return
            n = k.insert(table.rows, worker.out[0], count, worker.fresh, 0)
            table.used += n
            worker.filled[0] = 0
            yield worker.fresh[:n].copy()

    def _rounds(self, pool: ThreadPoolExecutor, level: Ints) -> Iterator[Ints | None]:
        """New states after a level, found by all threads in rounds of expansion and insertion; None as above."""
        workers = self.workers if len(level) >= _SERIAL_BELOW else self.workers[:1]
        edges = np.linspace(0, len(level), len(workers) + 1).astype(int).tolist()
        pending = list(zip(workers, edges[:-1], edges[1:], strict=True))
        while pending:
            jobs = [self._arguments(w, level, low, min(high, low + _CHUNK)) for w, low, high in pending]
            ends = self._each(pool, k.expand, jobs)
            pending = [(w, int(end), high) for (w, _, high), end in zip(pending, ends, strict=True) if end < high]
            shares = [range(i, len(self.workers), len(workers)) for i in range(len(workers))]
            new = self._each(pool, self._insert, [(w, workers, s) for w, s in zip(workers, shares, strict=True)])
            for worker in workers:
                worker.filled[:] = 0
            yield from new
            if any(part is None for part in new):
                return

    @staticmethod
    def _each(pool: ThreadPoolExecutor, function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
        if len(arguments) == 1:
            return [function(*arguments[0])]
        return [future.result() for future in [pool.submit(function, *a) for a in arguments]]

    def _insert(self, worker: Worker, workers: list[Worker], shards: range) -> Ints | None:
        """New states of some shards, or None when memory ran out."""
        most = sum(int(other.filled[shard]) for other in workers for shard in shards)
        if len(worker.fresh) < most:
            worker.fresh = np.empty((2 * most, self.compiled.words), np.int64)
        n = 0
        for shard in shards:
            before, table = n, self.tables[shard]
            if not table.make_room(sum(int(other.filled[shard]) for other in workers)):
                return None
            for other in workers:
                n = k.insert(table.rows, other.out[shard], other.filled[shard], worker.fresh, n)
            table.used += n - before
        return worker.fresh[:n].copy()

    def _settle(self) -> None:
        """Add the workers' counters of a level to the whole."""
        count = self.count
        count.transitions = sum(int(w.counters[k.TRANSITIONS]) for w in self.workers)
        count.deadlocks = sum(int(w.counters[k.DEADLOCKS]) for w in self.workers)
        count.broken = sum(int(w.counters[k.BROKEN]) for w in self.workers)
        count.stops = sum(int(w.counters[k.STOPS]) for w in self.workers)
        if count.found is None:
            for flag, stuck in ((k.HAS_DEADLOCK, True), (k.HAS_BROKEN, False)):
                states = [w.dead if stuck else w.broken for w in self.workers if w.counters[flag]]
                if states and count.found is None:
                    count.found = Found(min(states, key=lambda s: s.tolist()).copy(), count.depth, stuck)
