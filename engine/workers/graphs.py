"""Passes held in CUDA graphs, for a ladder of sizes each; here those of decodes, which are held whole.

They read their inputs from static buffers, padded up to the size of the graph. On a CPU nothing is captured: a replay
runs what the graph would hold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from headway.kernels import GraphPlan
from headway.models import KvCache, Stage, StageBatch

T = TypeVar("T")
Replay = Callable[[], object]
_HELD_PROMPTS = 4096  # tokens; a larger pass takes the device longer than the host takes to launch its kernels


def decode_ladder(most: int) -> list[int]:
    """Batch sizes up to `most`, and `most` itself: steps of 8 to 256, of 16 to 512, of 32 beyond, so that little of a
    batch is padding."""
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16), *range(544, max(most, 544), 32)]
    return [*(size for size in sizes if size < most), most]


def prompt_ladder(most: int) -> list[int]:
    """Tokens of a pass with prompts, up to `most` and what is worth holding."""
    steps = [*range(16, 513, 16), *range(576, 1025, 64), *range(1152, 2049, 128), *range(2304, _HELD_PROMPTS + 1, 256)]
    return [size for size in steps if size <= most]


class Ladder(Generic[T]):
    """Something for each of some sizes, made from the largest size down, so that all graphs fit into its memory."""

    def __init__(self, sizes: Sequence[int], make: Callable[[int], T]) -> None:
        made = {size: make(size) for size in sorted(sizes, reverse=True)}
        self._sizes = sorted(made)
        self._made = [made[size] for size in self._sizes]

    def fitting(self, size: int) -> T | None:
        """What was made for the smallest size that is not below `size`."""
        index = bisect_left(self._sizes, size)
        return self._made[index] if index < len(self._made) else None


class StaticBuffers:
    """Where a held pass of `size` tokens finds its inputs on the device, and leaves its output.

    Of `words`, int64, the first `size` are positions, then come `size` write slots, and where the stage embeds, `size`
    places in `words` of its token ids. `hidden` [most, hidden] is what the stage before gives, `output` [most, hidden]
    what `Stage.trunk` does.
    """

    def __init__(self, stage: Stage, words: Tensor, most: int) -> None:
        self._first, self.words = stage.span.first, words
        shape = (most, stage.config.hidden_size)
        self.hidden = torch.zeros((0, shape[1]) if self._first else shape, dtype=stage.dtype, device=stage.device)
        self.output = torch.zeros(shape, dtype=stage.dtype, device=stage.device)

    def batch(self, size: int) -> StageBatch:
        """The device's half of a batch, without the token ids."""
        words, none = self.words, torch.empty(0, dtype=torch.int64)
        return StageBatch(None, words[:size], words[size : 2 * size], none, none, none, None)

    def batch_with_ids(self, size: int) -> StageBatch:
        """The same with the token ids, where the stage embeds: looks them up, so it belongs into the graph."""
        batch, words = self.batch(size), self.words
        return replace(batch, token_ids=words.index_select(0, words[2 * size : 3 * size])) if self._first else batch

    def given(self, size: int) -> Tensor | None:
        """The hidden states of a batch."""
        return None if self._first else self.hidden[:size]


class Capture:
    """Captures graphs into one pool of memory, off the default stream, as it must be; or emulates them."""

    def __init__(self, device: torch.device) -> None:
        self._captures = device.type == "cuda"
        if self._captures:
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def hold(self, *runs: Callable[[], object]) -> list[Replay]:
        """Replays of `runs`, which are captured in order after all have run once: compiling kernels and making
        workspaces must not happen in a capture."""
        if not self._captures:
            return list(runs)
        replays: list[Replay] = []
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for run in runs:
                run()
            for run in runs:
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin(pool=self._pool)
                run()
                graph.capture_end()
                replays.append(graph.replay)
        torch.cuda.current_stream().wait_stream(self._stream)
        return replays


@dataclass(frozen=True)
class DecodeGraph:
    """A pass of `size` rows of one token each. `replay` leaves its output; `greedy`, where the stage has the head,
    chooses the likeliest tokens instead."""

    size: int
    plan: GraphPlan
    replay: Replay
    greedy: Replay | None


def decode_graphs(
    sizes: Sequence[int],
    stage: Stage,
    cache: KvCache,
    pages: int,
    buffers: StaticBuffers,
    choose: Callable[[Tensor], object],
    capture: Capture,
) -> Ladder[DecodeGraph]:
    """A graph for each of `sizes`, of sequences of up to `pages` pages.

    `choose` enqueues the greedy choice of tokens from what the trunk gives.
    """

    def decode_graph(size: int) -> DecodeGraph:
        plan = stage.plan_graph(size, pages, cache.page_size)

        def trunk() -> Tensor:
            return stage.trunk(buffers.batch_with_ids(size), cache, plan, buffers.given(size))

        def leave_output() -> None:
            buffers.output[:size].copy_(trunk())

        if not stage.span.last:
            (replay,) = capture.hold(leave_output)
            return DecodeGraph(size, plan, replay, None)
        replay, greedy = capture.hold(leave_output, lambda: choose(trunk()))
        return DecodeGraph(size, plan, replay, greedy)

    return Ladder(sizes, decode_graph)
