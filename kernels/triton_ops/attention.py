"""Attention over paged keys and values: one kernel for prompts and decodes, and one that joins split contexts.

The rows of a tile are the queries of consecutive tokens of one sequence, for all the heads that share a key head, so
that each key is read once for all of them. The context of a decode may be cut into parts, a tile each (flash decoding).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headway.kernels.base import AttentionShape

TILE = 8  # int32s of a tile: first page, first row, rows, position of the first row, key range, part or -1, unused
JOIN = 3  # int32s of a row that may have parts: the row, the first part, how many
BLOCK = 64  # keys a step; ranges of parts are multiples


@triton.jit
def _paged_attention(
    queries, keys, values, out, partial, peaks, tiles, pages, scale, page_stride, slot_stride,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr, SPLIT: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    tile, kv_head = tiles + tl.program_id(0) * 8, tl.program_id(1)
    page_start, first_row, count = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    first_position, begin, end = tl.load(tile + 3), tl.load(tile + 4), tl.load(tile + 5)

    row, lane = tl.arange(0, ROWS), tl.arange(0, DIM)
    token = row // GROUP
    live = (token < count)[:, None] & (lane < HEAD_DIM)[None, :]
    head = kv_head * GROUP + row % GROUP
    head_row = (first_row + token).to(tl.int64) * (KV_HEADS * GROUP) + head
    query = tl.load(queries + head_row[:, None] * HEAD_DIM + lane[None, :], mask=live, other=0.0)
    position = first_position + token

    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    summed = tl.zeros((ROWS, DIM), tl.float32)
    for start in range(begin, end, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < end
        page = tl.load(pages + page_start + place // PAGE_SIZE, mask=inside, other=0).to(tl.int64)
        slot = page * page_stride + (place % PAGE_SIZE) * slot_stride + kv_head * HEAD_DIM
        key = tl.load(
            keys + slot[None, :] + lane[:, None], mask=inside[None, :] & (lane < HEAD_DIM)[:, None], other=0.0
        )
        value = tl.load(
            values + slot[:, None] + lane[None, :], mask=inside[:, None] & (lane < HEAD_DIM)[None, :], other=0.0
        )
        if WIDEN:
            query, key, value = query.to(tl.float32), key.to(tl.float32), value.to(tl.float32)
        score = tl.dot(query, key, input_precision=PRECISION) * scale
        seen = inside[None, :] & (place[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (place[None, :] > position[:, None] - WINDOW)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen nothing yet
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(peak - base)
        total = total * shrink + tl.sum(weight, 1)
        summed = summed * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision=PRECISION)
        peak = higher

    result = summed / tl.where(total == 0.0, 1.0, total)[:, None]
    place = out + head_row[:, None] * HEAD_DIM + lane[None, :]
    if SPLIT:
        part = tl.load(tile + 6)
        if part < 0:
            tl.store(place, result.to(out.dtype.element_ty), mask=live)
        else:
            index = part * (KV_HEADS * GROUP) + head
            tl.store(partial + index[:, None] * HEAD_DIM + lane[None, :], result, mask=live)
            tl.store(peaks + index, peak + tl.log2(total), mask=token < count)
    else:
        tl.store(place, result.to(out.dtype.element_ty), mask=live)


@triton.jit
def _join_parts(
    partial, peaks, joins, out, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PARTS: tl.constexpr, DIM: tl.constexpr
):
    join, head = joins + tl.program_id(0) * 3, tl.program_id(1)
    row, first, count = tl.load(join).to(tl.int64), tl.load(join + 1), tl.load(join + 2)
    if count > 1:
        part, lane = tl.arange(0, PARTS), tl.arange(0, DIM)
        in_dim = lane < HEAD_DIM
        peak = tl.full((PARTS,), float("-inf"), tl.float32)
        for start in range(0, count, PARTS):
            inside = start + part < count
            index = (first + start + part) * HEADS + head
            peak = tl.maximum(peak, tl.load(peaks + index, mask=inside, other=float("-inf")))
        highest = tl.max(peak, 0)
        total = tl.zeros((PARTS,), tl.float32)
        summed = tl.zeros((PARTS, DIM), tl.float32)
        for start in range(0, count, PARTS):
            inside = start + part < count
            index = (first + start + part) * HEADS + head
            weight = tl.exp2(tl.load(peaks + index, mask=inside, other=float("-inf")) - highest)
            place = partial + index[:, None] * HEAD_DIM + lane[None, :]
            summed += weight[:, None] * tl.load(place, mask=inside[:, None] & in_dim[None, :], other=0.0)
            total += weight
        result = tl.sum(summed, 0) / tl.sum(total, 0)
        tl.store(out + (row * HEADS + head) * HEAD_DIM + lane, result.to(out.dtype.element_ty), mask=in_dim)


def paged_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    tiles: Tensor,
    joins: Tensor | None,
    pages: Tensor,
    shape: AttentionShape,
    tokens: int,
) -> None:
    """Attend for the tokens of `tiles` and write their rows of `out` [T, H, D]; `queries` likewise, both contiguous.

    `pages` [total] int32 has the page lists of all sequences. `tiles` [n, TILE] int32, each of at most `tokens` rows,
    says where the list of its sequence begins, and which keys to look at. `joins` [m, JOIN] int32 has the rows whose
    context may be in several tiles, one row each; part p of n has its result kept apart until all are joined. None
    where every tile is alone, as it must be with more than one row.
    """
    if keys.stride() != values.stride() or keys.stride()[2:] != (shape.head_dim, 1):
        raise ValueError(f"attention: strides of keys {keys.stride()} and values {values.stride()}")
    group = shape.heads // shape.kv_heads
    count = tiles.numel() // TILE
    rows = max(16, triton.next_power_of_2(tokens * group))
    dim = max(16, triton.next_power_of_2(shape.head_dim))
    wide = shape.dtype == torch.float32
    partial = peaks = out
    if joins is not None:
        partial = torch.empty((count, shape.heads, shape.head_dim), device=out.device)
        peaks = torch.empty((count, shape.heads), device=out.device)
    # Triton's interpreter on the CPU multiplies the bits of bfloat16 as integers, hence the last constant.
    _paged_attention[(count, shape.kv_heads)](
        queries, keys, values, out, partial, peaks, tiles, pages,
        shape.head_dim**-0.5 * 1.4426950408889634, keys.stride(0), keys.stride(1),
        group, shape.kv_heads, shape.head_dim, shape.page_size, shape.window or 0, rows, BLOCK // 2 if wide else BLOCK,
        dim, joins is not None, "ieee" if wide else "tf32", out.device.type == "cpu",
        num_warps=4, num_stages=2 if rows > 16 else 3,
    )  # fmt: skip
    if joins is not None:
        _join_parts[(joins.numel() // JOIN, shape.heads)](
            partial, peaks, joins, out, shape.heads, shape.head_dim, 8, dim, num_warps=2
        )
