"""Breadth-first search in levels, on several threads: expand into bins by owner of the hash, then owners insert.

Only the hash tables and two levels are kept. The result does not depend on the number of threads: of several violations
in one level the least packed state is reported.
"""

from __future__ import annotations

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

_CHUNK = 1 << 15  # states of a level that are expanded between two insertions
_ROOM = 1 << 15  # rows of a bin
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


class Store:
    """Hash tables of packed states, by shard, within a bound on their bytes."""

    def __init__(self, words: int, memory: int) -> None:
        self.words, self.memory = words, memory
        self.tables = tuple(self._empty(1 << 9) for _ in range(k.SHARDS))
        self.used = [0] * k.SHARDS

    def _empty(self, places: int) -> Ints:
        return np.full((places, self.words), k.FREE, np.int64)

    @property
    def bytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.nbytes for table in self.tables)

    def make_room(self, incoming: Ints) -> bool:
        """Grow the tables so that `incoming[s]` more states fit in shard s; False when memory does not allow it."""
        tables = list(self.tables)
        for shard, more in enumerate(incoming.tolist()):
            places = tables[shard].shape[0]
            while self.used[shard] + more > _FULLEST * places:
                places *= 2
            if places > tables[shard].shape[0]:
                if self.bytes + places * self.words * 8 > self.memory:
                    self.tables = tuple(tables)
                    return False
                larger = self._empty(places)
                k.rehash(tables[shard], larger)
                tables[shard] = larger
                self.tables = tuple(tables)
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


class _Worker:
    """The buffers of one thread."""

    def __init__(self, compiled: Compiled) -> None:
        words, most = compiled.words, compiled.most_successors
        self.out = np.empty((k.SHARDS, _ROOM + most, words), np.int64)
        self.filled = np.zeros(k.SHARDS, np.int64)
        self.scratch = np.empty((most, words), np.int64)
        self.counters = np.zeros(k.COUNTERS, np.int64)
        self.dead = np.zeros(words, np.int64)
        self.broken = np.zeros(words, np.int64)
        self.fresh = np.empty((0, words), np.int64)


class _Search:
    def __init__(self, compiled: Compiled, order: list[int], reduced: bool, memory: int, threads: int) -> None:
        self.compiled, self.reduced = compiled, reduced
        self.order = np.array(order, np.int64)
        self.store = Store(compiled.words, memory)
        self.workers = [_Worker(compiled) for _ in range(threads)]
        self.count = Count()

    def run(
        self,
        pool: ThreadPoolExecutor,
        stop_at_first: bool,
        keep_levels: bool,
        deepest: int | None,
        progress: Progress | None,
    ) -> Count:
        count = self.count
        level = self.compiled.initial()[None]
        shard = int(k.shard_of(np.uint64(k.hash_state(level, 0))))
        k.insert(self.store.tables[shard], level, 1, np.empty_like(level), 0)
        self.store.used[shard] += 1
        first_stop: int | None = None
        told = time.monotonic()
        while True:
            if keep_levels:
                count.levels.append(level)
            if deepest is not None and count.depth >= deepest:
                return count
            following, complete = self._level(pool, level)
            if count.stops and first_stop is None:
                first_stop = count.depth + 1
            self._settle()
            if not complete:
                count.exhausted = False
                return count
            if count.found is not None and stop_at_first:
                count.exhausted = False
                return count
            if progress is not None and time.monotonic() - told > 0.1:
                told = time.monotonic()
                progress(count.states, count.depth)
            if not len(following):
                break
            level = following
            count.depth += 1
        if first_stop is not None:  # one more state: the group has stopped
            count.states += 1
            count.depth = max(count.depth, first_stop)
        return count

    def _level(self, pool: ThreadPoolExecutor, level: Ints) -> tuple[Ints, bool]:
        """The next level, and whether memory sufficed for all of it."""
        parts: list[Ints] = []
        workers = self.workers if len(level) >= _SERIAL_BELOW else self.workers[:1]
        for spans in self._chunks(len(level), len(workers)):
            pending = [(worker, low, high) for worker, (low, high) in zip(workers, spans, strict=True) if low < high]
            while pending:
                ends = self._each(pool, self._expand, [(worker, level, low, high) for worker, low, high in pending])
                pending = [(w, end, high) for (w, _, high), end in zip(pending, ends, strict=True) if end < high]
                incoming = np.sum([worker.filled for worker in workers], axis=0)
                if not self.store.make_room(incoming):
                    return level[:0], False
                shares = np.array_split(np.arange(k.SHARDS), len(workers))
                new = self._each(pool, self._insert, [(w, workers, share) for w, share in zip(workers, shares, strict=True)])
                parts += [part for part in new if len(part)]
                for worker in workers:
                    worker.filled[:] = 0
        following = np.concatenate(parts) if parts else level[:0]
        self.count.states += len(following)
        return following, True

    @staticmethod
    def _chunks(size: int, workers: int) -> Iterator[list[tuple[int, int]]]:
        for low in range(0, size, _CHUNK * workers):
            edges = np.linspace(low, min(low + _CHUNK * workers, size), workers + 1).astype(int).tolist()
            yield list(zip(edges[:-1], edges[1:], strict=True))

    @staticmethod
    def _each(pool: ThreadPoolExecutor, function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
        if len(arguments) == 1:
            return [function(*arguments[0])]
        return [future.result() for future in [pool.submit(function, *a) for a in arguments]]

    def _expand(self, worker: _Worker, level: Ints, low: int, high: int) -> int:
        return int(
            k.expand(
                *self.compiled.tables,
                level,
                low,
                high,
                self.order,
                self.reduced,
                self.store.tables,
                worker.out,
                worker.filled,
                worker.scratch,
                worker.counters,
                worker.dead,
                worker.broken,
            )
        )

    def _insert(self, worker: _Worker, workers: list[_Worker], shards: Ints) -> Ints:
        most = sum(int(other.filled[shard]) for other in workers for shard in shards)
        if len(worker.fresh) < most:
            worker.fresh = np.empty((2 * most, self.compiled.words), np.int64)
        n = 0
        for shard in shards.tolist():
            before = n
            for other in workers:
                n = k.insert(self.store.tables[shard], other.out[shard], other.filled[shard], worker.fresh, n)
            self.store.used[shard] += n - before
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
