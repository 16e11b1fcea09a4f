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
from headway.kernels.staging import Staging
from headway.kernels.tiles import Batch, chunk_tiles, decode_tiles

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_FEW = 16  # tokens; cuBLAS is slower for so few, and faster for more
_FEW_BYTES = 128 << 10  # of shared memory that it takes to be faster


@dataclass(frozen=True)
class _Launch:
    """Tiles of up to `tokens` queries each; with `joins`, of one query, and perhaps several for one context."""

    tiles: Tensor
    joins: Tensor | None
    tokens: int


@dataclass(frozen=True)
class TilePlan(AttentionPlan):
    """Launches over tiles, see `headway.kernels.triton_ops.paged_attention`."""

    shape: AttentionShape
    pages: Tensor
    launches: list[_Launch]


class _GraphPlan(GraphPlan):
    def __init__(self, kernels: TritonKernels, batch: int, pages: int, shape: AttentionShape) -> None:
        self.batch, self._kernels, self._most, self._shape = batch, kernels, pages, shape
        # Static: what changes from update to update is one prefix, copied at once.
        sizes = [(batch + kernels.spare(shape)) * triton_ops.TILE, batch * triton_ops.JOIN, batch * pages]
        self._buffer = torch.empty(sum(sizes), dtype=torch.int32, device=kernels.device)
        tiles, joins, lists = torch.split(self._buffer, sizes)
        self.inner = TilePlan(shape, lists, [_Launch(tiles, joins, 1)])
        self._rows = torch.arange(batch + 1)
        self._unused = np.zeros(len(tiles), dtype=np.int64)  # tiles of no rows
        self.update(torch.empty(0, dtype=torch.int64), torch.empty((0, 1), dtype=torch.int64))

    def update(self, context_lengths: Tensor, block_tables: Tensor) -> None:
        shape, kernels = self._shape, self._kernels
        contexts, tables = pad_decodes(self.batch, self._most, context_lengths, block_tables, shape.page_size)
        batch = Batch.of(self._rows, contexts, tables, shape.page_size)
        tiles, joins = decode_tiles(batch, np.arange(self.batch), shape.window, kernels.spare(shape))
        kernels.staging.upload(self._buffer, tiles, self._unused[len(tiles) :], joins, batch.pages)


class TritonKernels(Kernels):
    """See `Kernels`. float32, bfloat16 and float16, with sums in float32 throughout."""

    name = "triton"
    graphs = True

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = torch.device(device)
        if self.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError(f"kernels: backend {self.name!r} needs a CUDA device; got {str(self.device)!r}")
        self.staging = Staging(self.device)
        self._processors, self._few = 1, _FEW
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            self._processors = properties.multi_processor_count
            if properties.shared_memory_per_multiprocessor < _FEW_BYTES:
                self._few = 0

    def embed(self, token_ids: Tensor, table: Tensor) -> Tensor:
        return triton_ops.embed(token_ids, table)

    def pack(self, weight: Tensor) -> Tensor:
        return weight

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if x.shape[0] <= self._few and x.dtype != torch.float32:
            return triton_ops.skinny_linear(x, weight, bias)
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
        return self.plan_tiles(query_starts, context_lengths, block_tables, shape)

    def plan_tiles(
        self, query_starts: Tensor, context_lengths: Tensor, block_tables: Tensor, shape: AttentionShape
    ) -> TilePlan:
        """`plan_attention`, with a plan that `attend_tiles` takes."""
        _check(shape)
        batch = Batch.of(query_starts, context_lengths, block_tables, shape.page_size)
        decodes, chunks = np.flatnonzero(batch.counts == 1), np.flatnonzero(batch.counts > 1)
        # Enough rows to use the tensor cores well; more would hold too much in registers.
        tokens = max(1, (32 if shape.dtype == torch.float32 else 64) // (shape.heads // shape.kv_heads))
        decode, joins = decode_tiles(batch, decodes, shape.window, self.spare(shape))
        chunk = chunk_tiles(batch, chunks, shape.window, tokens)
        parts = [batch.pages, decode, joins, chunk]
        device = torch.empty(sum(map(len, parts)), dtype=torch.int32, device=self.device)
        self.staging.upload(device, *parts)
        pages, *tiles = torch.split(device, [len(part) for part in parts])
        divided = len(decode) // triton_ops.TILE > len(decodes)
        launches = [_Launch(tiles[0], tiles[1] if divided else None, 1), _Launch(tiles[2], None, tokens)]
        return TilePlan(shape, pages, [launch for launch in launches if len(launch.tiles)])

    def plan_graph(self, batch: int, pages: int, shape: AttentionShape) -> GraphPlan:
        _check(shape)
        return _GraphPlan(self, batch, pages, shape)

    def spare(self, shape: AttentionShape) -> int:
        """How many tiles more than sequences fill the device: four programs for each multiprocessor."""
        return max(1, 4 * self._processors // shape.kv_heads)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, out: Tensor | None = None
    ) -> Tensor:
        if isinstance(plan, _GraphPlan):
            plan = plan.inner
        if not isinstance(plan, TilePlan):
            raise TypeError(f"attention plan of another backend: {type(plan).__name__}")
        out = torch.empty_like(queries) if out is None else out.view(queries.shape)
        self.attend_tiles(queries, keys, values, out, plan)
        return out.flatten(1)

    def attend_tiles(self, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, plan: TilePlan) -> None:
        """`attend` for the rows that `plan` has, into `out`."""
        for launch in plan.launches:
            triton_ops.paged_attention(
                queries, keys, values, out, launch.tiles, launch.joins, plan.pages, plan.shape, launch.tokens
            )

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return triton_ops.silu_mul(gate_up)

    def sample(self, logits: Tensor, sampling: SamplingBatch) -> Tensor:
        return triton_ops.sample(logits, sampling)


def _check(shape: AttentionShape) -> None:
    if shape.dtype not in _DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise ValueError(f"attention: dtype {str(shape.dtype).removeprefix('torch.')}; allowed: {allowed}")
