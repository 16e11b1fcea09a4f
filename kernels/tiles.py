"""How Triton's attention shares out its work: page lists, and tiles of queries with the keys that they look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.kernels.triton_ops import BLOCK

_LEAST = 128  # the least part of a context that is worth a program of its own

Integers = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Batch:
    """A ragged batch on the host, with the page lists of its sequences one after another."""

    begins: Integers  # [B] first rows
    counts: Integers  # [B] rows
    contexts: Integers  # [B] tokens
    page_starts: Integers  # [B + 1] where each list begins
    pages: Integers  # [total]

    @classmethod
    def of(cls, query_starts: Tensor, context_lengths: Tensor, block_tables: Tensor, page_size: int) -> Batch:
        """From the arguments of `Kernels.plan_attention`."""
        starts, contexts, tables = query_starts.numpy(), context_lengths.numpy(), block_tables.numpy()
        used = -(-contexts // page_size)
        page_starts = np.zeros(len(contexts) + 1, dtype=np.int64)
        np.cumsum(used, out=page_starts[1:])
        pages = tables[np.arange(tables.shape[1]) < used[:, None]]
        return cls(starts[:-1], np.diff(starts), contexts, page_starts, pages)


def decode_tiles(batch: Batch, sequences: Integers, window: int | None, spare: int) -> tuple[Integers, Integers]:
    """Tiles and joins, flat, of `sequences` with one query each: at most `spare` tiles more than there are of those.

    Contexts are cut into parts of one length, so that even one long context keeps the whole device busy.
    """
    count = len(sequences)
    ends = batch.contexts[sequences]
    first = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)
    length = max(_LEAST, -(-int((ends - first).sum()) // spare))
    length = -(-length // BLOCK) * BLOCK
    parts = -(-(ends - first) // length)
    owner = np.repeat(np.arange(count), parts)
    part = np.arange(len(owner))
    starts = np.cumsum(parts) - parts
    begin = first[owner] + (part - starts[owner]) * length
    chosen = sequences[owner]
    ones = np.ones_like(owner)
    tiles = np.stack(
        (
            batch.page_starts[chosen],
            batch.begins[chosen],
            ones,
            ends[owner] - 1,
            begin,
            np.minimum(begin + length, ends[owner]),
            np.where(parts[owner] > 1, part, -1),
            ones,
        ),
        axis=1,
    )
    return tiles.ravel(), np.stack((batch.begins[sequences], starts, parts), axis=1).ravel()


def chunk_tiles(batch: Batch, sequences: Integers, window: int | None, tokens: int) -> Integers:
    """Tiles, flat, of up to `tokens` of the queries of `sequences`; those with the most keys first."""
    counts = batch.counts[sequences]
    pieces = -(-counts // tokens)
    owner = np.repeat(np.arange(len(sequences)), pieces)
    offset = (np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * tokens
    size = np.minimum(tokens, counts[owner] - offset)
    chosen = sequences[owner]
    position = batch.contexts[chosen] - counts[owner] + offset
    begin = np.zeros_like(position) if window is None else np.maximum(position - window + 1, 0)
    alone = np.full_like(position, -1)
    tiles = np.stack(
        (
            batch.page_starts[chosen],
            batch.begins[chosen] + offset,
            size,
            position,
            begin,
            position + size,
            alone,
            alone,
        ),
        axis=1,
    )
    return tiles[np.argsort(begin - position, kind="stable")].ravel()
