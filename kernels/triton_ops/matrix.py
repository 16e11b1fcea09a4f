"""A matrix times few tokens, where all that counts is to read the matrix at full speed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["tokens"])
def _skinny_linear(
    x, weight, bias, out, tokens, x_stride, width, size,
    BLOCK_OUT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, BIAS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    row, lane = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    live, valid = (row < tokens)[None, :], (column < width)[:, None]
    # The matrix is the left operand, so that its rows fill the tensor cores and the tokens are the short side.
    total = tl.zeros((BLOCK_OUT, ROWS), tl.float32)
    weights = weight + column.to(tl.int64)[:, None] * size + lane[None, :]
    inputs = x + row[None, :] * x_stride + lane[:, None]
    for start in range(0, size, BLOCK):
        left = size - start
        part = tl.load(weights + start, mask=valid & (lane < left)[None, :], other=0.0)
        value = tl.load(inputs + start, mask=live & (lane < left)[:, None], other=0.0)
        if WIDEN:
            part, value = part.to(tl.float32), value.to(tl.float32)
        total = tl.dot(part, value, total)
    if BIAS:
        total += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[:, None]
    place = out + row[None, :] * width + column[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=live & valid)


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weight^T + bias for 16-bit `x` [T, in] of at most 16 tokens, contiguous `weight` [out, in] and `bias` [out]."""
    (tokens, size), width = x.shape, weight.shape[0]
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    # Many bytes in flight: the fastest of 14 shapes on an H200. Triton's interpreter on the CPU multiplies the bits
    # of bfloat16 as integers, hence the last constant.
    block_out = 64
    if tokens:
        _skinny_linear[(triton.cdiv(width, block_out),)](
            x, weight, weight if bias is None else bias, out, tokens, x.stride(0), width, size,
            block_out, 128, 16, bias is not None, x.device.type == "cpu", num_warps=4, num_stages=6,
        )  # fmt: skip
    return out
