"""Decode passes held in CUDA graphs, one for each of a ladder of batch sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.kernels import GraphPlan


def ladder(most: int) -> list[int]:
    """Batch sizes up to `most`, and `most` itself: steps of 8 to 256, of 16 to 512, of 32 beyond, so that little of a
    batch is padding."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16), *range(544, max(most, 544), 32)]
    return [*(size for size in sizes if size < most), most]


@dataclass(frozen=True)
class DecodeGraph:
    """One pass of `size` rows. `output` is static: the next replay of any graph may overwrite it."""

    size: int
    plan: GraphPlan
    output: Tensor
    replay: Callable[[], object]


class DecodeGraphs:
    """The graphs of one stage, captured largest first so that the smaller ones fit into the same memory.

    `run(size, plan)` enqueues a pass of `size` rows over static inputs and returns its output. On a CPU there is
    nothing to capture: a replay runs it.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        plan: Callable[[int], GraphPlan],
        run: Callable[[int, GraphPlan], Tensor],
        device: torch.device,
    ) -> None:
        self._graphs: list[DecodeGraph] = []
        capture = Capture() if device.type == "cuda" and sizes else None
        for size in sorted(sizes, reverse=True):
            own = plan(size)
            self._graphs.append(capture(size, own, run) if capture else _emulated(size, own, run))
        self._graphs.reverse()
        self._sizes = [graph.size for graph in self._graphs]

    def fitting(self, rows: int) -> DecodeGraph | None:
        """The smallest graph for a batch of `rows` rows."""
        index = bisect_left(self._sizes, rows)
        return self._graphs[index] if index < len(self._graphs) else None


class Capture:
    """Captures graphs into one pool of memory, off the default stream, as it must be."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, size: int, plan: GraphPlan, run: Callable[[int, GraphPlan], Tensor]) -> DecodeGraph:
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            run(size, plan)  # compiles kernels and makes workspaces, which a capture must not
            graph.capture_begin(pool=self._pool)
            output = run(size, plan)
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return DecodeGraph(size, plan, output, graph.replay)


def _emulated(size: int, plan: GraphPlan, run: Callable[[int, GraphPlan], Tensor]) -> DecodeGraph:
    output = run(size, plan)
    return DecodeGraph(size, plan, output, lambda: output.copy_(run(size, plan)))
