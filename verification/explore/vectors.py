"""Breadth-first search with numpy alone: the steps of a whole level at once, and sorted runs of hashes as the store.

Slower than the compiled kernels, but nothing to compile and no numba. It reads the same tables and must count the same.
"""
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headway.verification.explore import columns as c
from headway.verification.explore.automata import AWAIT, COLLECTIVE, END, GATE, MOVE, POST, PROBE, RECEIVE
from headway.verification.explore.breadth import Count, Found
from headway.verification.explore.tables import Compiled

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
Progress = Callable[[int, int], None]

_CHUNK = 1 << 16
_LAZY, _RENDEZVOUS, _STREAM = (c.KINDS.index(kind) for kind in ("lazy", "rendezvous", "stream_ordered"))


class Changes(NamedTuple):
    """Steps of some rows of a chunk: row and packed state after, and rows that break a law or stop the group."""

    rows: Ints
    states: Ints
    broken: Ints
    stopped: Ints


def breadth_first(
    compiled: Compiled,
    *,
    order: list[int],
    reduced: bool,
    stop_at_first: bool,
    memory: int,
    keep_levels: bool = False,
    deepest: int | None = None,
    progress: Progress | None = None,
) -> Count:
    """As `breadth.breadth_first`, on one thread."""
    count, seen = Count(), _Runs(compiled.words)
    level = compiled.initial()[None]
    seen.add(level)
    first_stop: int | None = None
    while len(level):
        if keep_levels:
            count.levels.append(level)
        count.depth += 1
        if deepest is not None and count.depth >= deepest:
            break
        parts = []
        for low in range(0, len(level), _CHUNK):
            chunk = Chunk(compiled, level[low : low + _CHUNK])
            parts.append(_expand(chunk, order, reduced, count))
        if count.stops and first_stop is None:
            first_stop = count.depth + 1
        following = _unique(np.concatenate(parts))
        level = following[~seen.contains(following)]
        seen.add(level)
        count.states += len(level)
        if seen.bytes > memory or (count.found is not None and stop_at_first):
            count.exhausted = False
            break
        if progress is not None:
            progress(count.states, count.depth)
    if first_stop is not None:
        count.states += 1
        count.depth = max(count.depth, first_stop) if count.exhausted else count.depth
    return count


def _expand(chunk: Chunk, order: list[int], reduced: bool, count: Count) -> Ints:
    """The states after those of a chunk; what they are counted as goes to `count`."""
    left = np.arange(len(chunk.states))
    whole, done = [left], [np.zeros(0, np.int64)]
    changes: list[Changes] = []
    if reduced:
        whole = []
        closing = chunk.compiled.ordered(order)[1]
        for rank in order:
            made = chunk.steps(rank, left)
            moved = np.isin(left, np.concatenate([made.rows, made.broken, made.stopped]))
            flags = chunk.locals_(rank)[left, c.FLAGS]
            alone = (flags & c.ALONE != 0) & ~((flags & c.CLOSING != 0) & bool(closing[rank]))
            whole.append(left[moved & ~alone])
            chosen = left[moved & alone]
            changes.append(Changes(*_of_rows(made, chosen)))
            done.append(chosen)
            left = left[~moved]
    rest = np.concatenate(whole)
    changes += [chunk.steps(rank, rest) for rank in range(chunk.ranks)]
    stuck = np.concatenate([left, rest]) if reduced else rest
    moved_rows = np.concatenate([np.concatenate([m.rows, m.broken, m.stopped]) for m in changes])
    stuck = np.setdiff1d(stuck, moved_rows)
    count.transitions += len(moved_rows)
    count.stops += sum(len(m.stopped) for m in changes)
    broken = np.concatenate([m.broken for m in changes])
    count.broken += len(broken)
    dead, left_over = chunk.at_rest(stuck)
    count.deadlocks += int(np.sum(dead))
    for rows, is_stuck in ((stuck[dead | left_over], True), (broken, False)):
        if len(rows):
            _keep_least(count, chunk.states[rows], is_stuck)
    return np.concatenate([m.states for m in changes])


def _of_rows(made: Changes, rows: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    kept = np.isin(made.rows, rows)
    return (
        made.rows[kept],
        made.states[kept],
        made.broken[np.isin(made.broken, rows)],
        made.stopped[np.isin(made.stopped, rows)],
    )


def _keep_least(count: Count, states: Ints, stuck: bool) -> None:
    least = states[np.lexsort(states.T[::-1])[0]].copy()
    found = count.found
    if found is None or (
        found.depth == count.depth and (not stuck, least.tolist()) < (not found.stuck, found.state.tolist())
    ):
        count.found = Found(least, count.depth, stuck)


class Chunk:
    """Some states unpacked, and the steps from them; each predicate is that of `kernels` for all rows at once."""

    def __init__(self, compiled: Compiled, states: Ints) -> None:
        self.compiled, self.states, self.t = compiled, states, compiled.tables
        fields = self.t.fields[:-1]
        self.v = (states[:, fields[:, c.WORD]] >> fields[:, c.SHIFT]) & fields[:, c.MASK]
        self.ranks = int(self.t.globals_[c.RANKS])
        self._rows_of = [self.t.locals_[self.t.rank_base[rank] + self.v[:, rank]] for rank in range(self.ranks)]

    def locals_(self, rank: int) -> Array:
        """The rank's row of `Tables.locals_` in each state."""
        return self._rows_of[rank]

    def _content(self, queue: int) -> Ints:
        return self.t.queues[queue, c.BASE] + self.v[:, self.ranks + queue]

    def _length(self, queue: int) -> Array:
        return self.t.contents[self._content(queue), c.LENGTH]

    def _at_receive(self, wire: int) -> Bools:
        sink = self.locals_(int(self.t.queues[wire, c.WIRE_SINK]))
        result = np.zeros(len(self.states), np.bool_)
        for edge in np.flatnonzero(self.t.edges[:, c.EDGE_WIRE] == wire):
            at = (sink[:, c.KIND] == RECEIVE) & (sink[:, c.TARGET] == edge)
            stash = int(self.t.edges[edge, c.STASH])
            result |= at if stash < 0 else at & (self.v[:, self.ranks + stash] == 0)
        return result

    def _receiving(self, wire: int) -> Bools:
        at, back = self._at_receive(wire), int(self.t.queues[wire, c.BACK])
        if back < 0:
            return at
        sent = self._length(back)
        begun = (sent == 1) & (self._length(wire) <= self.t.queues[wire, c.WIRE_CREDITS]) & self._at_receive(back)
        return at & ((sent <= self.t.queues[back, c.WIRE_CREDITS]) | begun)

    def _evidence(self, edge: int, sent: bool, whole_wire: bool) -> Bools:
        facts = self.t.edges[edge]
        wire, stash = int(facts[c.EDGE_WIRE]), int(facts[c.STASH])
        present = self.t.contents[self._content(wire), c.PRESENT]
        result = present != 0 if whole_wire else (present >> facts[c.EDGE_CHANNEL]) & 1 != 0
        if stash >= 0:
            result = result | (self.v[:, self.ranks + stash] != 0)
        if not sent:
            source = self.locals_(int(facts[c.SOURCE]))
            edges = np.flatnonzero(self.t.edges[:, c.EDGE_WIRE] == wire) if whole_wire else [edge]
            result = result | ((source[:, c.KIND] == POST) & np.isin(source[:, c.TARGET], edges))
        return np.asarray(result, np.bool_)

    def _calls(self, edge: int) -> Bools:
        facts = self.t.edges[edge]
        peer = self.locals_(int(facts[c.SINK]))
        result = np.zeros(len(self.states), np.bool_)
        for other in np.flatnonzero(self.t.edges[:, c.PAIR] == facts[c.PAIR]):
            here, stash = peer[:, c.TARGET] == other, int(self.t.edges[other, c.STASH])
            waits = peer[:, c.KIND] == RECEIVE
            if stash >= 0:
                waits = waits & (self.v[:, self.ranks + stash] == 0)
            result |= here & (waits | (peer[:, c.KIND] == POST))
        return result

    def _can_post(self, edge: int) -> Bools:
        facts = self.t.edges[edge]
        wire, transport = int(facts[c.EDGE_WIRE]), int(facts[c.TRANSPORT])
        if transport == _RENDEZVOUS or (transport == _STREAM and facts[c.CREDITS] == 0):
            return np.asarray((self.v[:, self.ranks + wire] == 0) & self._receiving(wire), np.bool_)
        if transport == _STREAM:
            return np.asarray(self._length(wire) < facts[c.CREDITS], np.bool_)
        if transport == _LAZY:
            return np.asarray((self.v[:, int(facts[c.PAIR])] != 0) | self._calls(edge), np.bool_)
        return np.ones(len(self.states), np.bool_)

    def _is_done(self, edge: int) -> Bools:
        facts = self.t.edges[edge]
        if facts[c.TRANSPORT] == _STREAM:
            return np.ones(len(self.states), np.bool_)
        wire = int(facts[c.EDGE_WIRE])
        place = self.t.by_channel[self._content(wire) * self.t.globals_[c.CHANNELS] + facts[c.EDGE_CHANNEL], c.LAST]
        complete = (place < facts[c.CREDITS]) | ((place == 0) & self._receiving(wire))
        return np.asarray((place == -1) | ((place >= 0) & complete), np.bool_)

    def _joined(self, collective: int, turn: int) -> Bools:
        result = np.ones(len(self.states), np.bool_)
        for other in range(self.ranks):
            theirs = self.locals_(other)
            inside = (theirs[:, c.KIND] == COLLECTIVE) & (theirs[:, c.TARGET] == collective)
            result &= inside | ((theirs[:, c.FLAGS] >> (c.TURNS + collective)) & 1 != turn)
        return result

    def at_rest(self, rows: Ints) -> tuple[Bools, Bools]:
        """Of rows without steps: which are stuck, and which have ended with something left over."""
        dead, held = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        for rank in range(self.ranks):
            mine = self.locals_(rank)[rows]
            dead |= mine[:, c.KIND] != END
            held |= mine[:, c.FLAGS] & c.HELD != 0
        queues = self.v[rows, self.ranks : self.ranks + len(self.t.queues)]
        return dead, ~dead & (held | np.any(queues != 0, axis=1))

    def steps(self, rank: int, rows: Ints) -> Changes:
        """All steps of one rank from some rows."""
        mine = self.locals_(rank)[rows]
        made = [Changes(rows[:0], self.states[:0], rows[:0], rows[:0])]
        for kind, target in np.unique(mine[:, [c.KIND, c.TARGET]], axis=0).tolist():
            here = (mine[:, c.KIND] == kind) & (mine[:, c.TARGET] == target)
            made += self._kind(rank, kind, target, rows[here], mine[here])
        return Changes(*(np.concatenate(parts) for parts in zip(*made, strict=True)))

    def _kind(self, rank: int, kind: int, target: int, rows: Ints, mine: Array) -> list[Changes]:
        first = mine[:, c.FIRST].astype(np.int64)
        if kind == MOVE:
            size = mine[:, c.SIZE]
            every = np.repeat(np.arange(len(rows)), size)
            offset = np.arange(len(every)) - np.repeat(np.cumsum(size) - size, size)
            return [self._made(rank, rows[every], self.t.after[first[every] + offset])]
        if kind == RECEIVE:
            return self._receive(rank, target, rows, first)
        if kind == POST:
            return self._post(rank, target, rows, mine, first)
        if kind == AWAIT:
            open_ = self._is_done(target)[rows]
        elif kind == COLLECTIVE:
            turn = mine[:, c.DETAIL]
            open_ = np.where(turn == 0, self._joined(target, 0)[rows], self._joined(target, 1)[rows])
        elif kind in (GATE, PROBE):
            return self._look(rank, kind, target, rows, mine, first)
        else:
            return []
        return [self._made(rank, rows[open_], self.t.after[first[open_]])]

    def _look(self, rank: int, kind: int, edge: int, rows: Ints, mine: Array, first: Ints) -> list[Changes]:
        made = []
        for sent, whole in np.unique(mine[:, [c.DETAIL, c.HANDLE]], axis=0).tolist():
            here = (mine[:, c.DETAIL] == sent) & (mine[:, c.HANDLE] == whole)
            ready = self._evidence(edge, bool(sent), bool(whole))[rows]
            if kind == PROBE:
                made.append(self._made(rank, rows[here], self.t.after[first[here] + ready[here]]))
                continue
            made.append(self._made(rank, rows[here & ready], self.t.after[first[here & ready]]))
            if self.t.globals_[c.TIMEOUTS]:
                made.append(Changes(rows[:0], self.states[:0], rows[:0], rows[here & ~ready]))
        return made

    def _receive(self, rank: int, edge: int, rows: Ints, first: Ints) -> list[Changes]:
        facts, made = self.t.edges[edge], []
        wire, stash = int(facts[c.EDGE_WIRE]), int(facts[c.STASH])
        stashed = np.zeros(len(rows), np.bool_) if stash < 0 else self.v[rows, self.ranks + stash] != 0
        if np.any(stashed):
            made.append(self._take(rank, rows[stashed], first[stashed], stash))
        head = self.t.contents[self._content(wire)[rows], c.HEAD]
        ready = ~stashed & (head >= 0) & self._receiving(wire)[rows]
        of = self.t.message_edge[self.t.queues[wire, c.MESSAGE_BASE] + np.maximum(head, 0)]
        own = ready & (of == edge)
        made.append(self._take(rank, rows[own], first[own], wire))
        for other in np.unique(of[ready & (of != edge)]).tolist():
            there = rows[ready & (of == other)]
            group = int(self.t.edges[other, c.GROUP])
            if group < 0 or group != facts[c.GROUP]:
                made.append(Changes(rows[:0], self.states[:0], there, rows[:0]))
                continue
            aside, content = int(self.t.edges[other, c.STASH]), self._content(wire)[there]
            held = self.v[there, self.ranks + aside]
            at = self.t.queues[aside, c.PUSH_BASE] + held * self.t.queues[aside, c.MESSAGES]
            after = self.states[there].copy()
            self._change(after, there, self.ranks + wire, self.t.contents[content, c.POPPED])
            self._change(
                after, there, self.ranks + aside, self.t.pushed[at + self.t.contents[content, c.HEAD], c.PUSHED]
            )
            made.append(Changes(there, after, rows[:0], rows[:0]))
        return made

    def _take(self, rank: int, rows: Ints, first: Ints, queue: int) -> Changes:
        content = self.t.contents[self._content(queue)[rows]]
        change = (self.ranks + queue, content[:, c.POPPED])
        return self._made(rank, rows, self.t.after[first + content[:, c.HEAD]], change)

    def _post(self, rank: int, edge: int, rows: Ints, mine: Array, first: Ints) -> list[Changes]:
        facts = self.t.edges[edge]
        wire, stash, pair = int(facts[c.EDGE_WIRE]), int(facts[c.STASH]), int(facts[c.PAIR])
        open_ = self._can_post(edge)[rows]
        rows, mine, first = rows[open_], mine[open_], first[open_]
        held, content = self.v[rows, self.ranks + wire], self._content(wire)[rows]
        handle = np.where(facts[c.CANCELS] != 0, mine[:, c.HANDLE], 0)
        handle[(handle == 1) & (held == 0) & self._receiving(wire)[rows]] = 0
        handle[(handle == 2) & self._is_done(edge)[rows]] = 0
        handle[(handle == 0) & (self.t.contents[content, c.BLOCKED] != 0)] = 1
        live = self.t.by_channel[content * self.t.globals_[c.CHANNELS] + facts[c.EDGE_CHANNEL], c.LIVE]
        if stash >= 0:
            live = live + self._length(stash)[rows]
        full = (handle == 0) & (live >= facts[c.CAPACITY])
        at = self.t.queues[wire, c.PUSH_BASE] + held * self.t.queues[wire, c.MESSAGES] + mine[:, c.DETAIL]
        fine = ~full
        changes = [(self.ranks + wire, self.t.pushed[at[fine], handle[fine]])]
        if pair >= 0:
            changes.append((pair, np.ones(int(np.sum(fine)), np.int64)))
        made = self._made(rank, rows[fine], self.t.after[first[fine]], *changes)
        return [made, Changes(rows[:0], self.states[:0], rows[full], rows[:0])]

    def _made(self, rank: int, rows: Ints, successor: Array, *changes: tuple[int, Array]) -> Changes:
        """Steps of `rank` to these successors, where they break no law."""
        broken = (successor < 0) | self._too_far(rank, rows, successor)
        fine = ~broken
        after = self.states[rows[fine]]
        self._change(after, rows[fine], rank, successor[fine])
        for field, value in changes:
            self._change(after, rows[fine], field, value[fine])
        return Changes(rows[fine], after, rows[broken], rows[:0])

    def _change(self, states: Ints, rows: Ints, field: int, value: Array) -> None:
        word, shift, _ = self.t.fields[field]
        states[:, word] += (value.astype(np.int64) - self.v[rows, field]) << shift

    def _too_far(self, rank: int, rows: Ints, successor: Array) -> Bools:
        mine, window = self.locals_(rank)[rows], int(self.t.globals_[c.WINDOW])
        this_pass = self.t.locals_[self.t.rank_base[rank] + np.maximum(successor, 0), c.PASS]
        far = np.zeros(len(rows), np.bool_)
        for other in range(self.ranks):
            if other != rank:
                far |= (this_pass - self.locals_(other)[rows, c.PASS]) % window == window // 2
        return far & (mine[:, c.FLAGS] & c.ADVANCES != 0)


# --- sets of states ----------------------------------------------------------------------------------------------


def _hashes(states: Ints) -> Ints:
    """A 64-bit hash of each state; of one word it is one-to-one."""
    h = np.zeros(len(states), np.uint64)
    for word in range(states.shape[1]):
        h = (h ^ states[:, word].astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(32)
    return h.view(np.int64)


def _unique(states: Ints) -> Ints:
    hashes = _hashes(states)
    by_hash = np.argsort(hashes, kind="stable")
    states, hashes = states[by_hash], hashes[by_hash]
    same = hashes[1:] == hashes[:-1]
    _check(states[1:][same], states[:-1][same])
    return states[np.concatenate([np.ones(min(1, len(states)), np.bool_), ~same])]


def _check(left: Ints, right: Ints) -> None:
    if not np.array_equal(left, right):
        raise RuntimeError("two states have the same 64-bit hash; use the engine 'bfs'")


class _Runs:
    """A set of states in sorted runs; a run is merged with one of about its size."""

    def __init__(self, words: int) -> None:
        self.words = words
        self.runs: list[tuple[Ints, Ints]] = []

    @property
    def bytes(self) -> int:
        """Bytes of all runs."""
        return sum(hashes.nbytes + states.nbytes for hashes, states in self.runs)

    def contains(self, states: Ints) -> Bools:
        """Which states it has."""
        hashes, found = _hashes(states), np.zeros(len(states), np.bool_)
        for known, theirs in self.runs:
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            hit = known[at] == hashes
            _check(theirs[at[hit]], states[hit])
            found |= hit
        return found

    def add(self, states: Ints) -> None:
        """Add states that it does not have."""
        if not len(states):
            return
        hashes = _hashes(states)
        by_hash = np.argsort(hashes)
        run = (hashes[by_hash], states[by_hash])
        while self.runs and len(self.runs[-1][0]) < 2 * len(run[0]):
            last = self.runs.pop()
            hashes = np.concatenate([last[0], run[0]])
            by_hash = np.argsort(hashes, kind="stable")  # two sorted runs: a merge
            run = (hashes[by_hash], np.concatenate([last[1], run[1]])[by_hash])
        self.runs.append(run)
