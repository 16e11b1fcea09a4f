"""Each receive is matched with its post: the same channel, the pass that the channel's lag says, the same fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headway.spec.language import static_value
from headway.spec.table import Channel, Post, Protocol, Receive
from headway.verification.conform.divergence import Divergence
from headway.verification.conform.trace import RankTrace

_A_PASS = 1 << 20  # more messages than any table sends on one channel in one pass


@dataclass(frozen=True)
class Ends:
    """The messages at one end of a channel: the receiver's pass of each, and where in the trace it is."""

    keys: NDArray[np.int64]
    records: NDArray[np.int64]


def unmatched(protocol: Protocol, traces: Sequence[RankTrace]) -> Iterator[Divergence]:
    """Every message that the two ends of a channel do not agree on."""
    ranks = len(traces)
    for channel in protocol.channels if ranks > 1 else ():
        for source in range(ranks - 1) if channel.path == "forward" else (ranks - 1,):
            yield from _compare(channel, traces[source], traces[(source + 1) % ranks])


def _compare(channel: Channel, source: RankTrace, sink: RankTrace) -> Iterator[Divergence]:
    header = source.header
    lag = static_value(channel.lag, {"P": header.ranks, "L": header.slots, "R": header.rank})
    posts = _ends(source, Post, channel.name, lag, np.ones(len(source), dtype=np.bool_))
    receives = _ends(sink, Receive, channel.name, 0, sink.done)
    _, left, right = np.intersect1d(posts.keys, receives.keys, assume_unique=True, return_indices=True)
    width = len(channel.fields)
    sent = source.fields[posts.records[left], :width]
    got = sink.fields[receives.records[right], :width]
    for index in np.flatnonzero((sent != got).any(axis=1))[:1]:
        record = int(receives.records[right[index]])
        names = [name for name, _ in channel.fields]
        yield _divergence(
            sink,
            record,
            f"what rank {header.rank} posted: {dict(zip(names, sent[index].tolist(), strict=True))}",
            str(dict(zip(names, got[index].tolist(), strict=True))),
        )
    yield from _never_posted(channel, lag, source, sink, posts, receives)
    yield from _never_received(channel, lag, source, sink, posts, receives)


def _ends(trace: RankTrace, kind: type[Post] | type[Receive], channel: str, lag: int, here: NDArray[np.bool_]) -> Ends:
    rows = [
        index
        for index, row in enumerate(trace.role.rows)
        if isinstance(row.operation, kind) and row.operation.channel == channel
    ]
    records = np.flatnonzero(np.isin(trace.rows, rows) & here)
    passes = trace.passes[records] + lag
    starts = np.concatenate(([True], passes[1:] != passes[:-1])) if len(passes) else np.zeros(0, dtype=np.bool_)
    positions = np.arange(len(passes))
    occurrence = positions - np.maximum.accumulate(np.where(starts, positions, 0)) if len(passes) else positions
    return Ends(passes * _A_PASS + occurrence, records)


def _first_whole_pass(trace: RankTrace) -> int:
    return int(trace.passes[0]) + 1 if trace.wrapped else 0


def _never_posted(
    channel: Channel, lag: int, source: RankTrace, sink: RankTrace, posts: Ends, receives: Ends
) -> Iterator[Divergence]:
    known = receives.keys >= (_first_whole_pass(source) + lag) * _A_PASS
    for index in np.flatnonzero(known & ~np.isin(receives.keys, posts.keys))[:1]:
        expected = f"a post of {channel.name!r} by rank {source.header.rank} in its pass "
        expected += str(int(receives.keys[index]) // _A_PASS - lag)
        yield _divergence(sink, int(receives.records[index]), expected, "none")


def _never_received(
    channel: Channel, lag: int, source: RankTrace, sink: RankTrace, posts: Ends, receives: Ends
) -> Iterator[Divergence]:
    """A post is left over when the receiver has gone past the pass that should have taken it, or has ended."""
    if not len(sink):
        return
    past = (int(sink.passes[-1]) + (1 if sink.ended else 0)) * _A_PASS
    known = (posts.keys < past) & (posts.keys >= _first_whole_pass(sink) * _A_PASS)
    for index in np.flatnonzero(known & ~np.isin(posts.keys, receives.keys))[:1]:
        expected = f"its receipt by rank {sink.header.rank} in its pass {int(posts.keys[index]) // _A_PASS}"
        gone = np.flatnonzero(sink.passes > int(posts.keys[index]) // _A_PASS)
        evident = int(sink.times[gone[0] if len(gone) else -1])
        yield replace(_divergence(source, int(posts.records[index]), expected, "none"), time_ns=evident)


def _divergence(trace: RankTrace, record: int, expected: str, found: str) -> Divergence:
    row = trace.role.rows[int(trace.rows[record])].name
    return Divergence(trace.header.rank, int(trace.passes[record]), row, expected, found, int(trace.times[record]))
