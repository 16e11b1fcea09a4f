"""A small driver for the tests of models: it runs sequences through chained stages, with pages of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from headway.kernels import Kernels, load_kernels
from headway.models import SMOLLM2, Checkpoint, Stage, StageBatch, allocate_kv_cache, open_checkpoint, partition

torch.set_num_threads(1)


class Pipeline:
    """All stages of a model in this process. Pages are dealt out in a shuffled order, so that no test sees 0, 1, 2."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        kernels: Kernels,
        ranks: int = 1,
        page_size: int = 16,
        pages: int = 64,
        dtype: torch.dtype = torch.float32,
        positions: int | None = None,
    ) -> None:
        config = checkpoint.config
        spans = partition(config.layers, ranks)
        self.stages = [Stage.load(checkpoint, span, kernels, dtype, positions=positions) for span in spans]
        self.caches = [allocate_kv_cache(config, span.layers, pages, page_size, dtype) for span in spans]
        self.page_size = page_size
        self.free = torch.randperm(pages, generator=torch.Generator().manual_seed(0)).tolist()
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def step(self, rows: dict[str, list[int]]) -> dict[str, torch.Tensor]:
        """One pass that appends tokens to the named sequences; the logits after each one's last token."""
        tokens, positions, slots, starts, contexts = [], [], [], [0], []
        for name, ids in rows.items():
            table, begin = self.tables.setdefault(name, []), self.lengths.get(name, 0)
            end = begin + len(ids)
            while len(table) * self.page_size < end:
                table.append(self.free.pop())
            tokens += ids
            positions += range(begin, end)
            slots += [table[p // self.page_size] * self.page_size + p % self.page_size for p in range(begin, end)]
            starts.append(len(tokens))
            contexts.append(end)
            self.lengths[name] = end
        width = max(len(self.tables[name]) for name in rows)
        tables = [self.tables[name] + [0] * (width - len(self.tables[name])) for name in rows]
        batch = StageBatch(
            token_ids=torch.tensor(tokens),
            positions=torch.tensor(positions),
            write_slots=torch.tensor(slots),
            query_starts=torch.tensor(starts),
            context_lengths=torch.tensor(contexts),
            block_tables=torch.tensor(tables),
            logit_rows=torch.tensor(starts[1:]) - 1,
        )
        hidden = None
        for stage, cache in zip(self.stages, self.caches, strict=True):
            hidden = stage.forward(batch, cache, hidden)
        return dict(zip(rows, hidden, strict=True))

    def greedy(self, name: str, prompt: list[int], count: int, chunk: int | None = None) -> list[int]:
        """`count` greedy tokens after `prompt`, which is taken in chunks."""
        size = chunk or len(prompt)
        for begin in range(0, len(prompt), size):
            logits = self.step({name: prompt[begin : begin + size]})[name]
        tokens = [int(logits.argmax())]
        while len(tokens) < count:
            tokens.append(int(self.step({name: tokens[-1:]})[name].argmax()))
        return tokens


@pytest.fixture(scope="session")
def make_pipeline() -> Callable[..., Pipeline]:
    """Pipeline(checkpoint, ...) with the reference kernels."""
    return lambda checkpoint, **options: Pipeline(checkpoint, load_kernels("reference"), **options)


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    return open_checkpoint(SMOLLM2)
