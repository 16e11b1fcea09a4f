"""How many messages a channel can hold, and how far a rank can run ahead of the next one: from the waits of a table.

Everything is a difference of counts: how often two ranks have done two steps. Only steps that every pass does can be
compared so; of a channel that some passes skip, what is known is that its handles are awaited one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headway.spec.ordering import Neighbours, Ordering, Point, Wait, linear, neighbours, uses
from headway.spec.table import Channel, Post, Receive, Role
from headway.spec.transports import Transport

Count = tuple[int, Point]  # 0 for the source of a pair of neighbours, 1 for its sink; a location of its role


@dataclass(frozen=True)
class Difference:
    """`left` has been done at most `most` times more often than `right`."""

    left: Count
    right: Count
    most: int


def differences(order: Ordering, pair: Neighbours, ranks: int, slots: int) -> Iterator[Difference]:
    """What the waits within and between two neighbours say of their counts, for given numbers of ranks and slots.

    A wait of a step that every pass does holds in every pass, because each message has its post and its receive.
    """
    alternatives: dict[tuple[int, int, Point, str], list[Wait]] = {}
    for wait in order.waits:
        hop, distance = wait.hop.at(ranks, slots), pair.hop.at(ranks, slots)
        roles = (wait.earlier.role, wait.later.role)
        if hop == 0:
            ends = [(end, end) for end, role in ((0, pair.source), (1, pair.sink)) if roles == (role.name, role.name)]
        elif not always(order.protocol.role(wait.later.role), wait.later.location):
            ends = []
        elif hop == distance and roles == (pair.source.name, pair.sink.name):
            ends = [(0, 1)]
        elif hop == -distance and roles == (pair.sink.name, pair.source.name):
            ends = [(1, 0)]
        else:
            ends = []
        for earlier, later in ends:
            name = "" if hop == 0 else wait.name
            alternatives.setdefault((earlier, later, wait.later, name), []).append(wait)
    for (earlier, later, point, _), waits in alternatives.items():
        if len({wait.earlier for wait in waits}) == 1:  # else one of several ways led there
            distance = max(wait.passes.at(ranks, slots) for wait in waits)
            yield Difference((later, point), (earlier, waits[0].earlier), distance)


def always(role: Role, location: str) -> bool:
    """Whether every pass that comes to a location does the same there."""
    return len(role.rows_at(location)) == 1


def most(known: list[Difference], left: Count, right: Count) -> int | None:
    """By how much `left` can exceed `right`: a shortest path, exact; None without a bound."""
    best: dict[Count, int] = {left: 0}
    for _ in range(len({d.left for d in known} | {d.right for d in known})):
        changed = False
        for d in known:
            if d.left in best and best[d.left] + d.most < best.get(d.right, best[d.left] + d.most + 1):
                best[d.right] = best[d.left] + d.most
                changed = True
        if not changed:
            break
    return best.get(right)


def by_custody(channel: Channel, transport: Transport) -> int | None:
    """What the contract and one handle at a time allow to be under way; None where messages may be put aside."""
    if channel.wire:
        return None
    return {
        "posted": 2,  # one whose receiver has come to its receive, and the next
        "lazy": 2,
        "rendezvous": 1,
        "credits": max(transport.credits, 1) + 1,
        "stream_ordered": max(transport.credits, 1),
    }.get(transport.kind)


def in_flight(order: Ordering, ranks: int, slots: int) -> Mapping[str, int | None]:
    """For each channel the most messages posted and not yet received, between any two neighbours."""
    transports = dict(order.transports)
    result: dict[str, int | None] = {}
    for channel in order.protocol.channels:
        bound = by_custody(channel, transports[channel.name])
        pairs = [p for p in neighbours(order.protocol) if p.path == channel.path and ranks in p.pipelines]
        counted = [_counted(order, pair, channel, ranks, slots) for pair in pairs]
        known = [count for count in counted if count is not None]
        if len(known) == len(pairs) and known:
            bound = max(known) if bound is None else min(bound, max(known))
        result[channel.name] = bound
    return result


def _counted(order: Ordering, pair: Neighbours, channel: Channel, ranks: int, slots: int) -> int | None:
    posts = [row.at for row in pair.source.rows if uses(row, Post, channel.name)]
    receives = [row.at for row in pair.sink.rows if uses(row, Receive, channel.name)]
    if len(posts) != 1 or len(receives) != 1:
        return None
    if not always(pair.source, posts[0]) or not always(pair.sink, receives[0]):
        return None
    left, right = (0, Point(pair.source.name, posts[0])), (1, Point(pair.sink.name, receives[0]))
    ahead = most(list(differences(order, pair, ranks, slots)), left, right)
    return None if ahead is None else ahead + linear(channel.lag).at(ranks, slots)


def lead(order: Ordering, ranks: int, slots: int) -> int | None:
    """The most passes that a rank can have begun more than the next one; None without a bound."""
    found: list[int | None] = []
    for pair in neighbours(order.protocol):
        if pair.path == "forward" and ranks in pair.pipelines:
            left = (0, Point(pair.source.name, pair.source.start))
            right = (1, Point(pair.sink.name, pair.sink.start))
            found.append(most(list(differences(order, pair, ranks, slots)), left, right))
    known = [value for value in found if value is not None]
    return max(known) if known and len(known) == len(found) else None
