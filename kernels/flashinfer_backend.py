"""The FlashInfer backend: its attention, which is faster than ours on NVIDIA GPUs, and the Triton backend for the rest.

FlashInfer's wrapper classes copy their arguments with a wait each and keep one plan at a time. Plans here are
objects of their own, so this file calls the modules under those wrappers: `plan` cuts the work on the host, and
enqueues one copy of the result; `paged_run` launches.
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

from headway.kernels.base import AttentionPlan, AttentionShape, GraphPlan
from headway.kernels.padding import pad_decodes
from headway.kernels.page_lists import Int32s, page_lists
from headway.kernels.triton_backend import TritonKernels

_HEAD_DIMS = (64, 128, 256)  # what both generations of its kernels have
_PLAN_BYTES = 8 << 20  # what a plan may take, as FlashInfer's own wrappers reserve
_FLOAT_BYTES = 128 << 20  # and what it recommends for partial results
_MOST_ROWS = 128  # of a tile of queries
_NO_WINDOW, _NO_SOFT_CAP = -1, 0.0


@dataclass(frozen=True)
class _Lists:
    """Of one call: row starts [B + 1], page list starts [B + 1], lengths of last pages [B], page lists [total]."""

    row_starts: Tensor
    page_starts: Tensor
    last_pages: Tensor
    pages: Tensor


@dataclass
class _Call:
    """One call of `paged_run` a layer, for rows `begin` to `end` of the queries."""

    begin: int
    end: int
    generation: str  # "fa2" or "fa3"
    causal: bool
    lists: _Lists
    float_workspace: Tensor
    plan_workspace: Tensor
    plan: Any  # what `plan` returned: offsets into the workspaces


@dataclass(frozen=True)
class _Plan(AttentionPlan):
    shape: AttentionShape
    calls: list[_Call]


class _GraphPlan(GraphPlan):
    def __init__(self, kernels: FlashInferKernels, batch: int, pages: int, shape: AttentionShape) -> None:
        self.batch, self._kernels, self._most, self.shape = batch, kernels, pages, shape
        device = kernels.device
        group = shape.heads // shape.kv_heads
        tile = 16 if group <= 16 else _MOST_ROWS
        tiles = max(kernels.parts(shape), batch + -(-batch * group // 16))  # what FlashInfer reserves for a graph
        # Static: what changes from update to update is one prefix, copied at once.
        self._buffer = torch.empty(2 * batch + 1 + batch * pages, dtype=torch.int32, device=device)
        page_starts, last_pages, lists = torch.split(self._buffer, [batch + 1, batch, batch * pages])
        self._row_starts = torch.arange(batch + 1, dtype=torch.int32)
        self.call = _Call(
            0,
            batch,
            "fa2",
            False,
            _Lists(self._row_starts.to(device), page_starts, last_pages, lists),
            kernels.float_workspace(tiles, tile, shape),
            torch.empty(64 * tiles + 4096, dtype=torch.uint8, device=device),
            None,
        )
        self.update(torch.empty(0, dtype=torch.int64), torch.empty((0, 1), dtype=torch.int64))

    def update(self, context_lengths: Tensor, block_tables: Tensor) -> None:
        shape = self.shape
        contexts, tables = pad_decodes(self.batch, self._most, context_lengths, block_tables, shape.page_size)
        starts, lists = page_lists(contexts, tables, shape.page_size)
        packed = np.concatenate((starts, _last_pages(contexts, shape), lists))
        self._kernels.staging.upload(packed, self._buffer)
        plan = self._kernels.plan_call(
            self.call, self._row_starts, torch.from_numpy(starts), contexts.to(torch.int32), shape, graph=True
        )
        if self.call.plan is not None and list(plan) != list(self.call.plan):
            raise RuntimeError(f"flashinfer: the plan of a captured graph moved from {self.call.plan} to {plan}")
        self.call.plan = plan


class FlashInferKernels(TritonKernels):
    """See `Kernels`. Attention of other dtypes and head sizes than FlashInfer has, or with a window, is Triton's."""

    name = "flashinfer"

    def __init__(self, device: torch.device | str = "cuda") -> None:
        super().__init__(device)
        self._prefill = "fa3" if is_sm90a_supported(self.device) else "fa2"
        self._overlap = device_support_pdl(self.device)  # programmatic dependent launch
        self._modules: dict[tuple[str, AttentionShape], Any] = {}
        self._float_workspace = torch.empty(0, dtype=torch.uint8, device=self.device)

    def plan_attention(
        self, query_starts: Tensor, context_lengths: Tensor, block_tables: Tensor, shape: AttentionShape
    ) -> AttentionPlan:
        if not _has(shape):
            return super().plan_attention(query_starts, context_lengths, block_tables, shape)
        counts = np.diff(query_starts.numpy())
        chosen = np.flatnonzero(counts)
        if len(chosen) < len(counts):
            index = torch.from_numpy(chosen)
            query_starts = query_starts[torch.cat((index, torch.tensor([len(counts)])))]
            context_lengths, block_tables, counts = context_lengths[index], block_tables[index], counts[chosen]
        # Leading decodes have a call of their own, whose kernel reads a key once for all its heads.
        several = np.flatnonzero(counts > 1)
        decodes = int(several[0]) if len(several) else len(counts)
        starts, lists = page_lists(context_lengths, block_tables, shape.page_size)
        rows = query_starts.to(torch.int32).numpy()
        cuts = [cut for cut in ((0, decodes), (decodes, len(counts))) if cut[0] < cut[1]]
        parts: list[Int32s] = [lists, _last_pages(context_lengths, shape)]
        for first, last in cuts:
            parts += [rows[first : last + 1] - rows[first], starts[first : last + 1]]
        device = torch.empty(sum(map(len, parts)), dtype=torch.int32, device=self.device)
        self.staging.upload(np.concatenate(parts), device)
        pages, last_pages, *indices = torch.split(device, [len(part) for part in parts])
        calls = []
        for number, (first, last) in enumerate(cuts):
            decode = first < decodes
            row_starts, page_starts = indices[2 * number], indices[2 * number + 1]
            call = _Call(
                int(rows[first]),
                int(rows[last]),
                "fa2" if decode else self._prefill,
                not decode,
                _Lists(row_starts, page_starts, last_pages[first:last], pages),
                self.float_workspace(self.parts(shape), _MOST_ROWS, shape),
                torch.empty(_PLAN_BYTES, dtype=torch.uint8, device=self.device),
                None,
            )
            call.plan = self.plan_call(
                call,
                torch.from_numpy(parts[2 + 2 * number]),
                torch.from_numpy(parts[3 + 2 * number]),
                context_lengths[first:last].to(torch.int32),
                shape,
                graph=False,
            )
            calls.append(call)
        return _Plan(shape, calls)

    def plan_graph(self, batch: int, pages: int, shape: AttentionShape) -> GraphPlan:
        return _GraphPlan(self, batch, pages, shape) if _has(shape) else super().plan_graph(batch, pages, shape)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan) -> Tensor:
        if isinstance(plan, _Plan):
            out = torch.empty_like(queries)
            for call in plan.calls:
                self._run(call, queries, keys, values, out, plan.shape)
        elif isinstance(plan, _GraphPlan):
            out = torch.empty_like(queries)
            self._run(plan.call, queries, keys, values, out, plan.shape)
        else:
            return super().attend(queries, keys, values, plan)
        return out.flatten(1)

    def parts(self, shape: AttentionShape) -> int:
        """The most parts that FlashInfer cuts the contexts of a call into to fill the device, two blocks for each
        multiprocessor."""
        return 2 * self._processors // shape.kv_heads

    def float_workspace(self, parts: int, tile: int, shape: AttentionShape) -> Tensor:
        """Room for the results of `parts` parts of contexts, for tiles of so many rows a head, in float32.

        One buffer for all plans, since a call is done with it before the next one of the stream begins. A plan keeps
        the one it was made with when a larger one is needed later.
        """
        size = max(_FLOAT_BYTES, shape.heads * parts * tile * (shape.head_dim + 1) * 4 + 4096)
        if self._float_workspace.numel() < size:
            self._float_workspace = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._float_workspace

    def plan_call(
        self,
        call: _Call,
        row_starts: Tensor,
        page_starts: Tensor,
        context_lengths: Tensor,
        shape: AttentionShape,
        graph: bool,
    ) -> Any:
        """Plan `call` from host tensors, int32; with `graph`, so that a captured launch fits all page lists."""
        batch = len(context_lengths)
        with self.staging.buffer(call.plan_workspace.numel()) as memory:
            arguments = [
                call.float_workspace,
                call.plan_workspace,
                memory,
                row_starts,
                page_starts,
                context_lengths,
                call.end - call.begin,
                batch,
                shape.heads,
                shape.kv_heads,
                shape.page_size,
                graph,
                shape.head_dim,
                shape.head_dim,
                call.causal,
                _NO_WINDOW,
            ]
            if call.generation == "fa2":
                arguments += [-1, False, 0]  # split as it sees fit; no other kernel runs beside it
            return self._module(call.generation, shape).plan(*arguments)

    def _run(
        self, call: _Call, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, shape: AttentionShape
    ) -> None:
        lists = call.lists
        run: Callable[..., object] = self._module(call.generation, shape).paged_run
        run(
            call.float_workspace,
            call.plan_workspace,
            call.plan,
            queries[call.begin : call.end],
            keys,
            values,
            lists.row_starts,
            lists.page_starts,
            lists.pages,
            lists.last_pages,
            out[call.begin : call.end],
            None,  # log-sum-exp
            (MaskMode.CAUSAL if call.causal else MaskMode.NON_CAUSAL).value,
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
            call.float_workspace.numel(),
        )

    def _module(self, generation: str, shape: AttentionShape) -> Any:
        """FlashInfer's kernels for `shape`: loaded where it ships or has cached them, otherwise compiled (minutes)."""
        key = (generation, shape)
        if key not in self._modules:
            self._modules[key] = get_batch_prefill_module(
                generation,
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
        return self._modules[key]


def _has(shape: AttentionShape) -> bool:
    return shape.dtype in (torch.bfloat16, torch.float16) and shape.head_dim in _HEAD_DIMS and shape.window is None


def _last_pages(context_lengths: Tensor, shape: AttentionShape) -> Int32s:
    return ((context_lengths.numpy() - 1) % shape.page_size + 1).astype(np.int32)
