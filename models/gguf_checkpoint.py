"""A model in one GGUF file, architecture `llama`."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from headway.models.checkpoint import Checkpoint
from headway.models.config import config_from_gguf
from headway.models.gguf_file import GgufFile
from headway.models.tokenizer import Tokenizer
from headway.models.tokenizer_files import tokenizer_from_gguf

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_DIVISORS = "rope_freqs.weight"


class GgufCheckpoint(Checkpoint):
    """Dequantises on reading, and brings the rows of query and key projections back into Hugging Face's order."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        self._file = GgufFile(path)
        divisors = self._file.read(_ROPE_DIVISORS).tolist() if _ROPE_DIVISORS in self._file.tensors else []
        tied = "output.weight" not in self._file.tensors
        self.config = config_from_gguf(self._file.metadata, tied, tuple(divisors))
        self._names = {_canonical(name): name for name in self._file.tensors if name != _ROPE_DIVISORS}

    def tensor_names(self) -> Collection[str]:
        return self._names.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._names[name]].shape

    def read_into(self, name: str, destination: Tensor) -> None:
        values = torch.from_numpy(self._file.read(self._names[name]))
        if ".q_proj." in name or ".k_proj." in name:
            # llama.cpp rotates neighbours, so its converter interleaved the two halves of each head.
            halves = values.view(-1, self.config.head_dim // 2, 2, *values.shape[1:])
            destination.view(-1, 2, self.config.head_dim // 2, *values.shape[1:]).copy_(halves.transpose(1, 2))
        else:
            destination.copy_(values)

    def tokenizer(self) -> Tokenizer:
        return tokenizer_from_gguf(self._file.metadata, self.source)


def _canonical(name: str) -> str:
    """The Hugging Face name; a name that is not known stays as it is, for the loader to report."""
    if name in _TOP:
        return _TOP[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _LAYER:
        return name
    return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"
