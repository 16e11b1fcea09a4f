"""The FlashInfer backend: its attention for prompts, which uses Hopper's own instructions, and Triton for the rest.

FlashInfer's wrapper classes copy their arguments with a wait each and keep one plan at a time. Plans here are
objects of their own, so this file calls the modules under those wrappers: `plan` shares out the work on the host and
enqueues one copy of the result; `paged_run` launches. Its attention for decodes measured slower than ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flashinfer.prefill import get_batch_prefill_module
from flashinfer.utils import MaskMode, PosEncodingMode, TensorLayout, device_support_pdl, is_sm90a_supported
from torch import Tensor

from headway.kernels.base import AttentionPlan, AttentionShape
from headway.kernels.tiles import Batch
from headway.kernels.triton_backend import TilePlan, TritonKernels

_HEAD_DIMS = (64, 128, 256)  # what both generations of its kernels have
_PLAN_BYTES = 8 << 20  # what a plan may take, as FlashInfer's own wrappers reserve
_FLOAT_BYTES = 128 << 20  # and what it recommends for partial results
_MOST_ROWS = 128  # of a tile of queries
_NO_WINDOW, _NO_SOFT_CAP = -1, 0.0


@dataclass(frozen=True)
class _Prompts:
    """One call of `paged_run` a layer, for the rows from `begin` on."""

    begin: int
    row_starts: Tensor  # [B + 1] int32, from 0
    page_starts: Tensor  # [B + 1] int32
    last_pages: Tensor  # [B] int32, tokens in the last page of each
    pages: Tensor  # [total] int32
    float_workspace: Tensor
    plan_workspace: Tensor
    plan: Any  # what `plan` returned: offsets into the workspaces


@dataclass(frozen=True)
class _Plan(AttentionPlan):
    """Leading decodes, if any, then the rest of the batch, which has a prompt."""

    shape: AttentionShape
    decodes: TilePlan | None
    prompts: _Prompts


class FlashInferKernels(TritonKernels):
    """See `Kernels`. Attention of other dtypes and head sizes than FlashInfer has, or with a window, is Triton's."""

    name = "flashinfer"

    def __init__(self, device: torch.device | str = "cuda") -> None:
        super().__init__(device)
        self._generation = "fa3" if is_sm90a_supported(self.device) else "fa2"
        self._overlap = device_support_pdl(self.device)  # programmatic dependent launch
        self._modules: dict[AttentionShape, Any] = {}
        self._float_workspace = torch.empty(0, dtype=torch.uint8, device=self.device)

    def plan_attention(
        self, query_starts: Tensor, context_lengths: Tensor, block_tables: Tensor, shape: AttentionShape
    ) -> AttentionPlan:
        several = np.flatnonzero(np.diff(query_starts.numpy()) > 1)
        if not _has(shape) or not len(several):
            return self.plan_tiles(query_starts, context_lengths, block_tables, shape)
        first = int(several[0])
        decodes = None
        if first:
            decodes = self.plan_tiles(query_starts[: first + 1], context_lengths[:first], block_tables[:first], shape)
        prompts = self._plan_prompts(query_starts[first:], context_lengths[first:], block_tables[first:], shape)
        return _Plan(shape, decodes, prompts)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, out: Tensor | None = None
    ) -> Tensor:
        if not isinstance(plan, _Plan):
            return super().attend(queries, keys, values, plan, out)
        out = torch.empty_like(queries) if out is None else out.view(queries.shape)
        if plan.decodes is not None:
            self.attend_tiles(queries, keys, values, out, plan.decodes)
        self._run(plan.prompts, queries, keys, values, out, plan.shape)
        return out.flatten(1)

    def _plan_prompts(
        self, query_starts: Tensor, context_lengths: Tensor, block_tables: Tensor, shape: AttentionShape
    ) -> _Prompts:
        batch = Batch.of(query_starts, context_lengths, block_tables, shape.page_size)
        begin, size = int(batch.begins[0]), len(batch.contexts)
        row_starts = np.append(batch.begins - begin, query_starts[-1] - begin)
        parts = (row_starts, batch.page_starts, (batch.contexts - 1) % shape.page_size + 1, batch.pages)
        device = torch.empty(sum(map(len, parts)), dtype=torch.int32, device=self.device)
        self.staging.upload(device, *parts)
        plan_workspace = torch.empty(_PLAN_BYTES, dtype=torch.uint8, device=self.device)
        float_workspace = self._partial_results(shape)
        with self.staging.buffer(_PLAN_BYTES) as memory:
            arguments = [
                float_workspace,
                plan_workspace,
                memory,
                _int32(row_starts),
                _int32(batch.page_starts),
                _int32(batch.contexts),
                int(row_starts[-1]),
                size,
                shape.heads,
                shape.kv_heads,
                shape.page_size,
                False,  # not for a graph
                shape.head_dim,
                shape.head_dim,
                True,  # causal
                _NO_WINDOW,
            ]
            if self._generation == "fa2":
                arguments += [-1, False, 0]  # split as it sees fit; no other kernel runs beside it
            plan = self._module(shape).plan(*arguments)
        starts, page_starts, last_pages, pages = torch.split(device, [len(part) for part in parts])
        return _Prompts(begin, starts, page_starts, last_pages, pages, float_workspace, plan_workspace, plan)

    def _partial_results(self, shape: AttentionShape) -> Tensor:
        """Room for the results of parts of contexts, in float32: FlashInfer makes at most two for each multiprocessor.

        One buffer for all plans, since a call is done with it before the next one of the stream begins. A plan keeps
        the one it was made with when a larger one is needed later.
        """
        parts = 2 * self._processors // shape.kv_heads
        size = max(_FLOAT_BYTES, shape.heads * parts * _MOST_ROWS * (shape.head_dim + 1) * 4 + 4096)
        if self._float_workspace.numel() < size:
            self._float_workspace = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._float_workspace

    def _run(
        self, prompts: _Prompts, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, shape: AttentionShape
    ) -> None:
        run: Callable[..., object] = self._module(shape).paged_run
        run(
            prompts.float_workspace,
            prompts.plan_workspace,
            prompts.plan,
            queries[prompts.begin :],
            keys,
            values,
            prompts.row_starts,
            prompts.page_starts,
            prompts.pages,
            prompts.last_pages,
            out[prompts.begin :],
            None,  # log-sum-exp
            MaskMode.CAUSAL.value,
            TensorLayout["NHD"].value,
            _NO_WINDOW,
            self._overlap,
            None,  # custom mask
            None,  # and its starts
            None,  # ALiBi slopes
            None,  # three arguments of multi-item scoring
            None,
            None,
            _NO_SOFT_CAP,
            shape.head_dim**-0.5,
            None,  # scales of float8 queries, keys, values
            None,
            None,
            1.0,  # two arguments of rotary embedding, which is done before
            1e4,
            0,  # multi-item scoring again
            prompts.float_workspace.numel(),
        )

    def _module(self, shape: AttentionShape) -> Any:
        """FlashInfer's kernels for `shape`: loaded where it ships or has cached them, otherwise compiled (minutes)."""
        if shape not in self._modules:
            self._modules[shape] = get_batch_prefill_module(
                self._generation,
                shape.dtype,
                shape.dtype,
                shape.dtype,
                torch.int32,
                shape.head_dim,
                shape.head_dim,
                PosEncodingMode["NONE"].value,
                False,  # window
                False,  # soft cap
                False,  # float16 products
            )
        return self._modules[shape]


def _has(shape: AttentionShape) -> bool:
    return shape.dtype in (torch.bfloat16, torch.float16) and shape.head_dim in _HEAD_DIMS and shape.window is None


def _int32(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int32))
