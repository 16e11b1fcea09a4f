"""Passes with prompts, held in pieces: what lies between two attentions is a graph.

Attention itself, whose work is cut anew for each pass, is launched between the pieces. So a pass costs the host a few
launches a layer, where it would otherwise cost one for each kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.engine.workers.graphs import Capture, Ladder, Replay, StaticBuffers
from headway.kernels import AttentionPlan
from headway.models import KvCache, Stage


class Pieces:
    """What the pieces of all sizes share: the stage, its cache, and buffers around attention."""

    def __init__(self, stage: Stage, cache: KvCache, buffers: StaticBuffers, most: int) -> None:
        config = stage.config
        self.stage, self.cache, self.buffers = stage, cache, buffers
        shape = (most, config.heads, config.head_dim)
        self.queries = torch.zeros(shape, dtype=stage.dtype, device=stage.device)
        self.attended = torch.zeros(shape, dtype=stage.dtype, device=stage.device).flatten(1)


@dataclass(frozen=True)
class PromptGraph:
    """A pass of `size` tokens."""

    size: int
    pieces: Pieces
    replays: list[Replay]

    def run(self, tokens: int, plan: AttentionPlan) -> Tensor:
        """The first `tokens` rows of the output, for a batch laid out in the buffers and its `plan`."""
        pieces, last = self.pieces, self.replays[-1]
        queries, attended = pieces.queries[:tokens], pieces.attended[:tokens]
        for index, replay in enumerate(self.replays[:-1]):
            replay()
            pieces.stage.attend(index, queries, pieces.cache, plan, attended)
        last()
        return pieces.buffers.output[:tokens]


def prompt_graphs(sizes: Sequence[int], pieces: Pieces, capture: Capture) -> Ladder[PromptGraph]:
    """A graph for each of `sizes`."""
    return Ladder(sizes, lambda size: PromptGraph(size, pieces, capture.hold(*_runs(size, pieces))))


def _runs(size: int, pieces: Pieces) -> list[Callable[[], None]]:
    stage, cache, buffers = pieces.stage, pieces.cache, pieces.buffers
    queries, attended = pieces.queries[:size], pieces.attended[:size]
    residual: list[
        Tensor
    ] = []  # the last piece's; of no use once all are captured, when their memory is given to others

    def enter() -> None:
        found, left = stage.enter(buffers.batch_with_ids(size), cache, buffers.given(size))
        queries.copy_(found)
        residual[:] = [left]

    def between(index: int) -> Callable[[], None]:
        def run() -> None:
            found, left = stage.between(index, attended, residual[0], buffers.batch(size), cache)
            queries.copy_(found)
            residual[:] = [left]

        return run

    def leave() -> None:
        buffers.output[:size].copy_(stage.leave(attended, residual[0], None))
        residual.clear()

    return [enter, *(between(index) for index in range(1, stage.span.layers)), leave]
