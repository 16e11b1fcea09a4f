"""The weights of one stage: which tensors a model has, and a strict loader that fuses them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.kernels import Kernels
from headway.models.checkpoint import Checkpoint
from headway.models.config import ModelConfig
from headway.models.errors import ModelError
from headway.models.partition import StageSpan

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. Matrices are packed; `qkv` stacks queries, keys, values; `gate_up` gate, up."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: tuple[Tensor, Tensor] | None
    output: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class StageWeights:
    """What one rank holds: `embedding` on the first, `final_norm` and `head` on the last."""

    layers: tuple[LayerWeights, ...]
    embedding: Tensor | None
    final_norm: Tensor | None
    head: Tensor | None


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The Hugging Face names and shapes of all tensors of a model."""
    hidden, ffn, head_dim = config.hidden_size, config.ffn_size, config.head_dim
    queries, keys = config.heads * head_dim, config.kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not config.tied_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (rows, hidden)
            if config.qkv_bias:
                shapes[f"{prefix}self_attn.{name}_proj.bias"] = (rows,)
            if config.qk_norm and name != "v":
                shapes[f"{prefix}self_attn.{name}_norm.weight"] = (head_dim,)
        shapes[f"{prefix}self_attn.o_proj.weight"] = (hidden, queries)
        shapes[f"{prefix}mlp.gate_proj.weight"] = (ffn, hidden)
        shapes[f"{prefix}mlp.up_proj.weight"] = (ffn, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, ffn)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    return shapes


def load_stage_weights(
    checkpoint: Checkpoint,
    span: StageSpan,
    kernels: Kernels,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> StageWeights:
    """Read the layers of `span` to `device` and pack their matrices for `kernels`.

    Missing, left-over or misshapen tensors raise ModelError.
    """
    config = checkpoint.config
    _check_last_layer(checkpoint)
    shapes = expected_tensors(config)
    _check_names(checkpoint, shapes)

    def load(*names: str) -> Tensor:
        """The named tensors stacked along their first dimension, each read straight into its place."""
        for name in names:
            if checkpoint.shape(name) != shapes[name]:
                raise ModelError(
                    f"{checkpoint.source}: tensor {name!r} has shape {checkpoint.shape(name)}; {shapes[name]} is needed"
                )
        rows = [shapes[name][0] for name in names]
        stacked = torch.empty((sum(rows), *shapes[names[0]][1:]), dtype=dtype, device=device)
        for name, part in zip(names, torch.split(stacked, rows), strict=True):
            checkpoint.read_into(name, part)
        return stacked

    def matrix(*names: str) -> Tensor:
        return kernels.pack(load(*names))

    def layer(index: int) -> LayerWeights:
        attention, mlp = f"model.layers.{index}.self_attn.", f"model.layers.{index}.mlp."
        return LayerWeights(
            input_norm=load(f"model.layers.{index}.input_layernorm.weight"),
            qkv=matrix(*(f"{attention}{name}_proj.weight" for name in "qkv")),
            qkv_bias=load(*(f"{attention}{name}_proj.bias" for name in "qkv")) if config.qkv_bias else None,
            head_norms=(load(f"{attention}q_norm.weight"), load(f"{attention}k_norm.weight"))
            if config.qk_norm
            else None,
            output=matrix(f"{attention}o_proj.weight"),
            ffn_norm=load(f"model.layers.{index}.post_attention_layernorm.weight"),
            gate_up=matrix(f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"),
            down=matrix(f"{mlp}down_proj.weight"),
        )

    embedding = load(EMBEDDING) if span.first else None
    head = None
    if span.last:
        shared = embedding if config.tied_embeddings else None  # on one rank, both ends use the same tensor
        if shared is None:
            shared = load(EMBEDDING if config.tied_embeddings else HEAD)
        head = kernels.pack(shared)
    return StageWeights(
        layers=tuple(layer(index) for index in range(span.begin, span.end)),
        embedding=embedding,
        final_norm=load(FINAL_NORM) if span.last else None,
        head=head,
    )


def _check_last_layer(checkpoint: Checkpoint) -> None:
    """A damaged file may claim billions of layers: look for the last one before listing their tensors."""
    layers = checkpoint.config.layers
    name = f"model.layers.{layers - 1}.input_layernorm.weight"
    if name not in checkpoint.tensor_names():
        raise ModelError(f"{checkpoint.source}: missing tensors: {name}, of the last of {layers} layers")


def _check_names(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]]) -> None:
    present = checkpoint.tensor_names()
    missing = [name for name in shapes if name not in present]
    if missing:
        raise ModelError(f"{checkpoint.source}: missing tensors: {_some(missing)}")
    # Old files carry the head beside the embedding that it is tied to, and tables computed from the config.
    spare = {HEAD} if checkpoint.config.tied_embeddings else set()
    left_over = [
        name
        for name in present
        if name not in shapes and name not in spare and not name.endswith(".rotary_emb.inv_freq")
    ]
    if left_over:
        raise ModelError(f"{checkpoint.source}: tensors that the config does not account for: {_some(left_over)}")


def _some(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
