"""A batch laid out in host memory: numbers only, nothing of a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.engine.scheduling import Member

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """T tokens of B members, member after member; S of the members sample.

    `positions` and `write_slots` (page * page size + offset) are [T]; `query_starts` is [B + 1]; `context_lengths`,
    [B], counts tokens after this pass; `block_tables` is [B, N], padded with page 0; `samplers` [S] are members.
    """

    positions: Int64s
    write_slots: Int64s
    query_starts: Int64s
    context_lengths: Int64s
    block_tables: Int64s
    samplers: list[int]

    @property
    def tokens(self) -> int:
        return len(self.positions)

    @property
    def decodes(self) -> bool:
        """Whether every member has one token."""
        return len(self.positions) == len(self.context_lengths)

    @property
    def logit_rows(self) -> Int64s:
        """The tokens [S] whose logits are sampled from."""
        return self.query_starts[1:][self.samplers] - 1


def lay_out(members: Sequence[Member], page_size: int) -> Layout:
    """Where every token of a batch is, and what it may see."""
    size = len(members)
    counts = np.fromiter([member.count for member in members], np.int64, size)
    starts = np.fromiter([member.start for member in members], np.int64, size)
    query_starts = np.zeros(size + 1, np.int64)
    np.cumsum(counts, out=query_starts[1:])
    tokens = int(query_starts[-1])
    if tokens == size:
        owners, positions = np.arange(size), starts
    else:
        owners = np.repeat(np.arange(size), counts)
        positions = np.arange(tokens) + (starts - query_starts[:-1])[owners]
    lengths = np.fromiter([len(member.table) for member in members], np.int64, size)
    tables = np.zeros((size, int(lengths.max())), np.int64)
    # One copy of all tables, as bytes: a loop over their entries would cost more than all the rest.
    tables[np.arange(tables.shape[1]) < lengths[:, None]] = np.frombuffer(
        b"".join([m.table for m in members]), np.int64
    )
    slots = tables[owners, positions // page_size] * page_size + positions % page_size
    samplers = [row for row, member in enumerate(members) if member.samples]
    return Layout(positions, slots, query_starts, starts + counts, tables, samplers)
