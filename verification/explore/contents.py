"""What can be on a wire or in a stash: sequences of messages that its sender posts one after the other.

Which message can follow which is read off the sender's automaton; a queue that holds anything has got it in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.spec.language import SpecError
from headway.verification.explore.automata import POST
from headway.verification.explore.columns import DETAIL, FIRST, KIND, SIZE, TARGET
from headway.verification.explore.compiler import njit

Array = npt.NDArray[Any]
_MOST = 2_000_000  # contents of one queue
_UNREACHED = -1


@dataclass(frozen=True)
class Contents:
    """All contents of one queue; number 0 is the empty one. `items` are (messages, lost channels)."""

    items: list[tuple[tuple[int, ...], tuple[int, ...]]]
    table: Array  # content x LENGTH.. (columns in `tables`)
    by_channel: Array  # content x channel x LAST..
    pushed: Array  # content x message x PUSHED.. (one column if no message is ever lost)


def follow(locals_: Array, after: Array, edges: list[int], messages: int) -> Array:
    """Pairs (message, next message) of consecutive posts of a rank on some edges, as an array of two columns.

    `locals_` are the rank's rows of `tables.Tables.locals_`.
    """
    size = len(locals_)
    posts = (locals_[:, KIND] == POST) & np.isin(locals_[:, TARGET], edges)
    seen = np.zeros((max(messages, 1), max(messages, 1)), np.bool_)
    stamp, stack = np.zeros(size, np.int32), np.zeros(size + 1, np.int32)
    _follow(posts, locals_, after, seen, stamp, stack)
    return np.argwhere(seen)


@njit
def _follow(posts, locals_, after, seen, stamp, stack):  # type: ignore[no-untyped-def]
    """Mark in `seen` the pairs of messages that can be posted one right after the other."""
    turn = 0
    for start in range(len(posts)):
        if not posts[start] or after[locals_[start, FIRST]] < 0:
            continue
        turn += 1
        top = 1
        stack[0] = after[locals_[start, FIRST]]
        stamp[stack[0]] = turn
        while top > 0:
            top -= 1
            state = stack[top]
            if posts[state]:
                seen[locals_[start, DETAIL], locals_[state, DETAIL]] = True
                continue
            first = locals_[state, FIRST]
            for i in range(first, first + locals_[state, SIZE]):
                successor = after[i]
                if successor >= 0 and stamp[successor] != turn:
                    stamp[successor] = turn
                    stack[top] = successor
                    top += 1


def enumerate_contents(
    relation: Array, channel_of: list[int], capacities: list[int], longest: int, loses: bool, width: int
) -> Contents:
    """All contents of a queue of at most `longest` messages, `capacities[c]` of each channel c.

    `channel_of[m]` is the channel of message m, or -1 when this queue never holds it; `width` is the number of columns
    of the tables that are indexed by channel.
    """
    following: list[list[int]] = [[] for _ in channel_of]
    for message, after in relation.tolist():
        if channel_of[message] >= 0 and channel_of[after] >= 0:
            following[message].append(after)
    level: list[tuple[int, ...]] = [()]
    clean: list[tuple[int, ...]] = [()]
    while level and len(level[0]) < longest:
        grown = []
        for content in level:
            used = [channel_of[m] for m in content]
            options = following[content[-1]] if content else [m for m, c in enumerate(channel_of) if c >= 0]
            grown += [(*content, m) for m in options if used.count(channel_of[m]) < capacities[channel_of[m]]]
        clean += grown
        level = grown
        if len(clean) > _MOST:
            raise SpecError(f"a queue has more than {_MOST} contents; allowed: smaller channel capacities")
    lost_sets: list[tuple[int, ...]] = [()]
    if loses:
        for channel in range(len(capacities)):
            lost_sets += [(*lost, channel) for lost in lost_sets]
    items = [(content, lost) for lost in lost_sets for content in clean]
    return _tabulate(items, channel_of, width)


def _tabulate(items: list[tuple[tuple[int, ...], tuple[int, ...]]], channel_of: list[int], width: int) -> Contents:
    number = {item: i for i, item in enumerate(items)}
    size, messages = len(items), len(channel_of)
    loses = any(lost for _, lost in items)
    table = np.zeros((size, 5), np.int32)
    by_channel = np.zeros((size, width, 2), np.int32)
    by_channel[:, :, 0] = -1
    pushed = np.full((size, messages, 3 if loses else 1), _UNREACHED, np.int32)
    for i, (content, lost) in enumerate(items):
        head = content[0] if content else -2 if lost else -1
        popped = number[content[1:], lost] if content else _UNREACHED
        present = sum(1 << channel for channel in {*lost, *(channel_of[m] for m in content)})
        table[i] = len(content) + len(lost), head, popped, present, bool(lost)
        if content and not lost:
            pushed[number[content[:-1], ()], content[-1], 0] = i
        for place, message in enumerate(content):
            by_channel[i, channel_of[message], 0] = place
            by_channel[i, channel_of[message], 1] += 1
        for channel in lost:
            by_channel[i, channel, 0] = -2
        for message, channel in enumerate(channel_of if loses else ()):
            dropped = overwritten = number[content, _with(lost, channel)]
            places = [p for p, m in enumerate(content) if channel_of[m] == channel]
            if places and channel not in lost:
                gone = {channel_of[m] for m in content[places[-1] :]}
                overwritten = number[content[: places[-1]], tuple(sorted({*lost, *gone, channel}))]
            pushed[i, message, 1:] = dropped, overwritten
    return Contents(items, table, by_channel, pushed)


def _with(lost: tuple[int, ...], channel: int) -> tuple[int, ...]:
    return tuple(sorted({*lost, channel}))
