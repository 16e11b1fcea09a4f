"""The operations every backend offers, with their shapes: T tokens, S sampled rows, B sequences, H query heads,
K key/value heads, D head size. Tensors are contiguous and on one device unless said otherwise."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor


class AttentionShape(msgspec.Struct, frozen=True):
    """What attention must know beside its tensors. A `window` of w lets a query see itself and w - 1 tokens before."""

    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype
    window: int | None = None


class AttentionPlan:
    """What a backend prepares once a pass for `Kernels.attend` in every layer. Opaque to callers."""


class GraphPlan(AttentionPlan, abc.ABC):
    """A plan with static buffers for `batch` sequences of one query each: row b of the queries is sequence b's.

    `Kernels.attend` with it can be captured in a CUDA graph; `update` before each replay says what the replay attends
    to. Until the first `update` every row is padding, so that capturing needs no real batch.
    """

    batch: int

    @abc.abstractmethod
    def update(self, context_lengths: Tensor, block_tables: Tensor) -> None:
        """Plan in place for b <= `batch` sequences, from int64 tensors in host memory: [b] and [b, N].

        As in `Kernels.plan_attention`, but of graph rows b and up, padding, the result is arbitrary but finite where
        the cache is. Enqueues its copies on the current stream, the one that replays; never waits for the device,
        unless so many updates are under way that none of their staging buffers is free. The arguments may be changed
        after it returns. Raises ValueError for more sequences or pages than were reserved.
        """


@dataclass(frozen=True)
class SamplingBatch:
    """Sampling parameters, one entry a sampled row, on the device of the logits.

    `temperature` [S] float32, 0 is greedy; `top_k` [S] int64, 0 is no limit; `top_p` [S] float32, 1 is no limit;
    `seed` [S] int64; `position` [S] int64 is the position that the sampled token will have in its sequence.
    `random` and `filtered` say whether any row samples, and whether any row limits its candidates: known on the
    host, so that no backend has to ask the device.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    position: Tensor
    random: bool
    filtered: bool

    @classmethod
    def of(
        cls,
        temperature: Sequence[float],
        top_k: Sequence[int],
        top_p: Sequence[float],
        seed: Sequence[int],
        position: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> SamplingBatch:
        """Make a batch from one number a row. Seeds of any size count modulo 2**64."""
        signed = [(s + 2**63) % 2**64 - 2**63 for s in seed]
        return cls(
            torch.tensor(temperature, dtype=torch.float32, device=device),
            torch.tensor(top_k, dtype=torch.int64, device=device),
            torch.tensor(top_p, dtype=torch.float32, device=device),
            torch.tensor(signed, dtype=torch.int64, device=device),
            torch.tensor(position, dtype=torch.int64, device=device),
            random=any(t > 0 for t in temperature),
            filtered=any(t > 0 and (k > 0 or p < 1) for t, k, p in zip(temperature, top_k, top_p, strict=True)),
        )


class Kernels(abc.ABC):
    """One backend. Computes in float32 (float64 for float64 inputs) and rounds once, to the input's dtype.

    Padding rows fill a batch up to the size of a graph: token 0 at position 0 with write slot -1, which writes
    nothing; their results are arbitrary, and sampling treats them as any row.
    """

    name: str
    graphs: bool
    """Whether a pass (embed to sample, with a `GraphPlan`) does device work only, so that a CUDA graph can hold it."""

    @abc.abstractmethod
    def embed(self, token_ids: Tensor, table: Tensor) -> Tensor:
        """Rows `token_ids` [T] of `table` [vocabulary, hidden]: [T, hidden]."""

    @abc.abstractmethod
    def pack(self, weight: Tensor) -> Tensor:
        """`weight` [out, in] in the layout that `linear` of this backend likes best; nothing else may read it."""

    @abc.abstractmethod
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x weight^T + bias for `x` [T, in], a packed `weight` and `bias` [out]: [T, out]."""

    @abc.abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension; `x` [T, hidden], `weight` [hidden]."""

    @abc.abstractmethod
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The new residual `residual + x`, rounded, and its RMS norm: (norm, residual), each [T, hidden].

        Both inputs may be overwritten. The norm is of the rounded sum, so that a stage that receives the sum from
        another rank computes the very same numbers.
        """

    @abc.abstractmethod
    def rope_write(
        self,
        qkv: Tensor,
        positions: Tensor,
        rotary: Tensor,
        write_slots: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
    ) -> Tensor:
        """Split `qkv`, norm and rotate the heads, write keys and values into their pages, return the queries [T, H, D].

        `qkv` [T, (H + 2K) * D]; `positions` [T] int64; `rotary` [positions, D] float32, cosines then sines of D/2
        angles each, applied to the two halves of a head (GPT-NeoX order); `write_slots` [T] int64, page * page size
        + offset, or -1 to write nothing; `keys`, `values` [pages, page size, K, D], written in place; `norms`, the
        [D] weights of the per-head RMS norms of queries and keys (Qwen3), or None. `qkv` may be overwritten.
        """

    @abc.abstractmethod
    def plan_attention(
        self, query_starts: Tensor, context_lengths: Tensor, block_tables: Tensor, shape: AttentionShape
    ) -> AttentionPlan:
        """Prepare attention for a ragged batch: sequence b has queries `query_starts[b]` up to `query_starts[b + 1]`,
        the last ones of its `context_lengths[b]` tokens, which lie in pages `block_tables[b]`.

        All three are int64 tensors in host memory, [B + 1], [B] and [B, N], so that planning reads them without
        a device synchronisation. Table entries past a sequence's last page are ignored but must be valid pages.
        Any order is right; sequences of one query before all others may be faster.
        """

    @abc.abstractmethod
    def plan_graph(self, batch: int, pages: int, shape: AttentionShape) -> GraphPlan:
        """A plan for graphs that decode `batch` sequences of up to `pages` pages each; see `GraphPlan`."""

    @abc.abstractmethod
    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, out: Tensor | None = None
    ) -> Tensor:
        """Causal softmax(q k^T / sqrt(D)) v over the planned pages: [T, H * D], in `out` if given, for [T, H, D]."""

    @abc.abstractmethod
    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(first half) * second half of `gate_up` [T, 2F]: [T, F]."""

    @abc.abstractmethod
    def sample(self, logits: Tensor, sampling: SamplingBatch) -> Tensor:
        """The next tokens [S] int64 for `logits` [S, vocabulary].

        Greedy rows take the first largest logit. Others divide by the temperature, keep the `top_k` largest, then
        the smallest set of largest ones whose probability among those kept reaches `top_p` (a token that ties with
        the last one kept is kept), and draw. The token depends on the row's (seed, position, logits) only.
        """
