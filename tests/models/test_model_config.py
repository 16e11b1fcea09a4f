"""Configs are read in full or refused with the field, the value and what is allowed; layers are split evenly."""

import math

import pytest
import torch

from headway.models import ModelError, partition
from headway.models.config import config_from_gguf, config_from_hugging_face
from headway.models.rotary import rotary_table

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}
SCALING = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4.0}
GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 100,
}


def test_old_and_new_ways_to_write_the_rotary_scaling_are_the_same():
    old = config_from_hugging_face({**LLAMA, "rope_theta": 5e5, "rope_scaling": SCALING}, {})
    new = config_from_hugging_face({**LLAMA, "rope_parameters": {**SCALING, "rope_theta": 5e5}}, {})
    assert old == new
    assert (old.rope_theta, old.rope_scaling.factor, old.rope_scaling.original_context) == (5e5, 8, 512)
    assert (old.head_dim, old.tied_embeddings, old.sliding_window) == (16, False, None)


def test_a_gguf_file_brings_the_same_config_and_the_scaling_as_divisors():
    raw = {**LLAMA, "rope_theta": 1e4, "bos_token_id": 1, "eos_token_id": [2, 3]}
    ours = config_from_hugging_face(raw, {})
    tokens = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 3}
    assert config_from_gguf({**GGUF, **tokens}, tied=False) == ours
    scaled = config_from_hugging_face({**raw, "rope_scaling": {**SCALING, "original_max_position_embeddings": 64}}, {})
    divisors = []
    for i in range(8):  # as llama.cpp's converter writes them
        wavelength = 2 * math.pi * 1e4 ** (i / 8)
        smooth = (64 / wavelength - 1) / (4 - 1)
        divisors.append(1.0 if wavelength < 16 else 8.0 if wavelength > 64 else 1 / ((1 - smooth) / 8 + smooth))
    assert len(set(divisors)) > 2
    with_divisors = config_from_gguf({**GGUF, **tokens}, tied=False, rope_divisors=tuple(divisors))
    torch.testing.assert_close(rotary_table(with_divisors, 512), rotary_table(scaled, 512), atol=1e-4, rtol=0)


def test_ends_are_those_of_both_files_once():
    config = config_from_hugging_face({**LLAMA, "eos_token_id": 2}, {"eos_token_id": [7, 2]})
    assert config.eos_ids == (7, 2)


def test_windows():
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"]}
    assert config_from_hugging_face({**mistral, "sliding_window": 40}, {}).sliding_window == 40
    assert config_from_hugging_face({**mistral, "sliding_window": None}, {}).sliding_window is None
    qwen = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 40, "use_sliding_window": False}
    config = config_from_hugging_face(qwen, {})
    assert (config.sliding_window, config.qkv_bias) == (None, True)


@pytest.mark.parametrize("name", [name for name in LLAMA if name != "num_key_value_heads"])
def test_a_missing_field_is_named(name):
    with pytest.raises(ModelError, match=f"field '{name}' is missing"):
        config_from_hugging_face({key: value for key, value in LLAMA.items() if key != name}, {})


@pytest.mark.parametrize("name", [name for name in GGUF if not name.endswith(("vocab_size", "head_count_kv"))])
def test_a_missing_metadata_field_is_named(name):
    with pytest.raises(ModelError, match=f"field '{name}' is missing"):
        config_from_gguf({key: value for key, value in GGUF.items() if key != name}, tied=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "supported: LlamaForCausalLM, MistralForCausalLM"),
        ({"architectures": "LlamaForCausalLM"}, "'architectures' is 'LlamaForCausalLM'; a list"),
        ({"hidden_size": "64"}, "'hidden_size' is '64'; a int is needed"),
        ({"hidden_size": True}, "'hidden_size' is True; a int is needed"),
        ({"vocab_size": 0}, "vocab_size is 0; it must be at least 1"),
        ({"num_attention_heads": 0}, "heads is 0; it must be at least 1"),
        ({"num_key_value_heads": 3}, "kv_heads is 3; it must divide heads, 4"),
        ({"head_dim": 5}, "head_dim is 5; it must be even"),
        ({"rms_norm_eps": -1.0}, "rms_eps is -1.0; it must be positive"),
        ({"rms_norm_eps": math.nan}, "rms_eps is nan; it must be positive"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0; it must be positive"),
        ({"sliding_window": 0, "architectures": ["MistralForCausalLM"]}, "sliding_window is 0; it must be at least 1"),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'; supported: 'silu'"),
        ({"attention_bias": True}, "'attention_bias' is True; supported: False"),
        ({"use_sliding_window": True}, "'use_sliding_window' is True"),
        ({"quantization_config": {"bits": 4}}, "'quantization_config'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type is 'yarn'; supported: 'default', 'llama3'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "field 'factor' is missing"),
        ({"eos_token_id": ["</s>"]}, "'eos_token_id' is"),
    ],
)
def test_what_is_not_supported_is_refused(change, message):
    with pytest.raises(ModelError, match=message) as caught:
        config_from_hugging_face({**LLAMA, **change}, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "qwen2"}, "is 'qwen2'; supported: 'llama'"),
        ({"llama.expert_count": 8}, "'llama.expert_count' is 8"),
        ({"llama.rope.scaling.type": "yarn"}, "'llama.rope.scaling.type' is 'yarn'"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count is 8; it must be the head size, 16"),
        ({"llama.attention.head_count_kv": [2, 2]}, r"head_count_kv' is \[2, 2\]; a int"),
    ],
)
def test_metadata_that_is_not_supported_is_refused(change, message):
    with pytest.raises(ModelError, match=message):
        config_from_gguf({**GGUF, **change}, tied=True)


@pytest.mark.parametrize(("layers", "ranks"), [(30, 1), (30, 3), (30, 4), (7, 7), (5, 3), (32, 6)])
def test_layers_are_split_evenly_and_in_order(layers, ranks):
    spans = partition(layers, ranks)
    assert [layer for span in spans for layer in range(span.begin, span.end)] == list(range(layers))
    sizes = [span.layers for span in spans]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert [span.first for span in spans] == [rank == 0 for rank in range(ranks)]
    assert [span.last for span in spans] == [rank == ranks - 1 for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [0, -1, 31])
def test_ranks_without_layers_are_refused(ranks):
    with pytest.raises(ModelError, match=f"pp is {ranks}; it must be from 1 to the model's number of layers, 30"):
        partition(30, ranks)
