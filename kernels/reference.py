"""The reference backend: plain torch, any device and dtype, and quick enough on a CPU to serve a small model."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.kernels.base import AttentionPlan, AttentionShape, GraphPlan, Kernels, SamplingBatch
from headway.kernels.padding import pad_decodes
from headway.kernels.sampling import sample_tokens

ONEDNN = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Decodes:
    """Sequences with one query each and contexts of similar length, attended in one call."""

    rows: Tensor  # [b] int64, their tokens
    pages: Tensor  # [b * n] int64
    context: int  # the longest
    mask: Tensor | None  # [b, 1, 1, context], True where a key is seen; None when all are


@dataclass(frozen=True)
class _Chunk:
    """One sequence with several queries."""

    begin: int
    end: int
    pages: Tensor  # [n] int64
    context: int
    mask: Tensor | None  # [queries, context]; None for the plain causal triangle


@dataclass(frozen=True)
class _Plan(AttentionPlan):
    shape: AttentionShape
    decodes: list[_Decodes] = field(default_factory=list)
    chunks: list[_Chunk] = field(default_factory=list)


class _GraphPlan(GraphPlan):
    """No graph can hold the reference; this lets code that fills graph batches run without a GPU."""

    def __init__(self, kernels: ReferenceKernels, batch: int, pages: int, shape: AttentionShape) -> None:
        self.batch, self._kernels, self._pages, self._shape = batch, kernels, pages, shape
        self.update(torch.empty(0, dtype=torch.int64), torch.empty((0, 1), dtype=torch.int64))

    def update(self, context_lengths: Tensor, block_tables: Tensor) -> None:
        contexts, tables = pad_decodes(self.batch, self._pages, context_lengths, block_tables, self._shape.page_size)
        self.inner = self._kernels.plan_attention(torch.arange(self.batch + 1), contexts, tables, self._shape)


class ReferenceKernels(Kernels):
    """See `Kernels`. Attention gathers the pages and calls torch's scaled_dot_product_attention."""

    name = "reference"
    graphs = False

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def embed(self, token_ids: Tensor, table: Tensor) -> Tensor:
        return table.index_select(0, token_ids)

    def pack(self, weight: Tensor) -> Tensor:
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and ONEDNN:
            packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
            return packed
        return weight

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.is_mkldnn:
            # oneDNN has good kernels for every x86 CPU; those of MKL, which F.linear calls, are half as fast on AMD.
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
            return product
        return F.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), (x.shape[-1],), weight.to(wide), eps).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual + x
        return self.rms_norm(total, weight, eps), total

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
        kv_heads, head_dim = keys.shape[2:]
        split = qkv.view(qkv.shape[0], -1, head_dim)
        heads = split.shape[1] - 2 * kv_heads
        turned, value = split[:, :-kv_heads], split[:, -kv_heads:]
        if norms is not None:
            query_norm, key_norm = (
                self.rms_norm(part, weight, eps)
                for part, weight in zip((turned[:, :heads], turned[:, heads:]), norms, strict=True)
            )
            turned = torch.cat((query_norm, key_norm), dim=1)
        angles = rotary.index_select(0, positions).to(torch.promote_types(qkv.dtype, torch.float32))
        cosine, sine = angles[:, None].chunk(2, dim=-1)
        first, second = turned.to(angles.dtype).chunk(2, dim=-1)
        turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(qkv.dtype)
        key, written = turned[:, heads:], write_slots >= 0
        if not written.all():
            key, value, write_slots = key[written], value[written], write_slots[written]
        keys.view(-1, kv_heads, head_dim).index_copy_(0, write_slots, key)
        values.view(-1, kv_heads, head_dim).index_copy_(0, write_slots, value)
        return turned[:, :heads]

    def plan_attention(
        self, query_starts: Tensor, context_lengths: Tensor, block_tables: Tensor, shape: AttentionShape
    ) -> AttentionPlan:
        plan = _Plan(shape)
        starts, contexts = query_starts.tolist(), context_lengths.tolist()
        decodes: dict[int, list[int]] = {}
        for sequence, context in enumerate(contexts):
            begin, end = starts[sequence], starts[sequence + 1]
            if end - begin == 1:
                # Lengths in one group differ at most twofold, which bounds the work spent on padding.
                decodes.setdefault((_pages(context, shape) - 1).bit_length(), []).append(sequence)
            elif end > begin:
                pages = block_tables[sequence, : _pages(context, shape)].to(self.device)
                mask = _chunk_mask(end - begin, context, shape.window, self.device)
                plan.chunks.append(_Chunk(begin, end, pages, context, mask))
        for group in decodes.values():
            longest = max(contexts[sequence] for sequence in group)
            index = torch.tensor(group)
            rows, lengths = query_starts[index], context_lengths[index]
            pages = block_tables[index, : _pages(longest, shape)].flatten()
            mask = _decode_mask(lengths, longest, shape.window)
            plan.decodes.append(
                _Decodes(
                    rows.to(self.device),
                    pages.to(self.device),
                    longest,
                    None if mask is None else mask.to(self.device),
                )
            )
        return plan

    def plan_graph(self, batch: int, pages: int, shape: AttentionShape) -> GraphPlan:
        return _GraphPlan(self, batch, pages, shape)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, out: Tensor | None = None
    ) -> Tensor:
        if isinstance(plan, _GraphPlan):
            plan = plan.inner
        if not isinstance(plan, _Plan):
            raise TypeError(f"attention plan of another backend: {type(plan).__name__}")
        result = torch.empty_like(queries) if out is None else out.view(queries.shape)
        for chunk in plan.chunks:
            seen, carried = (_gather(cache, chunk.pages, 1, chunk.context) for cache in (keys, values))
            attended = F.scaled_dot_product_attention(
                queries[chunk.begin : chunk.end].transpose(0, 1)[None],
                seen,
                carried,
                attn_mask=chunk.mask,
                is_causal=chunk.mask is None,
                enable_gqa=True,
            )
            result[chunk.begin : chunk.end] = attended[0].transpose(0, 1)
        for group in plan.decodes:
            batch = len(group.rows)
            seen, carried = (_gather(cache, group.pages, batch, group.context) for cache in (keys, values))
            # The query heads that share a key head become rows of one small matrix.
            query = queries.index_select(0, group.rows).view(batch, plan.shape.kv_heads, -1, plan.shape.head_dim)
            attended = F.scaled_dot_product_attention(query, seen, carried, attn_mask=group.mask)
            result.index_copy_(0, group.rows, attended.reshape(batch, plan.shape.heads, plan.shape.head_dim))
        return result.flatten(1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
        return (F.silu(gate) * up).to(gate_up.dtype)

    def sample(self, logits: Tensor, sampling: SamplingBatch) -> Tensor:
        return sample_tokens(logits, sampling)


def _pages(context: int, shape: AttentionShape) -> int:
    return -(-context // shape.page_size)


def _gather(cache: Tensor, pages: Tensor, batch: int, context: int) -> Tensor:
    """The first `context` tokens of each of `batch` sequences: [batch, K, context, D]."""
    tokens = cache.index_select(0, pages).view(batch, -1, *cache.shape[2:])
    return tokens[:, :context].transpose(1, 2)


def _chunk_mask(queries: int, context: int, window: int | None, device: torch.device) -> Tensor | None:
    if queries == context and (window is None or window >= context):
        return None
    mask = torch.ones(queries, context, dtype=torch.bool, device=device).tril_(context - queries)
    return mask if window is None else mask.triu_(context - queries - window + 1)


def _decode_mask(lengths: Tensor, longest: int, window: int | None) -> Tensor | None:
    if bool((lengths == longest).all()) and (window is None or window >= longest):
        return None
    key = torch.arange(longest)[None]
    mask = key < lengths[:, None]
    if window is not None:
        mask &= key >= lengths[:, None] - window
    return mask[:, None, None]
