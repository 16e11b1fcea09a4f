"""The Triton backend: our fused kernels, and cuBLAS for the matrices."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.kernels import triton_ops
from headway.kernels.base import AttentionPlan, AttentionShape, GraphPlan, Kernels, SamplingBatch
from headway.kernels.padding import pad_decodes
from headway.kernels.page_lists import Int32s, page_lists
from headway.kernels.staging import Staging

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST_SPLITS = 64
_SPLIT_TOKENS = 128  # the least context worth a program of its own


@dataclass(frozen=True)
class _Launch:
    """Tiles of one kind: one decode each, or up to `tokens` queries of a chunk each."""

    tiles: Tensor  # [n, 4] int32
    tokens: int
    splits: int


@dataclass(frozen=True)
class _Plan(AttentionPlan):
    shape: AttentionShape
    page_starts: Tensor
    pages: Tensor
    launches: list[_Launch]


class _GraphPlan(GraphPlan):
    def __init__(self, kernels: TritonKernels, batch: int, pages: int, shape: AttentionShape) -> None:
        self.batch, self._kernels, self._most, self._shape = batch, kernels, pages, shape
        # Static: what changes from update to update is one prefix, copied at once.
        self._buffer = torch.empty(batch + 1 + 4 * batch + batch * pages, dtype=torch.int32, device=kernels.device)
        page_starts, tiles, lists = torch.split(self._buffer, [batch + 1, 4 * batch, batch * pages])
        splits = kernels.splits(batch, pages * shape.page_size, shape)
        self.inner = _Plan(shape, page_starts, lists, [_Launch(tiles, 1, splits)])
        self.update(torch.empty(0, dtype=torch.int64), torch.empty((0, 1), dtype=torch.int64))

    def update(self, context_lengths: Tensor, block_tables: Tensor) -> None:
        shape = self._shape
        contexts, tables = pad_decodes(self.batch, self._most, context_lengths, block_tables, shape.page_size)
        starts, lists = page_lists(contexts, tables, shape.page_size)
        rows = np.arange(self.batch)
        tiles = np.stack((rows, rows, np.ones_like(rows), contexts.numpy() - 1), axis=1)
        packed = np.concatenate((starts, tiles.ravel(), lists), dtype=np.int32, casting="same_kind")
        self._kernels.staging.upload(packed, self._buffer)


class TritonKernels(Kernels):
    """See `Kernels`. float32, bfloat16 and float16, with sums in float32 throughout."""

    name = "triton"
    graphs = True

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = torch.device(device)
        if self.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError(f"kernels: backend {self.name!r} needs a CUDA device; got {str(self.device)!r}")
        self.staging = Staging(self.device)
        self._processors = 1
        if self.device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(self.device).multi_processor_count

    def embed(self, token_ids: Tensor, table: Tensor) -> Tensor:
        return triton_ops.embed(token_ids, table)

    def pack(self, weight: Tensor) -> Tensor:
        return weight

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return triton_ops.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return triton_ops.add_rms_norm(x, residual, weight, eps)

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
        return triton_ops.rope_write(qkv, positions, rotary, write_slots, keys, values, norms, eps)

    def plan_attention(
        self, query_starts: Tensor, context_lengths: Tensor, block_tables: Tensor, shape: AttentionShape
    ) -> AttentionPlan:
        _check(shape)
        starts, lists = page_lists(context_lengths, block_tables, shape.page_size)
        begins, contexts = query_starts.numpy(), context_lengths.numpy()
        counts = begins[1:] - begins[:-1]
        decodes, chunks = np.flatnonzero(counts == 1), np.flatnonzero(counts > 1)
        # Enough rows to use the tensor cores well; more would hold too much in registers.
        tokens = max(1, (32 if shape.dtype == torch.float32 else 64) // (shape.heads // shape.kv_heads))
        parts = [
            starts,
            lists,
            _tiles(decodes, begins, contexts, 1),
            _tiles(chunks, begins, contexts, tokens),
        ]
        device = torch.empty(sum(map(len, parts)), dtype=torch.int32, device=self.device)
        self.staging.upload(np.concatenate(parts), device)
        page_starts, pages, *tiles = torch.split(device, [len(part) for part in parts])
        longest = int(contexts[decodes].max()) if len(decodes) else 1
        splits = self.splits(len(decodes), longest, shape)
        launches = [_Launch(tiles[0], 1, splits), _Launch(tiles[1], tokens, 1)]
        return _Plan(shape, page_starts, pages, [launch for launch in launches if len(launch.tiles)])

    def plan_graph(self, batch: int, pages: int, shape: AttentionShape) -> GraphPlan:
        _check(shape)
        return _GraphPlan(self, batch, pages, shape)

    def splits(self, batch: int, longest: int, shape: AttentionShape) -> int:
        """Into how many parts to split contexts of up to `longest` tokens, so that `batch` decodes fill the device."""
        wanted = 4 * self._processors // max(1, batch * shape.kv_heads)
        return max(1, min(wanted, -(-longest // _SPLIT_TOKENS), _MOST_SPLITS))

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan) -> Tensor:
        if isinstance(plan, _GraphPlan):
            plan = plan.inner
        if not isinstance(plan, _Plan):
            raise TypeError(f"attention plan of another backend: {type(plan).__name__}")
        out = torch.empty_like(queries)
        for launch in plan.launches:
            triton_ops.paged_attention(
                queries,
                keys,
                values,
                out,
                launch.tiles,
                plan.page_starts,
                plan.pages,
                plan.shape,
                launch.tokens,
                launch.splits,
            )
        return out.flatten(1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return triton_ops.silu_mul(gate_up)

    def sample(self, logits: Tensor, sampling: SamplingBatch) -> Tensor:
        return triton_ops.sample(logits, sampling)


def _check(shape: AttentionShape) -> None:
    if shape.dtype not in _DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise ValueError(f"attention: dtype {str(shape.dtype).removeprefix('torch.')}; allowed: {allowed}")


def _tiles(sequences: np.ndarray, begins: np.ndarray, contexts: np.ndarray, tokens: int) -> Int32s:
    """Cut the queries of `sequences` into tiles of up to `tokens`; [n * 4], the longest contexts first."""
    counts = (begins[1:] - begins[:-1])[sequences]
    parts = -(-counts // tokens)
    owner = np.repeat(np.arange(len(sequences)), parts)
    offset = (np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)) * tokens
    size = np.minimum(tokens, counts[owner] - offset)
    position = (contexts[sequences] - counts)[owner] + offset
    tiles = np.stack((sequences[owner], begins[sequences][owner] + offset, size, position), axis=1)
    return tiles[np.argsort(-position, kind="stable")].astype(np.int32).ravel()
