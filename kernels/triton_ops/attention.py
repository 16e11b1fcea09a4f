"""Attention over paged keys and values: one kernel for prompts and decodes, and one that joins split contexts.

The rows of a tile are the queries of consecutive tokens of one sequence, for all the heads that share a key head, so
that each key is read once for all of them. Long contexts of decodes are split over several programs (flash decoding).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headway.kernels.base import AttentionShape


@triton.jit(do_not_specialize=["splits"])
def _paged_attention(
    queries, keys, values, out, partial, peaks, tiles, page_starts, pages, scale, page_stride, slot_stride, splits,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr, SPLIT: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence = tl.load(tiles + tile * 4)
    first_row = tl.load(tiles + tile * 4 + 1)
    count = tl.load(tiles + tile * 4 + 2)
    first_position = tl.load(tiles + tile * 4 + 3)
    page_start = tl.load(page_starts + sequence)

    row, lane = tl.arange(0, ROWS), tl.arange(0, DIM)
    token = row // GROUP
    live = (token < count)[:, None] & (lane < HEAD_DIM)[None, :]
    head_row = (first_row + token).to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + row % GROUP
    query = tl.load(queries + head_row[:, None] * HEAD_DIM + lane[None, :], mask=live, other=0.0)
    position = first_position + token

    end = first_position + count
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(first_position - WINDOW + 1, 0)
    if SPLIT:
        span = tl.cdiv(tl.cdiv(end - begin, splits), BLOCK) * BLOCK
        begin += split * span
        end = tl.minimum(begin + span, end)

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
    if SPLIT:
        index = head_row * splits + split
        tl.store(partial + index[:, None] * HEAD_DIM + lane[None, :], result, mask=live)
        tl.store(peaks + index, peak + tl.log2(total), mask=token < count)
    else:
        place = out + head_row[:, None] * HEAD_DIM + lane[None, :]
        tl.store(place, result.to(out.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["splits"])
def _combine_splits(
    partial, peaks, tiles, out, splits, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr,
    DIM: tl.constexpr,
):  # fmt: skip
    row = tl.load(tiles + tl.program_id(0) * 4 + 1).to(tl.int64) * HEADS + tl.program_id(1)
    split, lane = tl.arange(0, SPLITS), tl.arange(0, DIM)
    inside = split < splits
    peak = tl.load(peaks + row * splits + split, mask=inside, other=float("-inf"))
    weight = tl.exp2(peak - tl.max(peak, 0))
    part = tl.load(
        partial + (row * splits + split)[:, None] * HEAD_DIM + lane[None, :],
        mask=inside[:, None] & (lane < HEAD_DIM)[None, :],
        other=0.0,
    )
    result = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + row * HEAD_DIM + lane, result.to(out.dtype.element_ty), mask=lane < HEAD_DIM)


def paged_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    tiles: Tensor,
    page_starts: Tensor,
    pages: Tensor,
    shape: AttentionShape,
    tokens: int,
    splits: int,
) -> None:
    """Attend for the tokens of `tiles` and write their rows of `out` [T, H, D]; `queries` likewise, both contiguous.

    `tiles` [n, 4] int32 has a sequence, a first row of `queries`, a count of rows, at most `tokens`, and the position
    of the first. `pages` [total] int32 has the page lists one after another, `page_starts` [B + 1] int32 where each
    begins. With more than one of `splits`, each context is shared by so many programs; then `tokens` must be 1.
    """
    if keys.stride() != values.stride() or keys.stride()[2:] != (shape.head_dim, 1):
        raise ValueError(f"attention: strides of keys {keys.stride()} and values {values.stride()}")
    group = shape.heads // shape.kv_heads
    count = tiles.numel() // 4
    rows = max(16, triton.next_power_of_2(tokens * group))
    dim = max(16, triton.next_power_of_2(shape.head_dim))
    wide = shape.dtype == torch.float32
    block = 32 if wide else 64
    partial = peaks = out
    # Triton's interpreter on the CPU multiplies the bits of bfloat16 as integers, hence the last constant below.
    if splits > 1:
        partial = torch.empty((queries.shape[0], shape.heads, splits, shape.head_dim), device=out.device)
        peaks = torch.empty((queries.shape[0], shape.heads, splits), device=out.device)
    if not count:
        return
    _paged_attention[(count, shape.kv_heads, splits)](
        queries, keys, values, out, partial, peaks, tiles, page_starts, pages,
        shape.head_dim**-0.5 * 1.4426950408889634, keys.stride(0), keys.stride(1), splits,
        group, shape.kv_heads, shape.head_dim, shape.page_size, shape.window or 0, rows, block, dim, splits > 1,
        "ieee" if wide else "tf32", out.device.type == "cpu", num_warps=4, num_stages=2 if rows > 16 else 3,
    )  # fmt: skip
    if splits > 1:
        combine_splits(partial, peaks, tiles, out, shape, splits)


def combine_splits(
    partial: Tensor, peaks: Tensor, tiles: Tensor, out: Tensor, shape: AttentionShape, splits: int
) -> None:
    """Join attention results `partial` [T, H, splits, D] by their base-2 log-sum-exps `peaks` [T, H, splits]."""
    _combine_splits[(tiles.numel() // 4, shape.heads)](
        partial, peaks, tiles, out, splits, shape.heads, shape.head_dim, triton.next_power_of_2(splits),
        triton.next_power_of_2(shape.head_dim), num_warps=2,
    )  # fmt: skip
