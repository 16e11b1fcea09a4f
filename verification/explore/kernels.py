"""The inner loops of the search, the same for every table: steps of packed states, and hash tables of packed states.

States are rows of int64 words; (F, states, i) is one of them. Arrays are those of `tables.Tables` (G globals, F fields,
R rank base, L locals, A after, E edges, Q queues, C contents, B by channel, P pushed, M message edge, J joint,
D change); they are passed one by one, because reading them from a tuple costs a reference count each. Each predicate is
the compiled counterpart of the one of the same name in `verification.network`.
"""
# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: SIM114 (loops and branches as numba compiles them best)

from __future__ import annotations

import numpy as np

from headway.verification.explore.automata import AWAIT, COLLECTIVE, END, MOVE, POST, PROBE, RECEIVE
from headway.verification.explore.columns import (
    ADVANCES,
    ALONE,
    BACK,
    BASE,
    BLOCKED,
    CANCELS,
    CAPACITY,
    CHANNELS,
    CLOSING,
    CREDITS,
    DETAIL,
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
    TRANSPORT,
    TURNS,
    WINDOW,
    WIRE_CREDITS,
    WIRE_SINK,
    WORD,
)
from headway.verification.explore.compiler import njit
from headway.verification.explore.joint import DISABLED, LONG_WAY

_POSTED, _RENDEZVOUS = KINDS.index("posted"), KINDS.index("rendezvous")
_LAZY, _STREAM = KINDS.index("lazy"), KINDS.index("stream_ordered")
FREE = 0  # the first word of a free place; that of a state has its mark set

# Counters of `expand`.
TRANSITIONS, DEADLOCKS, BROKEN, STOPS, HAS_DEADLOCK, HAS_BROKEN, WIDENED = range(7)
COUNTERS = 7


@njit
def _field(F, states, i, field):
    """One field of the state in row i."""
    return (states[i, F[field, WORD]] >> F[field, SHIFT]) & F[field, MASK]


@njit
def _at_receive(G, R, L, E, Q, F, states, i, wire):
    sink = Q[wire, WIRE_SINK]
    s = R[sink] + _field(F, states, i, sink)
    if L[s, KIND] != RECEIVE or E[L[s, TARGET], EDGE_WIRE] != wire:
        return False
    stash = E[L[s, TARGET], STASH]
    return stash < 0 or _field(F, states, i, G[RANKS] + stash) == 0


@njit
def _length(G, Q, C, F, states, i, queue):
    return C[Q[queue, BASE] + _field(F, states, i, G[RANKS] + queue), LENGTH]


@njit
def _receiving(G, R, L, E, Q, C, F, states, i, wire):
    if not _at_receive(G, R, L, E, Q, F, states, i, wire):
        return False
    back = Q[wire, BACK]
    if back < 0:
        return True
    sent = _length(G, Q, C, F, states, i, back)
    if sent <= Q[back, WIRE_CREDITS]:
        return True
    peer_has_begun = _length(G, Q, C, F, states, i, wire) <= Q[wire, WIRE_CREDITS]
    return sent == 1 and peer_has_begun and _at_receive(G, R, L, E, Q, F, states, i, back)


@njit
def _evidence(G, R, L, E, Q, C, F, states, i, edge, sent, whole_wire):
    wire = E[edge, EDGE_WIRE]
    stash = E[edge, STASH]
    if stash >= 0 and _field(F, states, i, G[RANKS] + stash) != 0:
        return True
    present = C[Q[wire, BASE] + _field(F, states, i, G[RANKS] + wire), PRESENT]
    if present != 0 and (whole_wire or (present >> E[edge, EDGE_CHANNEL]) & 1):
        return True
    source = E[edge, SOURCE]
    s = R[source] + _field(F, states, i, source)
    if sent or L[s, KIND] != POST:
        return False
    return L[s, TARGET] == edge or (whole_wire and E[L[s, TARGET], EDGE_WIRE] == wire)


@njit
def _calls(G, R, L, E, F, states, i, edge):
    peer = E[edge, SINK]
    s = R[peer] + _field(F, states, i, peer)
    kind = L[s, KIND]
    if kind != RECEIVE and kind != POST:
        return False
    called = L[s, TARGET]
    if kind == RECEIVE and E[called, STASH] >= 0 and _field(F, states, i, G[RANKS] + E[called, STASH]) != 0:
        return False
    return E[called, PAIR] == E[edge, PAIR]


@njit
def _can_post(G, R, L, E, Q, C, F, states, i, edge):
    transport = E[edge, TRANSPORT]
    wire = E[edge, EDGE_WIRE]
    if transport == _RENDEZVOUS or (transport == _STREAM and E[edge, CREDITS] == 0):
        return _field(F, states, i, G[RANKS] + wire) == 0 and _receiving(G, R, L, E, Q, C, F, states, i, wire)
    if transport == _STREAM:
        return _length(G, Q, C, F, states, i, wire) < E[edge, CREDITS]
    if transport == _LAZY and _field(F, states, i, E[edge, PAIR]) == 0:
        return _calls(G, R, L, E, F, states, i, edge)
    return True


@njit
def _is_done(G, R, L, E, Q, C, B, F, states, i, edge):
    if E[edge, TRANSPORT] == _STREAM:
        return True
    wire = E[edge, EDGE_WIRE]
    content = Q[wire, BASE] + _field(F, states, i, G[RANKS] + wire)
    place = B[content * G[CHANNELS] + E[edge, EDGE_CHANNEL], LAST]
    if place < 0:
        return place == -1
    return place < E[edge, CREDITS] or (place == 0 and _receiving(G, R, L, E, Q, C, F, states, i, wire))


@njit
def _joined(G, R, L, F, states, i, collective, turn):
    """Whether every rank is inside this collective or has left it once more than one whose turn is `turn`."""
    for other in range(G[RANKS]):
        s = R[other] + _field(F, states, i, other)
        inside = L[s, KIND] == COLLECTIVE and L[s, TARGET] == collective
        if not inside and (L[s, FLAGS] >> (TURNS + collective)) & 1 == turn:
            return False
    return True


@njit
def _too_far(G, R, L, F, states, i, rank, s, successor):
    """Whether a step of `rank` from local state s ends a pass half a window away from another rank."""
    if not L[s, FLAGS] & ADVANCES:
        return False
    this_pass = L[R[rank] + successor, PASS]
    for other in range(G[RANKS]):
        theirs = L[R[other] + _field(F, states, i, other), PASS]
        if other != rank and (this_pass - theirs) % G[WINDOW] == G[WINDOW] // 2:
            return True
    return False


@njit
def at_rest(G, R, L, Q, F, states, i):
    """Of a state without steps: 2 if it is stuck, 1 if all ranks have ended and something is left over, else 0."""
    left_over = False
    for rank in range(G[RANKS]):
        s = R[rank] + _field(F, states, i, rank)
        if L[s, KIND] != END:
            return 2
        left_over = left_over or (L[s, FLAGS] & HELD) != 0
    for queue in range(len(Q)):
        left_over = left_over or _field(F, states, i, G[RANKS] + queue) != 0
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
def shard_of(h, shards):
    """The hash table that a hash belongs to, by its top bits."""
    return np.int64(((h >> np.uint64(32)) * np.uint64(shards)) >> np.uint64(32))


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
def spread(table, places):
    """Make a table whose first `places` rows are all in use one of all its rows.

    In the order of the old table, from behind a free row on, each state finds its place, one before it, or a new one.
    """
    state = np.empty((1, table.shape[1]), np.int64)
    start = 0
    while table[start, 0] != FREE:
        start += 1
    for step in range(1, places):
        i = (start + step) & (places - 1)
        if table[i, 0] != FREE:
            for w in range(table.shape[1]):
                state[0, w] = table[i, w]
                table[i, w] = FREE
            add(table, state, 0, hash_state(state, 0))


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
    G, F, R, L, A, E, Q, C, B, P, M, J, D,
    states, start, stop, order, reduced, out, filled, scratch, recent, counters, dead, broken_at,
):  # fmt: skip
    """Write the successors of rows start:stop to `out`, by shard.

    With `reduced`, a state is expanded by the first rank of order[0] that has a step, if that is enough;
    order[1] says whose closing steps are not.
    `recent` remembers successors written lately, which are left out; it may be empty. `dead` and `broken_at` get the
    least state that is stuck (or leaves something over) and that breaks a law. Returns the row at which it stopped for
    want of room.
    """
    ranks = G[RANKS]
    words = states.shape[1]
    shards = len(filled)
    most = scratch.shape[0]
    remember = recent.shape[0] - 1
    safe = start  # there is room for the successors of rows below
    for i in range(start, stop):
        if i == safe:
            fullest = 0
            for b in range(shards):
                fullest = max(fullest, filled[b])
            safe += (out.shape[1] - fullest) // most
            if i == safe:
                return i
        n = broken = stops = 0
        alone = reduced
        turn = 0
        while turn < ranks:
            rank = order[0, turn]
            turn += 1
            number = _field(F, states, i, rank)
            s = R[rank] + number
            look_up = J[s, 0]
            change = np.int64(LONG_WAY)
            if look_up >= 0:
                f = J[s, 1]
                look_up += (states[i, F[f, WORD]] >> F[f, SHIFT]) & F[f, MASK]
                change = D[look_up, 0]
                if change == DISABLED:
                    continue
            if change != LONG_WAY:
                if words == 1:
                    scratch[n, 0] = states[i, 0] + change
                else:
                    for w in range(words):
                        scratch[n, w] = states[i, w]
                    scratch[n, F[rank, WORD]] += change
                    scratch[n, F[f, WORD]] += D[look_up, 1]
                n += 1
                if alone:
                    if L[s, FLAGS] & ALONE and not (L[s, FLAGS] & CLOSING and order[1, rank]):
                        break
                    alone = False
                    n = turn = 0
                    counters[WIDENED] += 1
                continue
            kind = L[s, KIND]
            first = np.int64(L[s, FIRST])
            size = 0  # successors in A from `first` on; -1: the rank stays where it is
            queue = aside = pair = -1  # fields that change with the rank's
            queue_change = aside_change = 0
            if kind == END:
                pass
            elif kind == MOVE:
                size = L[s, SIZE]
            elif kind == RECEIVE:
                edge = L[s, TARGET]
                wire = E[edge, EDGE_WIRE]
                stash = E[edge, STASH]
                if stash >= 0 and _field(F, states, i, ranks + stash) != 0:
                    queue = stash
                elif Q[wire, BACK] < 0 or _receiving(G, R, L, E, Q, C, F, states, i, wire):
                    queue = wire
                if queue >= 0:
                    held = _field(F, states, i, ranks + queue)
                    content = Q[queue, BASE] + held
                    message = C[content, HEAD]
                    if message >= 0:
                        queue_change = C[content, POPPED] - held
                        of = edge if queue == stash else M[Q[wire, MESSAGE_BASE] + message]
                        if of == edge:
                            size = 1
                            first += message
                        elif E[of, GROUP] >= 0 and E[of, GROUP] == E[edge, GROUP]:
                            other = E[of, STASH]
                            aside = ranks + other
                            held = _field(F, states, i, aside)
                            at = Q[other, PUSH_BASE] + held * Q[other, MESSAGES] + message
                            aside_change = P[at, PUSHED] - held
                            size = -1
                        else:
                            broken += 1
                    queue += ranks
            elif kind == POST:
                edge = L[s, TARGET]
                if E[edge, TRANSPORT] == _POSTED or _can_post(G, R, L, E, Q, C, F, states, i, edge):
                    wire = E[edge, EDGE_WIRE]
                    queue = ranks + wire
                    held = _field(F, states, i, queue)
                    content = Q[wire, BASE] + held
                    at = Q[wire, PUSH_BASE] + held * Q[wire, MESSAGES] + L[s, DETAIL]
                    size = 1
                    pair = E[edge, PAIR]
                    handle = L[s, HANDLE]
                    if handle != 0:
                        if E[edge, CANCELS] == 0:
                            handle = 0
                        elif handle == 1 and held == 0 and _receiving(G, R, L, E, Q, C, F, states, i, wire):
                            handle = 0
                        elif handle == 2 and _is_done(G, R, L, E, Q, C, B, F, states, i, edge):
                            handle = 0
                    if C[content, BLOCKED] and handle == 0:
                        handle = 1
                    if handle == 0:
                        live = B[content * G[CHANNELS] + E[edge, EDGE_CHANNEL], LIVE]
                        if E[edge, STASH] >= 0:
                            live += _length(G, Q, C, F, states, i, E[edge, STASH])
                        if live >= E[edge, CAPACITY]:
                            size = 0
                            broken += 1
                    queue_change = P[at, handle] - held
            elif kind == AWAIT:
                if _is_done(G, R, L, E, Q, C, B, F, states, i, L[s, TARGET]):
                    size = 1
            elif kind == COLLECTIVE:
                if _joined(G, R, L, F, states, i, L[s, TARGET], L[s, DETAIL]):
                    size = 1
            else:
                ready = _evidence(G, R, L, E, Q, C, F, states, i, L[s, TARGET], L[s, DETAIL] != 0, L[s, HANDLE] != 0)
                if kind == PROBE:
                    size = 1
                    if ready:
                        first += 1
                elif ready:
                    size = 1
                else:
                    stops += G[TIMEOUTS]

            others = np.int64(0)  # the change of the only word, apart from the rank's field
            if words == 1 and queue >= 0:
                others = queue_change << F[queue, SHIFT]
                if aside >= 0:
                    others += aside_change << F[aside, SHIFT]
                if pair >= 0:
                    others += (1 - _field(F, states, i, pair)) << F[pair, SHIFT]
            for a in range(first, first + abs(size)):
                successor = np.int64(A[a]) if size > 0 else number
                if successor < 0 or _too_far(G, R, L, F, states, i, rank, s, successor):
                    broken += 1
                    continue
                if words == 1:
                    scratch[n, 0] = states[i, 0] + others + ((successor - number) << F[rank, SHIFT])
                    n += 1
                    continue
                for w in range(words):
                    scratch[n, w] = states[i, w]
                scratch[n, F[rank, WORD]] += (successor - number) << F[rank, SHIFT]
                if queue >= 0:
                    scratch[n, F[queue, WORD]] += queue_change << F[queue, SHIFT]
                    if aside >= 0:
                        scratch[n, F[aside, WORD]] += aside_change << F[aside, SHIFT]
                    if pair >= 0:
                        scratch[n, F[pair, WORD]] += (1 - _field(F, states, i, pair)) << F[pair, SHIFT]
                n += 1

            if alone:
                if n + broken + stops == 0:
                    continue
                if L[s, FLAGS] & ALONE and not (L[s, FLAGS] & CLOSING and order[1, rank]):
                    break
                alone = False  # this step is not enough: those of all ranks
                n = broken = stops = turn = 0
                counters[WIDENED] += 1

        counters[TRANSITIONS] += n + broken + stops
        counters[STOPS] += stops
        if broken > 0:
            counters[BROKEN] += broken
            _keep_least(states, i, broken_at, counters, HAS_BROKEN)
        elif n + stops == 0:
            rest = at_rest(G, R, L, Q, F, states, i)
            if rest == 2:
                counters[DEADLOCKS] += 1
            if rest > 0:
                _keep_least(states, i, dead, counters, HAS_DEADLOCK)
        for k in range(n):
            h = hash_state(scratch, k)
            if words == 1 and remember >= 0:
                place = np.int64(h) & remember
                if recent[place, 0] != scratch[k, 0]:
                    recent[place, 0] = scratch[k, 0]
                    b = shard_of(h, shards)
                    out[b, filled[b], 0] = scratch[k, 0]
                    filled[b] += 1
                continue
            if remember >= 0:
                place = np.int64(h) & remember
                known = True
                for w in range(words):
                    known = known and recent[place, w] == scratch[k, w]
                if known:
                    continue
                for w in range(words):
                    recent[place, w] = scratch[k, w]
            b = shard_of(h, shards)
            at = filled[b]
            for w in range(words):
                out[b, at, w] = scratch[k, w]
            filled[b] = at + 1
    return stop


@njit
def depth_first(
    G, F, R, L, A, E, Q, C, B, P, M, J, D,
    path, order, reduced, out, filled, scratch, recent, counters, dead, broken_at,
    table, pool, start, at, budget,
):  # fmt: skip
    """Go on with a depth-first search whose stack is `path`; `pool[start[d]:]` are the successors of path[d] to come.

    `at` holds the number of states on the path, of successors in the pool, of states in the table, and the greatest
    depth. Returns 0 when done, 1 for a violation at the end of the path, 2 when one of the buffers is full, 3 when
    `budget` states have been added.
    """
    words = path.shape[1]
    added = 0
    while at[0] > 0:
        depth = at[0]
        if at[1] == start[depth - 1]:
            at[0] -= 1
            continue
        if depth + 1 >= len(path) or at[1] + len(scratch) > len(pool) or 5 * at[2] > 3 * len(table):
            return 2
        if added >= budget:
            return 3
        at[1] -= 1
        if not add(table, pool, at[1], hash_state(pool, at[1])):
            continue
        at[2] += 1
        added += 1
        for w in range(words):
            path[depth, w] = pool[at[1], w]
        at[0] += 1
        at[3] = max(at[3], at[0])
        filled[0] = 0
        expand(
            G, F, R, L, A, E, Q, C, B, P, M, J, D,
            path, depth, depth + 1, order, reduced, out, filled, scratch, recent, counters, dead, broken_at,
        )  # fmt: skip
        start[depth] = at[1]
        for row in range(filled[0] - 1, -1, -1):
            for w in range(words):
                pool[at[1], w] = out[0, row, w]
            at[1] += 1
        if counters[HAS_DEADLOCK] or counters[HAS_BROKEN]:
            return 1
    return 0


@njit
def walk(
    G, F, R, L, A, E, Q, C, B, P, M, J, D,
    path, order, reduced, out, filled, scratch, recent, counters, dead, broken_at,
    seed, steps,
):  # fmt: skip
    """Walk at random from path[0], anew at every end and when the path is full, for `steps` steps.

    Returns (length of the path, whether its end violates a law, steps taken, state of the generator).
    """
    depth = taken = 0
    while taken < steps:
        filled[0] = 0
        expand(
            G, F, R, L, A, E, Q, C, B, P, M, J, D,
            path, depth, depth + 1, order, reduced, out, filled, scratch, recent, counters, dead, broken_at,
        )  # fmt: skip
        if counters[HAS_DEADLOCK] or counters[HAS_BROKEN]:
            return depth + 1, True, taken, seed
        taken += 1
        if filled[0] == 0 or depth + 1 == len(path):
            depth = 0
            continue
        seed ^= seed << np.uint64(13)
        seed ^= seed >> np.uint64(7)
        seed ^= seed << np.uint64(17)
        row = np.int64((seed >> np.uint64(33)) % np.uint64(filled[0]))
        depth += 1
        for w in range(path.shape[1]):
            path[depth, w] = out[0, row, w]
    return depth + 1, False, taken, seed
