"""Row gather and gated activation."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _embed(token_ids, table, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < SIZE
    token = tl.load(token_ids + row).to(tl.int64)
    tl.store(out + row * SIZE + column, tl.load(table + token * SIZE + column, mask=live), mask=live)


@triton.jit
def _silu_mul(gate_up, out, stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < SIZE
    gate = tl.load(gate_up + row * stride + column, mask=live, other=0.0)
    up = tl.load(gate_up + row * stride + SIZE + column, mask=live, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    tl.store(out + row * SIZE + column, (wide / (1 + tl.exp(-wide)) * up).to(gate.dtype), mask=live)


def embed(token_ids: Tensor, table: Tensor) -> Tensor:
    """See `Kernels.embed`; `table` is contiguous."""
    tokens, size = len(token_ids), table.shape[1]
    out = torch.empty((tokens, size), dtype=table.dtype, device=table.device)
    if tokens:
        _embed[(tokens, triton.cdiv(size, _BLOCK))](token_ids, table, out, size, _BLOCK, num_warps=4)
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `Kernels.silu_mul`."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    if tokens:
        _silu_mul[(tokens, triton.cdiv(size, _BLOCK))](gate_up, out, gate_up.stride(0), size, _BLOCK, num_warps=4)
    return out
