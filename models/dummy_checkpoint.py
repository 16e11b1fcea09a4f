"""Random weights for a real config, to measure speed and to test without files."""

from __future__ import annotations

import zlib
from collections.abc import Collection

import torch
from torch import Tensor

from headway.models.checkpoint import Checkpoint
from headway.models.tokenizer import Tokenizer
from headway.models.weights import expected_tensors


class DummyCheckpoint(Checkpoint):
    """Random weights for a config: normal(0, 0.02), norms 1. A tensor depends on `seed`, name and device only."""

    def __init__(self, base: Checkpoint, seed: int = 0) -> None:
        """`base` gives config and tokenizer; its weights are not read."""
        self.source, self.config, self.seed = base.source, base.config, seed
        self._base, self._shapes = base, expected_tensors(base.config)

    def tensor_names(self) -> Collection[str]:
        return self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def read_into(self, name: str, destination: Tensor) -> None:
        if name.endswith("norm.weight"):
            destination.fill_(1)
            return
        generator = torch.Generator(destination.device)
        generator.manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))  # a CPU generator takes 32 bits of seed
        values = torch.empty(destination.shape, dtype=torch.float32, device=destination.device)
        destination.copy_(values.normal_(0, 0.02, generator=generator))

    def tokenizer(self) -> Tokenizer:
        return self._base.tokenizer()
