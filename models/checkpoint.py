"""What every source of a model gives: its config, its tensors by Hugging Face name, its tokenizer."""

from __future__ import annotations

import abc
from collections.abc import Collection

from torch import Tensor

from headway.models.config import ModelConfig
from headway.models.tokenizer import Tokenizer


class Checkpoint(abc.ABC):
    """A model's files. Weights are mapped and read on demand; a rank touches only what it asks for."""

    source: str  # path, for messages
    config: ModelConfig

    @abc.abstractmethod
    def tensor_names(self) -> Collection[str]:
        """The Hugging Face names of all tensors."""

    @abc.abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it. Raises ModelError if its file is broken."""

    @abc.abstractmethod
    def read_into(self, name: str, destination: Tensor) -> None:
        """Copy a tensor into `destination` of the same shape, in the dtype and on the device that it has."""

    @abc.abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer and its chat template. Raises ModelError."""
