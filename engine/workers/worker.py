"""Runs one stage of the model, eagerly, on its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headway.engine.scheduling import Member
from headway.kernels import Kernels, SamplingBatch
from headway.models import KvCache, Stage, StageBatch


@dataclass(frozen=True)
class Work:
    """A pass made ready for the device: T tokens of B members. `sampling` has an entry for each member that samples."""

    batch: StageBatch
    sampling: SamplingBatch


class Worker:
    """One stage with its KV cache. Knows neither rank nor pass."""

    def __init__(self, stage: Stage, cache: KvCache, kernels: Kernels) -> None:
        self._stage, self._cache, self._kernels = stage, cache, kernels

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
        ids = np.fromiter((token for part in tokens for token in part), dtype=np.int64) if tokens else None
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
        return Work(batch, sampling)

    def forward(self, work: Work, hidden: torch.Tensor | None) -> torch.Tensor:
        """Hidden states [T, hidden], or logits [S, vocabulary] where the stage has the head."""
        return self._stage.forward(work.batch, self._cache, hidden)

    def sample(self, work: Work, logits: torch.Tensor) -> list[int]:
        """One token id for each member that samples, in order."""
        if not logits.shape[0]:
            return []
        tokens: list[int] = self._kernels.sample(logits, work.sampling).tolist()
        return tokens
