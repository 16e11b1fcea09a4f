"""The next tokens, greedy or drawn, with the very random bits of `kernels/sampling.py` and no wait for the host.

A first kernel, of many programs a row, finds the largest score of each block; where there is no filter, that with the
random part. A second, of one program a row, joins them, and filters:

- The kth largest of the largest scores of small blocks is no larger than the kth largest score. So the few tokens from
  there on hold all that top-k keeps, and most often all that top-p keeps: thresholds and draw look at those alone.
- Where they are too many, or have too little probability, it draws from all tokens. The draw stands if it is kept,
  since then it is also the best of the kept. To know, one pass counts the tokens with larger scores and their
  probability. If it is not kept, nor is any token with a lower score; the draw repeats among those above, and ends
  since the likeliest token is always kept.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from headway.kernels.base import SamplingBatch
from headway.kernels.triton_ops.draws import gumbel, order_of
from headway.kernels.triton_ops.search import above, best_above, top_k_weight

_BLOCK = 4096  # tokens of a program of the first kernel
_SCAN = 2048  # tokens that a program of the second looks at together
_PART = 256  # tokens of a small block
_NUCLEUS = 256  # tokens looked for where top-p alone limits them, at least
_CANDIDATES = 2048  # at most


@triton.jit
def _is_limited(top_ks, top_ps, row, vocabulary):
    top_k = tl.load(top_ks + row)
    return ((top_k > 0) & (top_k < vocabulary)) | (tl.load(top_ps + row) < 1)


@triton.jit
def _best_of_block(
    logits, temperatures, top_ks, top_ps, seeds, positions, best, winners, highest, totals, stride, vocabulary, blocks,
    BLOCK: tl.constexpr, PART: tl.constexpr, RANDOM: tl.constexpr, FILTERED: tl.constexpr,
):  # fmt: skip
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocabulary
    score = tl.load(logits + row * stride + token, mask=inside, other=float("-inf")).to(tl.float32)
    if RANDOM:
        temperature = tl.load(temperatures + row)
        if temperature > 0:
            score = tl.div_rn(score, temperature)
            limited = False
            if FILTERED:
                limited = _is_limited(top_ks, top_ps, row, vocabulary)
            if limited:
                parts = tl.max(tl.reshape(score, (BLOCK // PART, PART)), 1)
                tl.store(highest + (row * blocks + block) * (BLOCK // PART) + tl.arange(0, BLOCK // PART), parts)
                peak = tl.max(parts, 0)
                weight = tl.exp(score - tl.where(peak == float("-inf"), 0.0, peak))
                tl.store(totals + row * blocks + block, tl.sum(weight, 0))
            else:
                score = score + gumbel(tl.load(seeds + row), tl.load(positions + row), token)
                score = tl.where(inside, score, float("-inf"))
    peak, index = tl.max(score, 0, return_indices=True)
    tl.store(best + row * blocks + block, peak)
    tl.store(winners + row * blocks + block, block * BLOCK + index)


@triton.jit
def _threshold(order, weight, bound):
    """The least int32 such that the weights of what orders above it sum to less than `bound`; at most the largest."""
    low, high = -2147483648, tl.max(order, 0)
    for _ in range(32):
        middle = (low & high) + ((low ^ high) >> 1)
        enough = tl.sum(tl.where(order > middle, weight, 0), 0) < bound
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high


@triton.jit
def _gather(
    line, temperature, part_order, floor, list_of_parts, candidates, vocabulary,
    PART: tl.constexpr, PARTS: tl.constexpr, GROUP: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Write the tokens whose scores order at or above `floor` to `candidates`, as many as fit; returns how many."""
    wanted = part_order >= floor
    turn_of_part = tl.cumsum(wanted.to(tl.int32), 0) - 1
    tl.store(list_of_parts + turn_of_part, tl.arange(0, PARTS), mask=wanted)
    tl.debug_barrier()
    count = tl.sum(wanted.to(tl.int32), 0)
    found = 0
    for start in range(0, count, GROUP):
        turn = start + tl.arange(0, GROUP)
        part = tl.load(list_of_parts + turn, mask=turn < count, other=0)
        token = tl.reshape(part[:, None] * PART + tl.arange(0, PART)[None, :], (GROUP * PART,))
        inside = tl.reshape(tl.broadcast_to((turn < count)[:, None], (GROUP, PART)), (GROUP * PART,))
        inside = inside & (token < vocabulary)
        raw = tl.load(line + token, mask=inside, other=float("-inf")).to(tl.float32)
        chosen = inside & (order_of(tl.div_rn(raw, temperature)) >= floor)
        place = found + tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(candidates + place, token, mask=chosen & (place < CANDIDATES))
        found += tl.sum(chosen.to(tl.int32), 0)
    tl.debug_barrier()
    return found


@triton.jit
def _draw_from_all(line, vocabulary, temperature, top_k, top_p, seed, position, shift, BLOCK: tl.constexpr):
    token = best_above(line, vocabulary, temperature, -2147483648, seed, position, BLOCK)
    rejected = True
    kept_weight = -1.0  # of the top_k, once it has been needed
    while rejected:
        score = tl.div_rn(tl.load(line + token).to(tl.float32), temperature)
        pivot = order_of(score)
        count, larger, total = above(line, vocabulary, temperature, pivot, shift, BLOCK)
        rejected = (count > 0) & (count >= top_k)
        if (count > 0) & (count < top_k) & (top_p < 1):
            # The weight of the top_k lies between that of this token with all above it, and that of all.
            if top_k == vocabulary:
                kept_weight = total
            sure = larger < top_p * (larger + tl.exp(score - shift))
            if (kept_weight < 0) & (larger < top_p * total) & (sure == 0):
                kept_weight = top_k_weight(line, vocabulary, temperature, top_k, pivot, shift, BLOCK)
            bound = tl.where(kept_weight < 0, total, kept_weight)
            rejected = (larger >= top_p * bound) & (sure == 0)
        if rejected:
            token = best_above(line, vocabulary, temperature, pivot, seed, position, BLOCK)
            # False only for a row with a NaN, which must not loop for ever.
            rejected = order_of(tl.div_rn(tl.load(line + token).to(tl.float32), temperature)) > pivot
    return token


@triton.jit
def _choose(
    logits, temperatures, top_ks, top_ps, seeds, positions, best, winners, highest, totals, lists, scratch, tokens,
    stride, vocabulary, blocks, parts,
    SCAN: tl.constexpr, BLOCKS: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, NUCLEUS: tl.constexpr,
    CANDIDATES: tl.constexpr, FILTERED: tl.constexpr,
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
        if (temperature > 0) & _is_limited(top_ks, top_ps, row, vocabulary):
            line = logits + row * stride
            seed, position = tl.load(seeds + row), tl.load(positions + row)
            top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
            top_k = tl.where((top_k > 0) & (top_k < vocabulary), top_k, vocabulary).to(tl.int32)

            # `peak` has the largest scores of blocks here, without a random part.
            shift = tl.max(peak, 0)
            scale = tl.where(peak == float("-inf"), 0.0, tl.exp(peak - shift))
            total = tl.sum(scale * tl.load(totals + row * blocks + block, mask=inside, other=0.0), 0)
            part = tl.arange(0, PARTS)
            part_best = tl.load(highest + row * parts + part, mask=part < parts, other=float("-inf"))
            part_order = order_of(part_best)
            wanted = tl.where(top_k == vocabulary, tl.minimum(NUCLEUS, parts), top_k)
            floor = _threshold(part_order, tl.full((PARTS,), 1, tl.int32), wanted)
            if vocabulary <= CANDIDATES:
                floor = -2147483648
            found = CANDIDATES + 1
            if (vocabulary <= CANDIDATES) | (wanted <= parts):
                found = _gather(
                    line, temperature, part_order, floor, lists + row * PARTS, scratch + row * CANDIDATES, vocabulary,
                    PART, PARTS, SCAN // PART, CANDIDATES,
                )  # fmt: skip

            settled = found <= CANDIDATES
            if settled:
                turn = tl.arange(0, CANDIDATES)
                valid = turn < found
                candidate = tl.load(scratch + row * CANDIDATES + turn, mask=valid, other=0)
                raw = tl.load(line + candidate, mask=valid, other=float("-inf")).to(tl.float32)
                score = tl.div_rn(raw, temperature)
                order = tl.where(valid, order_of(score), -2147483648)
                floor = _threshold(order, valid.to(tl.int32), top_k)
                weight = tl.where(valid & (order >= floor), tl.exp(score - shift), 0.0)
                kept_weight = tl.sum(weight, 0)
                if top_p < 1:
                    bound = top_p * tl.where(top_k == vocabulary, total, kept_weight)
                    settled = kept_weight >= bound
                    floor = tl.maximum(floor, _threshold(order, weight, bound))
                chosen = valid & (order >= floor)
                perturbed = tl.where(chosen, score + gumbel(seed, position, candidate), float("-inf"))
                winner = tl.where(chosen & (perturbed == tl.max(perturbed, 0)), candidate, vocabulary - 1)
                token = tl.min(winner, 0)
            if settled == 0:
                token = _draw_from_all(line, vocabulary, temperature, top_k, top_p, seed, position, shift, SCAN)
    tl.store(tokens + row, token.to(tl.int64))


def sample(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """See `Kernels.sample`."""
    rows, vocabulary = logits.shape
    device = logits.device
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    blocks = triton.cdiv(vocabulary, _BLOCK)
    parts = blocks * (_BLOCK // _PART)
    most_blocks = max(2, triton.next_power_of_2(blocks))
    most_parts = most_blocks * (_BLOCK // _PART)
    best = torch.empty((rows, blocks), dtype=torch.float32, device=device)
    winners = torch.empty((rows, blocks), dtype=torch.int32, device=device)
    highest = totals = best
    lists = scratch = winners
    if sampling.filtered:
        highest = torch.empty((rows, parts), dtype=torch.float32, device=device)
        totals = torch.empty_like(best)
        lists = torch.empty((rows, most_parts), dtype=torch.int32, device=device)
        scratch = torch.empty((rows, _CANDIDATES), dtype=torch.int32, device=device)
    if not rows:
        return tokens
    _best_of_block[(rows, blocks)](
        logits, sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed, sampling.position,
        best, winners, highest, totals, logits.stride(0), vocabulary, blocks,
        _BLOCK, _PART, sampling.random, sampling.filtered, num_warps=8,
    )  # fmt: skip
    _choose[(rows,)](
        logits, sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed, sampling.position,
        best, winners, highest, totals, lists, scratch, tokens, logits.stride(0), vocabulary, blocks, parts,
        _SCAN, most_blocks, _PART, most_parts, _NUCLEUS, _CANDIDATES, sampling.filtered,
        num_warps=8 if sampling.filtered else 1,
    )  # fmt: skip
    return tokens
