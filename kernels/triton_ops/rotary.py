"""Per-head norms, rotation and the write of keys and values to their pages, in one pass over the QKV projection."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rope_write(
    qkv, positions, rotary, write_slots, keys, values, query_weight, key_weight, queries,
    qkv_stride, page_stride, slot_stride, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    HALF: tl.constexpr, BLOCK_HEADS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    lane = tl.arange(0, HALF)
    half = HEAD_DIM // 2
    is_query, is_turned = (head < HEADS)[:, None], (head < HEADS + KV_HEADS)[:, None]
    in_dim = (lane < half)[None, :]
    live = (head < HEADS + 2 * KV_HEADS)[:, None] & in_dim
    place = qkv + token * qkv_stride + head[:, None] * HEAD_DIM + lane[None, :]
    first = tl.load(place, mask=live, other=0.0).to(tl.float32)
    second = tl.load(place + half, mask=live, other=0.0).to(tl.float32)
    if NORM:
        scale = 1 / tl.sqrt(tl.sum(first * first + second * second, 1) / HEAD_DIM + eps)[:, None]
        low = tl.where(
            is_query,
            tl.load(query_weight + lane, mask=lane < half, other=0.0).to(tl.float32)[None, :],
            tl.load(key_weight + lane, mask=lane < half, other=0.0).to(tl.float32)[None, :],
        )
        high = tl.where(
            is_query,
            tl.load(query_weight + half + lane, mask=lane < half, other=0.0).to(tl.float32)[None, :],
            tl.load(key_weight + half + lane, mask=lane < half, other=0.0).to(tl.float32)[None, :],
        )
        first = tl.where(is_turned, first * scale * low, first)
        second = tl.where(is_turned, second * scale * high, second)
    angles = rotary + tl.load(positions + token) * HEAD_DIM + lane
    cosine = tl.where(is_turned, tl.load(angles, mask=lane < half, other=1.0)[None, :], 1.0)
    sine = tl.where(is_turned, tl.load(angles + half, mask=lane < half, other=0.0)[None, :], 0.0)
    left = (first * cosine - second * sine).to(queries.dtype.element_ty)
    right = (second * cosine + first * sine).to(queries.dtype.element_ty)

    place = queries + (token * HEADS + head[:, None]) * HEAD_DIM + lane[None, :]
    tl.store(place, left, mask=is_query & in_dim)
    tl.store(place + half, right, mask=is_query & in_dim)
    slot = tl.load(write_slots + token)
    if slot >= 0:
        row = (slot // PAGE_SIZE) * page_stride + (slot % PAGE_SIZE) * slot_stride
        is_key = is_turned & (head >= HEADS)[:, None] & in_dim
        place = keys + row + (head - HEADS)[:, None] * HEAD_DIM + lane[None, :]
        tl.store(place, left, mask=is_key)
        tl.store(place + half, right, mask=is_key)
        is_value = (head >= HEADS + KV_HEADS)[:, None] & live
        place = values + row + (head - HEADS - KV_HEADS)[:, None] * HEAD_DIM + lane[None, :]
        tl.store(place, left, mask=is_value)
        tl.store(place + half, right, mask=is_value)


def rope_write(
    qkv: Tensor,
    positions: Tensor,
    rotary: Tensor,
    write_slots: Tensor,
    keys: Tensor,
    values: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """See `Kernels.rope_write`. `keys` and `values` have equal strides, and heads side by side within a token."""
    tokens, width = qkv.shape
    page_size, kv_heads, head_dim = keys.shape[1:]
    heads = width // head_dim - 2 * kv_heads
    if keys.stride() != values.stride() or keys.stride()[2:] != (head_dim, 1):
        raise ValueError(f"rope_write: strides of keys {keys.stride()} and values {values.stride()}")
    queries = torch.empty((tokens, heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    query_weight, key_weight = (qkv, qkv) if norms is None else norms
    # Many tokens fill the device by themselves; few are spread over more programs.
    block = 8 if tokens >= 64 else 2
    if tokens:
        _rope_write[(tokens, triton.cdiv(heads + 2 * kv_heads, block))](
            qkv, positions, rotary, write_slots, keys, values, query_weight, key_weight, queries,
            qkv.stride(0), keys.stride(0), keys.stride(1), eps,
            heads, kv_heads, head_dim, page_size, triton.next_power_of_2(head_dim // 2), block, norms is not None,
            num_warps=4 if block == 8 else 1,
        )  # fmt: skip
    return queries
