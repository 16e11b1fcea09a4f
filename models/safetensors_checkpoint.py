"""A Hugging Face folder: `config.json`, `model.safetensors` in one file or in shards, tokenizer files."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from headway.models.checkpoint import Checkpoint
from headway.models.config import config_from_hugging_face
from headway.models.errors import ModelError
from headway.models.json_file import read_json
from headway.models.tokenizer import Tokenizer
from headway.models.tokenizer_files import tokenizer_from_folder

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class SafetensorsCheckpoint(Checkpoint):
    """Maps a shard when one of its tensors is first read."""

    def __init__(self, folder: Path, weights: bool = True) -> None:
        """Without `weights`, only config and tokenizer are looked at."""
        self.source = str(folder)
        self._folder = folder
        self._open: dict[str, Any] = {}
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder}: no config.json; a Hugging Face folder is needed")
        self.config = config_from_hugging_face(
            read_json(folder / "config.json"), read_json(folder / "generation_config.json", optional=True)
        )
        self._shards = self._find_shards() if weights else {}

    def tensor_names(self) -> Collection[str]:
        return self._shards.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        try:
            return tuple(self._shard(self._shards[name]).get_slice(name).get_shape())
        except SafetensorError as error:
            raise ModelError(f"{self._folder / self._shards[name]}: tensor {name!r}: {error}") from error

    def read_into(self, name: str, destination: Tensor) -> None:
        destination.copy_(self._shard(self._shards[name]).get_tensor(name))

    def tokenizer(self) -> Tokenizer:
        return tokenizer_from_folder(self._folder)

    def _find_shards(self) -> dict[str, str]:
        """The shard of each tensor."""
        if (self._folder / _SINGLE).is_file():
            return dict.fromkeys(self._shard(_SINGLE).keys(), _SINGLE)
        if not (self._folder / _INDEX).is_file():
            raise ModelError(f"{self._folder}: no weights; {_SINGLE} or {_INDEX} is needed")
        shards = read_json(self._folder / _INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
            raise ModelError(f"{self._folder / _INDEX}: weight_map must name the shard of each tensor")
        if any(Path(shard).name != shard for shard in shards.values()):
            raise ModelError(f"{self._folder / _INDEX}: shards must be in the folder itself")
        missing = sorted({shard for shard in shards.values() if not (self._folder / shard).is_file()})
        if missing:
            raise ModelError(f"{self._folder}: missing shard {missing[0]}")
        return shards

    def _shard(self, shard: str) -> Any:
        if shard not in self._open:
            try:
                self._open[shard] = safe_open(self._folder / shard, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{self._folder / shard}: not a readable safetensors file: {error}") from error
        return self._open[shard]
