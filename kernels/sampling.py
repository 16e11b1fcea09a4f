"""Random draws that depend on nothing but (seed, position, token): a counter-based hash instead of a generator."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.kernels.base import SamplingBatch

_CANDIDATES = 256  # sorted first when looking for a top-p threshold; rows that need more are sorted in full


def sample_tokens(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """Reference for `Kernels.sample`."""
    greedy = logits.argmax(-1)
    if not sampling.random:
        return greedy
    rows = sampling.temperature.gt(0).nonzero().squeeze(1)
    scores = logits[rows].float() / sampling.temperature[rows, None]
    if sampling.filtered:
        limit = candidate_threshold(scores, sampling.top_k[rows], sampling.top_p[rows])
        scores.masked_fill_(scores < limit[:, None], -torch.inf)
    # Gumbel's trick: argmax(log p - log E) draws from p when each E is an independent exponential variate.
    scores -= exponential_variates(sampling.seed[rows], sampling.position[rows], logits.shape[-1]).log_()
    return greedy.index_copy(0, rows, scores.argmax(-1))


def candidate_threshold(scores: Tensor, top_k: Tensor, top_p: Tensor, count: int = _CANDIDATES) -> Tensor:
    """The smallest score [S] that top-k then top-p keep in each row of `scores` [S, vocabulary].

    Sorts `count` candidates first, and all of them for the rows where those have too little probability.
    """
    vocabulary = scores.shape[-1]
    count = min(vocabulary, max(count, int(top_k.max())))
    ordered = scores.topk(count).values
    last = top_k.clamp(1, count) - 1
    kth = torch.where(top_k > 0, ordered.gather(1, last[:, None]).squeeze(1), -torch.inf)
    nucleus = top_p < 1
    if not nucleus.any():
        return kth
    total = scores.masked_fill(scores < kth[:, None], -torch.inf).logsumexp(-1, keepdim=True)
    probability = (ordered.masked_fill(ordered < kth[:, None], -torch.inf) - total).exp()
    through = probability.cumsum(-1)
    kept = (through - probability < top_p[:, None]).sum(-1).clamp(min=1)  # while larger ones have less than top_p
    pth = ordered.gather(1, (kept - 1)[:, None]).squeeze(1)
    threshold = torch.where(nucleus, torch.maximum(pth, kth), kth)
    short = nucleus & (through[:, -1] < top_p) & (ordered[:, -1] > kth)
    if count < vocabulary and short.any():
        threshold[short] = candidate_threshold(scores[short], top_k[short], top_p[short], vocabulary)
    return threshold


def exponential_variates(seed: Tensor, position: Tensor, vocabulary: int) -> Tensor:
    """[S, vocabulary] float32 exponential variates, a function of (seed, position, token) alone."""
    key = _mix64(seed + (position + 1) * -7046029254386353131)  # 2**64 / golden ratio, as SplitMix64 steps
    low, high = key.to(torch.int32)[:, None], (key >> 32).to(torch.int32)[:, None]
    token = torch.arange(vocabulary, dtype=torch.int32, device=seed.device)[None]
    bits = _mix32(_mix32(token * -1640531535 ^ low) + high) & 0x7FFFFFFF
    # In (0, 1): small values keep their relative precision, and 1, whose logarithm would be infinite, is left out.
    uniform = (bits.float() * 2.0**-31 + 2.0**-32).clamp_(max=1 - 2.0**-24)
    return uniform.neg_().log1p_().neg_()


def _mix32(x: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finaliser on int32 with wrap-around; the masks make the shifts logical."""
    x = x ^ (x >> 16 & 0xFFFF)
    x = x * -2048144789
    x ^= x >> 13 & 0x7FFFF
    x *= -1028477387
    x ^= x >> 16 & 0xFFFF
    return x


def _mix64(x: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 with wrap-around."""
    x = (x ^ (x >> 30 & 2**34 - 1)) * -4658895280553007687
    x = (x ^ (x >> 27 & 2**37 - 1)) * -7723592293110705685
    return x ^ (x >> 31 & 2**33 - 1)
