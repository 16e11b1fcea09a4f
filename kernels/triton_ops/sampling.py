"""The next tokens, greedy or drawn, with the very random bits of `kernels/sampling.py` and no wait for the host.

Drawing has two passes. The first finds each row's largest Gumbel score over all tokens, spread over many programs.
If that token is among those that top-k and top-p keep, it is also the largest among them, so it is the draw. To know,
one pass counts the tokens with larger scores and their probability. If it is not kept, nor is any token with a lower
logit; the search repeats among those above, and ends since the likeliest token is always kept.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headway.kernels.base import SamplingBatch

_BLOCK = 4096


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
def _gumbel(seed, position, token):
    """-log of an exponential variate; `exponential_variates` in `kernels/sampling.py` says why each constant."""
    uniform = random_bits(seed, position, token).to(tl.float32) * (2.0**-31) + (2.0**-32)
    uniform = tl.minimum(uniform, 1 - 2.0**-24)
    # -log1p(-uniform), exact where 1 - uniform is not.
    rest = 1 - uniform
    variate = tl.where(rest == 1, uniform, -tl.log(rest) * (uniform / (1 - rest)))
    return -tl.log(variate)


@triton.jit
def _order(score):
    """An int32 that orders as `score` does, without a NaN; 0 and -0 are equal."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _scores(logits, token, vocabulary, temperature):
    raw = tl.load(logits + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    return tl.div_rn(raw, temperature)


@triton.jit
def _best_of_block(
    logits, temperatures, seeds, positions, best, winners, highest, stride, vocabulary, blocks,
    BLOCK: tl.constexpr, RANDOM: tl.constexpr, FILTERED: tl.constexpr,
):  # fmt: skip
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocabulary
    score = tl.load(logits + row * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    if RANDOM:
        temperature = tl.load(temperatures + row)
        if temperature > 0:
            score = tl.div_rn(score, temperature)
            if FILTERED:
                tl.store(highest + row * blocks + block, tl.max(score, 0))
            score = score + _gumbel(tl.load(seeds + row), tl.load(positions + row), token)
            score = tl.where(inside, score, float("-inf"))
    peak, index = tl.max(score, 0, return_indices=True)
    tl.store(best + row * blocks + block, peak)
    tl.store(winners + row * blocks + block, block * BLOCK + index)


@triton.jit
def _above(logits, vocabulary, temperature, pivot, shift, BLOCK: tl.constexpr):
    """How many tokens order above `pivot`, their weight exp(score - shift), and that of all tokens."""
    count = tl.zeros((BLOCK,), tl.int32)
    weight = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        score = _scores(logits, start + tl.arange(0, BLOCK), vocabulary, temperature)
        part = tl.exp(score - shift)
        larger = _order(score) > pivot
        count += larger.to(tl.int32)
        weight += tl.where(larger, part, 0.0)
        total += part
    return tl.sum(count, 0), tl.sum(weight, 0), tl.sum(total, 0)


@triton.jit
def _count_above(logits, vocabulary, temperature, pivot, BLOCK: tl.constexpr):
    count = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocabulary, BLOCK):
        score = _scores(logits, start + tl.arange(0, BLOCK), vocabulary, temperature)
        count += (_order(score) > pivot).to(tl.int32)
    return tl.sum(count, 0)


@triton.jit
def _top_k_weight(logits, vocabulary, temperature, top_k, pivot, shift, BLOCK: tl.constexpr):
    """The weight of the `top_k` largest scores and of their ties, when fewer than `top_k` order above `pivot`."""
    # Invariant: fewer than top_k order above `high`, and at least top_k above `low`, once `bracketed`.
    high, low = pivot, pivot
    step = 1 << 16
    count = 0
    while count < top_k:
        high = low
        low = tl.where(high > -2147483648 + step, high - step, -2147483648)
        # Every score orders above the smallest int32, so this ends where top_k is at most the vocabulary.
        count = _count_above(logits, vocabulary, temperature, low, BLOCK)
        step = tl.where(step < (1 << 29), step * 2, step)
    while (count != top_k) & (low + 1 < high):
        middle = (low & high) + ((low ^ high) >> 1)
        seen = _count_above(logits, vocabulary, temperature, middle, BLOCK)
        enough = seen >= top_k
        low = tl.where(enough, middle, low)
        count = tl.where(enough, seen, count)
        high = tl.where(enough, high, middle)
    _, weight, _ = _above(logits, vocabulary, temperature, low, shift, BLOCK)
    return weight


@triton.jit
def _best_above(logits, vocabulary, temperature, pivot, seed, position, BLOCK: tl.constexpr):
    """The token with the largest Gumbel score of those whose score orders above `pivot`."""
    peak = tl.full((BLOCK,), float("-inf"), tl.float32)
    winner = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocabulary, BLOCK):
        token = start + tl.arange(0, BLOCK)
        score = _scores(logits, token, vocabulary, temperature)
        perturbed = tl.where(_order(score) > pivot, score + _gumbel(seed, position, token), float("-inf"))
        better = perturbed > peak
        peak = tl.where(better, perturbed, peak)
        winner = tl.where(better, token, winner)
    top = tl.max(peak, 0)
    return tl.min(tl.where(peak == top, winner, vocabulary - 1), 0)


@triton.jit
def _choose(
    logits, temperatures, top_ks, top_ps, seeds, positions, best, winners, highest, tokens, stride, vocabulary, blocks,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, FILTERED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    inside = block < blocks
    peak = tl.load(best + row * blocks + block, mask=inside, other=float("-inf"))
    _, index = tl.max(peak, 0, return_indices=True)
    # In range even for a row of NaN.
    token = tl.minimum(tl.load(winners + row * blocks + tl.minimum(index, blocks - 1)), vocabulary - 1)
    if FILTERED:
        temperature = tl.load(temperatures + row)
        top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
        top_k = tl.where((top_k > 0) & (top_k < vocabulary), top_k, vocabulary).to(tl.int32)
        if (temperature > 0) & ((top_k < vocabulary) | (top_p < 1)):
            line = logits + row * stride
            shift = tl.max(tl.load(highest + row * blocks + block, mask=inside, other=float("-inf")), 0)
            seed, position = tl.load(seeds + row), tl.load(positions + row)
            rejected = True
            kept_weight = -1.0  # of the top_k, once it has been needed
            while rejected:
                pivot = _order(tl.div_rn(tl.load(line + token).to(tl.float32), temperature))
                count, above, total = _above(line, vocabulary, temperature, pivot, shift, BLOCK)
                rejected = (count > 0) & (count >= top_k)
                if (count > 0) & (count < top_k) & (top_p < 1):
                    # The weight of the top_k lies between that of this token with all above it, and that of all.
                    score = tl.div_rn(tl.load(line + token).to(tl.float32), temperature)
                    if top_k == vocabulary:
                        kept_weight = total
                    sure = above < top_p * (above + tl.exp(score - shift))
                    if (kept_weight < 0) & (above < top_p * total) & (sure == 0):
                        kept_weight = _top_k_weight(line, vocabulary, temperature, top_k, pivot, shift, BLOCK)
                    bound = tl.where(kept_weight < 0, total, kept_weight)
                    rejected = (above >= top_p * bound) & (sure == 0)
                if rejected:
                    token = _best_above(line, vocabulary, temperature, pivot, seed, position, BLOCK)
                    # False only for a row with a NaN, which must not loop for ever.
                    rejected = _order(tl.div_rn(tl.load(line + token).to(tl.float32), temperature)) > pivot
    tl.store(tokens + row, token.to(tl.int64))


def sample(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """See `Kernels.sample`."""
    rows, vocabulary = logits.shape
    device = logits.device
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    blocks = triton.cdiv(vocabulary, _BLOCK)
    best = torch.empty((rows, blocks), dtype=torch.float32, device=device)
    winners = torch.empty((rows, blocks), dtype=torch.int32, device=device)
    highest = torch.empty_like(best) if sampling.filtered else best
    if not rows:
        return tokens
    _best_of_block[(rows, blocks)](
        logits, sampling.temperature, sampling.seed, sampling.position, best, winners, highest,
        logits.stride(0), vocabulary, blocks, _BLOCK, sampling.random, sampling.filtered,
        num_warps=8,
    )  # fmt: skip
    _choose[(rows,)](
        logits, sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed, sampling.position,
        best, winners, highest, tokens, logits.stride(0), vocabulary, blocks, _BLOCK,
        max(2, triton.next_power_of_2(blocks)), sampling.filtered, num_warps=16 if sampling.filtered else 1,
    )  # fmt: skip
    return tokens
