"""Runs one stage of the model, eagerly, on its device."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headway.engine.scheduling import Member
from headway.kernels import Kernels, SamplingBatch
from headway.models import KvCache, Stage, StageBatch


@dataclass(frozen=True)
class Work:
    """A pass made ready for the device: T tokens of B members. `sampling` has an entry for each of `samplers`."""

    samplers: list[int]
    batch: StageBatch
    sampling: SamplingBatch


class Worker:
    """One stage with its KV cache. Knows neither rank nor pass."""

    def __init__(self, stage: Stage, cache: KvCache, kernels: Kernels) -> None:
        self._stage, self._cache, self._kernels = stage, cache, kernels
        self._last: dict[int, int] = {}  # what the requests of the last launched pass sampled
        self._launched: deque[list[int]] = deque()

    def prepare(self, members: Sequence[Member], tokens: Sequence[Sequence[int]]) -> Work:
        """Lay out a batch. `tokens`: input token ids, one list a member; empty where the stage does not embed."""
        page_size = self._cache.page_size
        counts = np.array([member.count for member in members], dtype=np.int64)
        starts = np.array([member.start for member in members], dtype=np.int64)
        ends = np.cumsum(counts)
        positions = np.arange(int(ends[-1]), dtype=np.int64) + np.repeat(starts - (ends - counts), counts)
        tables = np.zeros((len(members), max(len(member.table) for member in members)), dtype=np.int64)
        for row, member in enumerate(members):
            tables[row, : len(member.table)] = member.table
        owners = np.repeat(np.arange(len(members)), counts)
        slots = tables[owners, positions // page_size] * page_size + positions % page_size
        sampled = [(row, member) for row, member in enumerate(members) if member.samples]
        ids = None
        if tokens:
            parts = zip(members, tokens, strict=True)
            known = [[self._last[member.request]] if member.from_last else part for member, part in parts]
            ids = np.fromiter((token for part in known for token in part), dtype=np.int64)
        batch = StageBatch(
            token_ids=None if ids is None else torch.from_numpy(ids),
            positions=torch.from_numpy(positions),
            write_slots=torch.from_numpy(slots),
            query_starts=torch.from_numpy(np.concatenate(([0], ends))),
            context_lengths=torch.from_numpy(starts + counts),
            block_tables=torch.from_numpy(tables),
            logit_rows=torch.tensor([int(ends[row]) - 1 for row, _ in sampled], dtype=torch.int64),
        )
        sampling = SamplingBatch.of(
            [member.sampling.temperature for _, member in sampled],
            [member.sampling.top_k for _, member in sampled],
            [member.sampling.top_p for _, member in sampled],
            [member.sampling.seed for _, member in sampled],
            [member.start + member.count for _, member in sampled],
        )
        return Work([member.request for _, member in sampled], batch, sampling)

    def forward(self, work: Work, hidden: torch.Tensor | None) -> torch.Tensor:
        """Hidden states [T, hidden], or logits [S, vocabulary] where the stage has the head."""
        return self._stage.forward(work.batch, self._cache, hidden)

    def launch(self, work: Work, hidden: torch.Tensor | None) -> None:
        """Run the stage and sample; `collect` gives the tokens."""
        logits = self.forward(work, hidden)
        tokens = self._kernels.sample(logits, work.sampling).tolist() if work.samplers else []
        self._last = dict(zip(work.samplers, tokens, strict=True))
        self._launched.append(tokens)

    def collect(self) -> list[int]:
        """The tokens of the oldest launched pass not yet collected, one for each member that samples, in order."""
        return self._launched.popleft()
