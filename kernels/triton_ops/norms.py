"""RMS norm, alone and after the addition to the residual."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(
    x, residual, weight, out, x_stride, residual_stride, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    live = column < SIZE
    value = tl.load(x + row * x_stride + column, mask=live, other=0.0)
    if ADD:
        place = residual + row * residual_stride + column
        total = tl.load(place, mask=live, other=0.0).to(tl.float32) + value.to(tl.float32)
        value = total.to(value.dtype)
        tl.store(place, value, mask=live)
    wide = value.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    normed = wide * scale * tl.load(weight + column, mask=live, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + column, normed.to(value.dtype), mask=live)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `Kernels.rms_norm`."""
    return _launch(x, x, weight, eps, add=False)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `Kernels.add_rms_norm`; the sum is written to `residual`."""
    return _launch(x, residual, weight, eps, add=True), residual


def _launch(x: Tensor, residual: Tensor, weight: Tensor, eps: float, add: bool) -> Tensor:
    rows, size = x.shape
    out = torch.empty((rows, size), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(size)
    if rows:
        # The same warps with and without the addition, so that both sum in one order and agree to the bit.
        _rms_norm[(rows,)](
            x, residual, weight, out, x.stride(0), residual.stride(0), eps, size, block, add,
            num_warps=min(16, max(1, block // 512)),
        )  # fmt: skip
    return out
