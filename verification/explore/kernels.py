"""The inner loops of the search, the same for every table: steps of packed states, and hash tables of packed states.

States are rows of int64 words, `v` the fields of one. Arrays are those of `tables.Tables` (G globals, F fields, R rank base, L
locals, A after, E edges, Q queues, C contents, B by channel, P pushed, M message edge); they are passed one by one, because
reading them from a tuple costs a reference count each. Each predicate is the compiled counterpart of the one of the same
name in `verification.network`.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from headway.verification.explore.automata import AWAIT, COLLECTIVE, END, GATE, MOVE, POST, PROBE, RECEIVE
from headway.verification.explore.columns import (
    BACK,
    BASE,
    BLOCKED,
    CANCELS,
    CAPACITY,
    CHANNELS,
    CREDITS,
    DETAIL,
    DROPPED,
    EDGE_CHANNEL,
    EDGE_WIRE,
    FIRST,
    FLAGS,
    GROUP,
    HANDLE,
    HEAD,
    HELD,
    KIND,
    KINDS,
    LAST,
    LENGTH,
    LIVE,
    MASK,
    MESSAGE_BASE,
    MESSAGES,
    OVERWRITTEN,
    PAIR,
    PASS,
    POPPED,
    PRESENT,
    PUSH_BASE,
    PUSHED,
    RANKS,
    SHIFT,
    SINK,
    SIZE,
    SOURCE,
    STASH,
    TARGET,
    TIMEOUTS,
    TOUCHING,
    TRANSPORT,
    TURNS,
    WINDOW,
    WIRE_CREDITS,
    WIRE_SINK,
    WORD,
)
from headway.verification.explore.compiler import njit

_RENDEZVOUS, _LAZY = KINDS.index("rendezvous"), KINDS.index("lazy")
_CREDITS, _STREAM = KINDS.index("credits"), KINDS.index("stream_ordered")
SHARDS = 8  # hash tables, by the top bits of the hash
FREE = -1  # in the first word of a free place

# Counters of `expand`.
TRANSITIONS, DEADLOCKS, BROKEN, STOPS, HAS_DEADLOCK, HAS_BROKEN, WIDENED = range(7)
COUNTERS = 7


@njit
def _at_receive(G, R, L, E, Q, v, wire):
    sink = Q[wire, WIRE_SINK]
    s = R[sink] + v[sink]
    if L[s, KIND] != RECEIVE or E[L[s, TARGET], EDGE_WIRE] != wire:
        return False
    stash = E[L[s, TARGET], STASH]
    return stash < 0 or v[G[RANKS] + stash] == 0


@njit
def _length(G, Q, C, v, queue):
    return C[Q[queue, BASE] + v[G[RANKS] + queue], LENGTH]


@njit
def _receiving(G, R, L, E, Q, C, v, wire):
    if not _at_receive(G, R, L, E, Q, v, wire):
        return False
    back = Q[wire, BACK]
    if back < 0:
        return True
    sent = _length(G, Q, C, v, back)
    if sent <= Q[back, WIRE_CREDITS]:
        return True
    peer_has_begun = _length(G, Q, C, v, wire) <= Q[wire, WIRE_CREDITS]
    return sent == 1 and peer_has_begun and _at_receive(G, R, L, E, Q, v, back)


@njit
def _evidence(G, R, L, E, Q, C, v, edge, sent, whole_wire):
    wire = E[edge, EDGE_WIRE]
    stash = E[edge, STASH]
    if stash >= 0 and v[G[RANKS] + stash] != 0:
        return True
    present = C[Q[wire, BASE] + v[G[RANKS] + wire], PRESENT]
    if present != 0 and (whole_wire or (present >> E[edge, EDGE_CHANNEL]) & 1):
        return True
    source = E[edge, SOURCE]
    s = R[source] + v[source]
    if sent or L[s, KIND] != POST:
        return False
    return L[s, TARGET] == edge or (whole_wire and E[L[s, TARGET], EDGE_WIRE] == wire)


@njit
def _calls(G, R, L, E, v, edge):
    peer = E[edge, SINK]
    s = R[peer] + v[peer]
    kind = L[s, KIND]
    if kind != RECEIVE and kind != POST:
        return False
    called = L[s, TARGET]
    if kind == RECEIVE and E[called, STASH] >= 0 and v[G[RANKS] + E[called, STASH]] != 0:
        return False
    return E[called, PAIR] == E[edge, PAIR]


@njit
def _can_post(G, R, L, E, Q, C, v, edge):
    transport = E[edge, TRANSPORT]
    wire = E[edge, EDGE_WIRE]
    if transport == _RENDEZVOUS or (transport == _STREAM and E[edge, CREDITS] == 0):
        return v[G[RANKS] + wire] == 0 and _receiving(G, R, L, E, Q, C, v, wire)
    if transport == _STREAM:
        return _length(G, Q, C, v, wire) < E[edge, CREDITS]
    if transport == _LAZY and v[E[edge, PAIR]] == 0:
        return _calls(G, R, L, E, v, edge)
    return True


@njit
def _is_done(G, R, L, E, Q, C, B, v, edge):
    if E[edge, TRANSPORT] == _STREAM:
        return True
    wire = E[edge, EDGE_WIRE]
    content = Q[wire, BASE] + v[G[RANKS] + wire]
    place = B[content * G[CHANNELS] + E[edge, EDGE_CHANNEL], LAST]
    if place < 0:
        return place == -1
    return place < E[edge, CREDITS] or (place == 0 and _receiving(G, R, L, E, Q, C, v, wire))


@njit
def _joined(G, R, L, v, collective, turn):
    """Whether every rank is inside this collective or has left it once more than one whose turn is `turn`."""
    for other in range(G[RANKS]):
        s = R[other] + v[other]
        inside = L[s, KIND] == COLLECTIVE and L[s, TARGET] == collective
        if not inside and (L[s, FLAGS] >> (TURNS + collective)) & 1 == turn:
            return False
    return True


@njit
def _too_far(G, R, L, v, rank, s, successor):
    """Whether a step of `rank` from local state s ends a pass half a window away from another rank."""
    this_pass = L[R[rank] + successor, PASS]
    if this_pass == L[s, PASS]:
        return False
    for other in range(G[RANKS]):
        theirs = L[R[other] + v[other], PASS]
        if other != rank and (this_pass - theirs) % G[WINDOW] == G[WINDOW] // 2:
            return True
    return False


@njit
def at_rest(G, R, L, Q, v):
    """Of a state without steps: 2 if it is stuck, 1 if all ranks are at their end and something is left over, else 0."""
    left_over = False
    for rank in range(G[RANKS]):
        s = R[rank] + v[rank]
        if L[s, KIND] != END:
            return 2
        left_over = left_over or (L[s, FLAGS] & HELD) != 0
    for queue in range(len(Q)):
        left_over = left_over or v[G[RANKS] + queue] != 0
    return 1 if left_over else 0


# --- hash tables of states ---------------------------------------------------------------------------------------


@njit
def hash_state(states, i):
    """A 64-bit hash of row i."""
    h = np.uint64(0x9E3779B97F4A7C15)
    for w in range(states.shape[1]):
        h ^= np.uint64(states[i, w])
        h *= np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(32)
    h *= np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(29))


@njit
def shard_of(h):
    """The hash table that a hash belongs to."""
    return np.int64(h >> np.uint64(61))


@njit
def contains(table, states, i, h):
    """Whether a table has the state in row i."""
    mask = table.shape[0] - 1
    place = np.int64(h) & mask
    while table[place, 0] != FREE:
        same = True
        for w in range(states.shape[1]):
            same = same and table[place, w] == states[i, w]
        if same:
            return True
        place = (place + 1) & mask
    return False


@njit
def add(table, states, i, h):
    """Add the state in row i; whether it was new."""
    mask = table.shape[0] - 1
    place = np.int64(h) & mask
    while table[place, 0] != FREE:
        same = True
        for w in range(states.shape[1]):
            same = same and table[place, w] == states[i, w]
        if same:
            return False
        place = (place + 1) & mask
    for w in range(states.shape[1]):
        table[place, w] = states[i, w]
    return True


@njit
def rehash(old, new):
    """Add all states of one table to a larger, empty one."""
    for i in range(old.shape[0]):
        if old[i, 0] != FREE:
            add(new, old, i, hash_state(old, i))


_AHEAD = 64


@njit
def insert(table, states, count, fresh, n):
    """Add `count` states to a table; new ones go to `fresh` from row n on. Returns the row after the last."""
    mask = table.shape[0] - 1
    words = states.shape[1]
    hashes = np.empty(_AHEAD, np.uint64)
    seen = np.empty(_AHEAD, np.int64)
    for low in range(0, count, _AHEAD):
        high = min(low + _AHEAD, count)
        for i in range(low, high):  # all loads first, so that their cache misses overlap
            h = hash_state(states, i)
            hashes[i - low] = h
            seen[i - low] = table[np.int64(h) & mask, 0]
        for i in range(low, high):
            if words == 1 and seen[i - low] == states[i, 0]:
                continue
            if add(table, states, i, hashes[i - low]):
                for w in range(words):
                    fresh[n, w] = states[i, w]
                n += 1
    return n


# --- expansion ---------------------------------------------------------------------------------------------------


@njit
def _keep_least(states, i, least, counters, flag):
    """Keep the lexicographically least of the states that it is called with."""
    if counters[flag]:
        for w in range(len(least)):
            if states[i, w] != least[w]:
                if states[i, w] > least[w]:
                    return
                break
    counters[flag] = 1
    for w in range(len(least)):
        least[w] = states[i, w]


@njit
def expand(
    G, F, R, L, A, E, Q, C, B, P, M,
    states, start, stop, order, reduced, tables, out, filled, scratch, counters, dead, broken_at,
):  # fmt: skip
    """Write the successors of rows start:stop to `out`, by shard (or all to bin 0 when there is one bin).

    With `reduced`, a state is expanded by the first rank of `order` for which that is enough, given the states in `tables`.
    `dead` and `broken_at` get the least state that is stuck (or leaves something over) and that breaks a law.
    Returns the row at which it stopped for want of room.
    """
    ranks = G[RANKS]
    words = states.shape[1]
    bins = len(filled)
    room = out.shape[1] - scratch.shape[0]
    v = np.empty(len(F), np.int64)
    for i in range(start, stop):
        for b in range(bins):
            if filled[b] > room:
                return i
        for f in range(len(F)):
            v[f] = (states[i, F[f, WORD]] >> F[f, SHIFT]) & F[f, MASK]
        n = broken = stops = 0
        alone = reduced
        turn = 0
        while turn < ranks:
            rank = order[turn]
            turn += 1
            s = R[rank] + v[rank]
            kind = L[s, KIND]
            first = L[s, FIRST]
            size = 0  # successors in A from `first` on
            queue = -1  # at most two queues change, and a pair
            queue_after = queue2 = queue2_after = 0
            pair = -1
            if kind == END or (alone and L[s, FLAGS] & TOUCHING):
                pass
            elif kind == MOVE:
                size = L[s, SIZE]
            elif kind == RECEIVE:
                edge = L[s, TARGET]
                wire = E[edge, EDGE_WIRE]
                stash = E[edge, STASH]
                if stash >= 0 and v[ranks + stash] != 0:
                    queue = stash
                elif _receiving(G, R, L, E, Q, C, v, wire):
                    queue = wire
                if queue >= 0:
                    content = Q[queue, BASE] + v[ranks + queue]
                    message = C[content, HEAD]
                    if message >= 0:
                        queue_after = C[content, POPPED]
                        of = edge
                        if queue == wire:
                            of = M[Q[wire, MESSAGE_BASE] + message]
                        if of == edge:
                            size = 1
                            first += message
                        elif E[of, GROUP] >= 0 and E[of, GROUP] == E[edge, GROUP]:
                            queue2 = E[of, STASH]
                            at = Q[queue2, PUSH_BASE] + v[ranks + queue2] * Q[queue2, MESSAGES] + message
                            queue2_after = P[at, PUSHED]
                            size = -1
                        else:
                            broken += 1
            elif kind == POST:
                edge = L[s, TARGET]
                if _can_post(G, R, L, E, Q, C, v, edge):
                    queue = E[edge, EDGE_WIRE]
                    number = v[ranks + queue]
                    content = Q[queue, BASE] + number
                    at = Q[queue, PUSH_BASE] + number * Q[queue, MESSAGES] + L[s, DETAIL]
                    handle = L[s, HANDLE]
                    size = 1
                    pair = E[edge, PAIR]
                    if handle != 0 and E[edge, CANCELS] == 0:
                        handle = 0
                    if handle == 1 and number == 0 and _receiving(G, R, L, E, Q, C, v, queue):
                        handle = 0
                    elif handle == 2 and _is_done(G, R, L, E, Q, C, B, v, edge):
                        handle = 0
                    if C[content, BLOCKED] and handle == 0:
                        handle = 1
                    if handle == 0:
                        live = B[content * G[CHANNELS] + E[edge, EDGE_CHANNEL], LIVE]
                        if E[edge, STASH] >= 0:
                            live += _length(G, Q, C, v, E[edge, STASH])
                        if live >= E[edge, CAPACITY]:
                            size = 0
                            broken += 1
                        else:
                            queue_after = P[at, PUSHED]
                    else:
                        queue_after = P[at, handle]
            elif kind == AWAIT:
                if _is_done(G, R, L, E, Q, C, B, v, L[s, TARGET]):
                    size = 1
            elif kind == COLLECTIVE:
                if _joined(G, R, L, v, L[s, TARGET], L[s, DETAIL]):
                    size = 1
            else:
                ready = _evidence(G, R, L, E, Q, C, v, L[s, TARGET], L[s, DETAIL] != 0, L[s, HANDLE] != 0)
                if kind == PROBE:
                    size = 1
                    if ready:
                        first += 1
                elif ready:
                    size = 1
                else:
                    stops += G[TIMEOUTS]

            for a in range(first, first + abs(size)):
                successor = A[a] if size > 0 else v[rank]
                if successor < 0 or _too_far(G, R, L, v, rank, s, successor):
                    broken += 1
                    continue
                for w in range(words):
                    scratch[n, w] = states[i, w]
                scratch[n, F[rank, WORD]] += (successor - v[rank]) << F[rank, SHIFT]
                if queue >= 0:
                    f = ranks + queue
                    scratch[n, F[f, WORD]] += (queue_after - v[f]) << F[f, SHIFT]
                    if size < 0:
                        f = ranks + queue2
                        scratch[n, F[f, WORD]] += (queue2_after - v[f]) << F[f, SHIFT]
                    if pair >= 0:
                        scratch[n, F[pair, WORD]] += (1 - v[pair]) << F[pair, SHIFT]
                n += 1

            if alone:
                enough = n == 0 and broken > 0
                for k in range(n):
                    h = hash_state(scratch, k)
                    if not contains(tables[shard_of(h)], scratch, k, h):
                        enough = True
                        break
                if enough:
                    break
                n = broken = stops = 0
                if turn == ranks:  # no rank alone is enough: all of them
                    alone = False
                    turn = 0
                    counters[WIDENED] += 1

        counters[TRANSITIONS] += n + broken + stops
        counters[STOPS] += stops
        if broken > 0:
            counters[BROKEN] += broken
            _keep_least(states, i, broken_at, counters, HAS_BROKEN)
        elif n + stops == 0:
            rest = at_rest(G, R, L, Q, v)
            if rest == 2:
                counters[DEADLOCKS] += 1
            if rest > 0:
                _keep_least(states, i, dead, counters, HAS_DEADLOCK)
        for k in range(n):
            b = shard_of(hash_state(scratch, k)) if bins > 1 else 0
            at = filled[b]
            for w in range(words):
                out[b, at, w] = scratch[k, w]
            filled[b] = at + 1
    return stop
