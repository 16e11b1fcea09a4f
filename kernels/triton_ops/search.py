"""Searches over a whole row of logits by one program: right for every row, and slow."""

from __future__ import annotations

import triton
import triton.language as tl

from headway.kernels.triton_ops.draws import gumbel, order_of, scores_of


@triton.jit
def above(logits, vocabulary, temperature, pivot, shift, BLOCK: tl.constexpr):
    """How many tokens order above `pivot`, their weight exp(score - shift), and that of all tokens."""
    count = tl.zeros((BLOCK,), tl.int32)
    weight = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        score = scores_of(logits, start + tl.arange(0, BLOCK), vocabulary, temperature)
        part = tl.exp(score - shift)
        larger = order_of(score) > pivot
        count += larger.to(tl.int32)
        weight += tl.where(larger, part, 0.0)
        total += part
    return tl.sum(count, 0), tl.sum(weight, 0), tl.sum(total, 0)


@triton.jit
def count_above(logits, vocabulary, temperature, pivot, BLOCK: tl.constexpr):
    count = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocabulary, BLOCK):
        score = scores_of(logits, start + tl.arange(0, BLOCK), vocabulary, temperature)
        count += (order_of(score) > pivot).to(tl.int32)
    return tl.sum(count, 0)


@triton.jit
def top_k_weight(logits, vocabulary, temperature, top_k, pivot, shift, BLOCK: tl.constexpr):
    """The weight of the `top_k` largest scores and of their ties, when fewer than `top_k` order above `pivot`."""
    # Invariant: fewer than top_k order above `high`, and at least top_k above `low`, once `bracketed`.
    high, low = pivot, pivot
    step = 1 << 16
    count = 0
    while count < top_k:
        high = low
        low = tl.where(high > -2147483648 + step, high - step, -2147483648)
        # Every score orders above the smallest int32, so this ends where top_k is at most the vocabulary.
        count = count_above(logits, vocabulary, temperature, low, BLOCK)
        step = tl.where(step < (1 << 29), step * 2, step)
    while (count != top_k) & (low + 1 < high):
        middle = (low & high) + ((low ^ high) >> 1)
        seen = count_above(logits, vocabulary, temperature, middle, BLOCK)
        enough = seen >= top_k
        low = tl.where(enough, middle, low)
        count = tl.where(enough, seen, count)
        high = tl.where(enough, high, middle)
    _, weight, _ = above(logits, vocabulary, temperature, low, shift, BLOCK)
    return weight


@triton.jit
def best_above(logits, vocabulary, temperature, pivot, seed, position, BLOCK: tl.constexpr):
    """The token with the largest Gumbel score of those whose score orders above `pivot`."""
    peak = tl.full((BLOCK,), float("-inf"), tl.float32)
    winner = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocabulary, BLOCK):
        token = start + tl.arange(0, BLOCK)
        score = scores_of(logits, token, vocabulary, temperature)
        perturbed = tl.where(order_of(score) > pivot, score + gumbel(seed, position, token), float("-inf"))
        better = perturbed > peak
        peak = tl.where(better, perturbed, peak)
        winner = tl.where(better, token, winner)
    top = tl.max(peak, 0)
    return tl.min(tl.where(peak == top, winner, vocabulary - 1), 0)
