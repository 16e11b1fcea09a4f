"""The shape of a decoder, from a Hugging Face `config.json` or from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from headway.models.errors import ModelError

Family = Literal["llama", "mistral", "qwen2", "qwen3"]

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

T = TypeVar("T")


class Llama3Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Llama 3.1's stretching of low rotary frequencies; names as in `config.json`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A dense decoder of the Llama kind. Sizes in elements, `context_length` in tokens.

    `rope_divisors` are per-frequency divisors that a GGUF file brings instead of `rope_scaling`. A
    `sliding_window` of w lets a token see itself and the w - 1 tokens before it. Raises ModelError.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    ffn_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    context_length: int
    rope_theta: float = 10000.0
    rope_scaling: Llama3Scaling | None = None
    rope_divisors: tuple[float, ...] = ()
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "ffn_size": self.ffn_size,
            "layers": self.layers,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "context_length": self.context_length,
            "sliding_window": 1 if self.sliding_window is None else self.sliding_window,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ModelError(f"model config: {name} is {size}; it must be at least 1")
        for name, value in (("rms_eps", self.rms_eps), ("rope_theta", self.rope_theta)):
            if not 0 < value < math.inf:
                raise ModelError(f"model config: {name} is {value}; it must be positive and finite")
        if self.heads % self.kv_heads:
            raise ModelError(f"model config: kv_heads is {self.kv_heads}; it must divide heads, {self.heads}")
        if self.head_dim % 2:
            raise ModelError(f"model config: head_dim is {self.head_dim}; it must be even for rotary embeddings")
        if self.rope_divisors and len(self.rope_divisors) != self.head_dim // 2:
            raise ModelError(
                f"model config: {len(self.rope_divisors)} rope_divisors; there must be {self.head_dim // 2}"
            )


def config_from_hugging_face(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """Read the objects of `config.json` and `generation_config.json` (empty where there is none)."""
    architectures = _field(raw, "architectures", list)
    family = next((ARCHITECTURES[name] for name in architectures if name in ARCHITECTURES), None)
    if family is None:
        raise ModelError(f"config.json: architectures is {architectures}; supported: {', '.join(ARCHITECTURES)}")
    _refuse(raw, "hidden_act", "silu")
    _refuse(raw, "mlp_bias", False)
    _refuse(raw, "attention_bias", False)
    _refuse(raw, "quantization_config", None)
    _refuse(raw, "use_sliding_window", False)  # Qwen's window holds for some of the layers only
    heads = _field(raw, "num_attention_heads", int)
    hidden = _field(raw, "hidden_size", int)
    context = _field(raw, "max_position_embeddings", int)
    theta, scaling = _rope(raw, context)
    # Only Qwen3's head size differs from hidden / heads by default; its files always name it.
    head_dim = _field(raw, "head_dim", int) if family == "qwen3" else _optional(raw, "head_dim", int)
    # Mistral alone has a window by default, and says null where a model has none.
    window = _optional(raw, "sliding_window", int) if family == "mistral" else None
    ends = generation.get("eos_token_id"), raw.get("eos_token_id")
    return ModelConfig(
        family=family,
        vocab_size=_field(raw, "vocab_size", int),
        hidden_size=hidden,
        ffn_size=_field(raw, "intermediate_size", int),
        layers=_field(raw, "num_hidden_layers", int),
        heads=heads,
        kv_heads=_optional(raw, "num_key_value_heads", int) or heads,
        head_dim=head_dim or hidden // max(heads, 1),
        rms_eps=_field(raw, "rms_norm_eps", float),
        context_length=context,
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings=bool(_optional(raw, "tie_word_embeddings", bool)),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        sliding_window=window,
        bos_id=_optional(raw, "bos_token_id", int),
        eos_ids=tuple(dict.fromkeys(token for end in ends for token in _token_ids(end))),
    )


def config_from_gguf(metadata: Mapping[str, Any], tied: bool, rope_divisors: tuple[float, ...] = ()) -> ModelConfig:
    """Read GGUF metadata of architecture `llama`; `tied` when the file has no tensor `output.weight`."""
    architecture = _field(metadata, "general.architecture", str)
    if architecture != "llama":
        raise ModelError(f"GGUF: general.architecture is {architecture!r}; supported: 'llama'")
    _refuse(metadata, "llama.expert_count", 0)
    _refuse(metadata, "llama.rope.scaling.type", "none")
    heads = _field(metadata, "llama.attention.head_count", int)
    hidden = _field(metadata, "llama.embedding_length", int)
    head_dim = _optional(metadata, "llama.attention.key_length", int) or hidden // max(heads, 1)
    rotated = _optional(metadata, "llama.rope.dimension_count", int) or head_dim
    if rotated != head_dim:
        raise ModelError(f"GGUF: llama.rope.dimension_count is {rotated}; it must be the head size, {head_dim}")
    ends = (_optional(metadata, f"tokenizer.ggml.{name}_token_id", int) for name in ("eos", "eot"))
    return ModelConfig(
        family="llama",
        vocab_size=_optional(metadata, "llama.vocab_size", int) or len(_field(metadata, "tokenizer.ggml.tokens", list)),
        hidden_size=hidden,
        ffn_size=_field(metadata, "llama.feed_forward_length", int),
        layers=_field(metadata, "llama.block_count", int),
        heads=heads,
        kv_heads=_optional(metadata, "llama.attention.head_count_kv", int) or heads,
        head_dim=head_dim,
        rms_eps=_field(metadata, "llama.attention.layer_norm_rms_epsilon", float),
        context_length=_field(metadata, "llama.context_length", int),
        rope_theta=_optional(metadata, "llama.rope.freq_base", float) or 10000.0,
        rope_divisors=rope_divisors,
        tied_embeddings=tied,
        bos_id=_optional(metadata, "tokenizer.ggml.bos_token_id", int),
        eos_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
    )


def _rope(raw: Mapping[str, Any], context: int) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    parameters = _optional(raw, "rope_parameters", dict) or _optional(raw, "rope_scaling", dict) or {}
    theta = _optional(parameters, "rope_theta", float)
    if theta is None:
        theta = _optional(raw, "rope_theta", float)
    if theta is None:
        theta = 10000.0
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    _refuse(parameters, "partial_rotary_factor", 1.0)
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ModelError(f"config.json: rope_type is {kind!r}; supported: 'default', 'llama3'")
    return theta, Llama3Scaling(
        factor=_field(parameters, "factor", float),
        low_freq_factor=_field(parameters, "low_freq_factor", float),
        high_freq_factor=_field(parameters, "high_freq_factor", float),
        original_context=_optional(parameters, "original_max_position_embeddings", int) or context,
    )


def _field(raw: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = _optional(raw, name, kind)
    if value is None:
        raise ModelError(f"model config: field {name!r} is missing; a {kind.__name__} is needed")
    return value


def _optional(raw: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    value = raw.get(name)
    if value is None:
        return None
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ModelError(f"model config: field {name!r} is {value!r}; a {kind.__name__} is needed")
    return value


def _refuse(raw: Mapping[str, Any], name: str, supported: object) -> None:
    """Raise for a field that changes the arithmetic in a way that we do not implement."""
    if raw.get(name, supported) not in (supported, None):
        raise ModelError(f"model config: field {name!r} is {raw[name]!r}; supported: {supported!r}")


def _token_ids(value: object) -> list[int]:
    if value is None:
        return []
    ids: list[Any] = value if isinstance(value, list) else [value]
    if not all(type(token) is int for token in ids):
        raise ModelError(f"model config: field 'eos_token_id' is {value!r}; a token id or a list of them is needed")
    return ids
