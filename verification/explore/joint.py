"""Steps that depend on one queue only, looked up in one place: local state and content give the change of the state.

These are most steps under most contracts. The kernels take them without looking at what kind of step it is; all others,
and those that break a law, go the long way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.verification.explore import columns as c
from headway.verification.explore.automata import MOVE, POST, RECEIVE

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

DISABLED = -(1 << 63)
LONG_WAY = DISABLED + 1
_MOST = 1 << 20  # entries of the table; a step beyond goes the long way
_PLAIN_POSTS = [c.KINDS.index(kind) for kind in ("posted", "credits", "stream_ordered")]


def joint_tables(
    globals_: Ints,
    fields: Ints,
    rank_base: Ints,
    locals_: Array,
    after: Array,
    edges: Ints,
    queues: Ints,
    contents: Array,
    by_channel: Array,
    pushed: Array,
    message_edge: Array,
) -> tuple[Array, Ints]:
    """(where, change): for a local state, its row in `change` for content 0 (or -1) and the field of the queue.

    `change` has what to add to the word of the rank and to that of the queue (or the sum, if there is one word).
    """
    ranks, width = int(globals_[c.RANKS]), int(globals_[c.CHANNELS])
    one_word = bool(np.all(fields[:, c.WORD] == 0))
    where = np.full((len(locals_), 2), -1, np.int32)
    where[:, 1] = len(fields) - 1  # the empty field behind the others
    parts: list[Ints] = []
    size = 0

    def enter(
        states: Array, field: int, rank_change: Array, queue_change: Array, special: Array, closed: Array
    ) -> None:
        nonlocal size
        rows = rank_change.shape[1]
        if size + rank_change.size > _MOST:
            return
        where[states, 0] = size + rows * np.arange(len(states))
        where[states, 1] = field
        change = np.zeros((*rank_change.shape, 2), np.int64)
        change[..., 0] = rank_change + queue_change if one_word else rank_change
        change[..., 1] = 0 if one_word else queue_change
        change[special, 0] = LONG_WAY
        change[closed, 0] = DISABLED
        parts.append(change.reshape(-1, 2))
        size += rank_change.size

    ends = [*rank_base[1:], len(locals_)]
    for rank in range(ranks):
        mine = locals_[rank_base[rank] : ends[rank]].astype(np.int64)
        number, shift = np.arange(len(mine)), int(fields[rank, c.SHIFT])
        plain = mine[:, c.FLAGS] & c.ADVANCES == 0
        first = np.where(mine[:, c.SIZE] > 0, after[np.minimum(mine[:, c.FIRST], len(after) - 1)], -1).astype(np.int64)
        moves = np.flatnonzero(plain & (mine[:, c.KIND] == MOVE) & (mine[:, c.SIZE] == 1) & (first >= 0))
        none = np.zeros((len(moves), 1), np.bool_)
        enter(
            rank_base[rank] + moves, len(fields) - 1, ((first - number)[moves] << shift)[:, None], none * 0, none, none
        )
        for edge, facts in enumerate(edges):
            wire, queue = int(facts[c.EDGE_WIRE]), queues[int(facts[c.EDGE_WIRE])]
            field = ranks + wire
            top = int(queues[wire + 1, c.BASE]) if wire + 1 < len(queues) else len(contents)
            content = contents[int(queue[c.BASE]) : top]
            held, queue_shift = np.arange(len(content)), int(fields[field, c.SHIFT])
            here = plain & (mine[:, c.TARGET] == edge)
            if (
                facts[c.SOURCE] == rank
                and facts[c.TRANSPORT] in _PLAIN_POSTS
                and facts[c.PAIR] < 0
                and facts[c.STASH] < 0
            ):
                lossless = (mine[:, c.HANDLE] == 0) | (facts[c.CANCELS] == 0)
                states = np.flatnonzero(here & (mine[:, c.KIND] == POST) & lossless & (first >= 0))
                bounded = c.KINDS[facts[c.TRANSPORT]] == "stream_ordered"
                if not len(states) or (bounded and facts[c.CREDITS] == 0):
                    continue
                at = int(queue[c.PUSH_BASE]) + held[None] * int(queue[c.MESSAGES]) + mine[states, c.DETAIL][:, None]
                new = pushed[at, c.PUSHED].astype(np.int64)
                live = by_channel[(int(queue[c.BASE]) + held) * width + int(facts[c.EDGE_CHANNEL]), c.LIVE]
                full = (live >= facts[c.CAPACITY]) | (content[:, c.BLOCKED] != 0)
                closed = np.broadcast_to(bounded & (content[:, c.LENGTH] >= facts[c.CREDITS]), new.shape)
                rank_change = np.broadcast_to(((first - number)[states] << shift)[:, None], new.shape)
                enter(
                    rank_base[rank] + states, field, rank_change, (new - held) << queue_shift, full | (new < 0), closed
                )
            elif facts[c.SINK] == rank and facts[c.STASH] < 0 and queue[c.BACK] < 0:
                known = message_edge[int(queue[c.MESSAGE_BASE]) :][: int(queue[c.MESSAGES])]
                states = np.flatnonzero(here & (mine[:, c.KIND] == RECEIVE))
                if not len(states) or np.any(known != edge):
                    continue
                head, popped = content[:, c.HEAD].astype(np.int64), content[:, c.POPPED].astype(np.int64)
                taken = after[mine[states, c.FIRST][:, None] + np.maximum(head, 0)[None]].astype(np.int64)
                closed = np.broadcast_to(head < 0, taken.shape)
                queue_change = np.broadcast_to((popped - held) << queue_shift, taken.shape)
                enter(
                    rank_base[rank] + states,
                    field,
                    (taken - number[states][:, None]) << shift,
                    queue_change,
                    taken < 0,
                    closed,
                )
    return where, np.concatenate([np.zeros((0, 2), np.int64), *parts])
