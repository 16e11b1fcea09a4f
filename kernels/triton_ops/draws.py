"""Scores that can be searched, and the random bits of `kernels/sampling.py`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mix64(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _mix32(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def random_bits(seed, position, token):
    """31 bits for each of `token`, int32 [n], of the row with this `seed` and `position`, int64."""
    step = (position + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    key = _mix64(seed.to(tl.uint64) + step)
    low, high = (key & 0xFFFFFFFF).to(tl.uint32), (key >> 32).to(tl.uint32)
    return _mix32(_mix32((token.to(tl.uint32) * 0x9E3779B1) ^ low) + high) & 0x7FFFFFFF


@triton.jit
def gumbel(seed, position, token):
    """-log of an exponential variate; `exponential_variates` in `kernels/sampling.py` says why each constant."""
    uniform = random_bits(seed, position, token).to(tl.float32) * (2.0**-31) + (2.0**-32)
    uniform = tl.minimum(uniform, 1 - 2.0**-24)
    # -log1p(-uniform), exact where 1 - uniform is not.
    rest = 1 - uniform
    variate = tl.where(rest == 1, uniform, -tl.log(rest) * (uniform / (1 - rest)))
    return -tl.log(variate)


@triton.jit
def order_of(score):
    """An int32 that orders as `score` does, without a NaN; 0 and -0 are equal."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def scores_of(logits, token, vocabulary, temperature):
    raw = tl.load(logits + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    return tl.div_rn(raw, temperature)
