"""Small random models of each family, saved by `transformers`, against `transformers` in float32."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from headway.models import ModelError, open_checkpoint

COMMON = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = {
    "llama": transformers.LlamaConfig(**COMMON, rope_parameters=LLAMA3, tie_word_embeddings=True),
    "mistral": transformers.MistralConfig(**COMMON, sliding_window=12),
    "mistral without window": transformers.MistralConfig(**COMMON, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**COMMON, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "qwen3": transformers.Qwen3Config(**COMMON, head_dim=20),
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def saved(request, tmp_path_factory):
    """The model, and the folder it was saved in, in several shards."""
    torch.manual_seed(list(FAMILIES).index(request.param))
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[request.param], dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that norms and biases matter too
            parameter.add_(torch.randn_like(parameter) * 0.15)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder, max_shard_size="50KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return model, folder


@torch.no_grad()
def greedy(model, ids: list[int], count: int) -> list[int]:
    tokens = list(ids)
    for _ in range(count):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(ids) :]


def test_logits_and_greedy_tokens_agree(saved, make_pipeline):
    model, folder = saved
    checkpoint = open_checkpoint(str(folder))
    prompts = [torch.randint(3, 160, (length,)).tolist() for length in (70, 1, 23)]
    for ranks in (1, 3):
        pipeline = make_pipeline(checkpoint, ranks=ranks, page_size=8)
        logits = pipeline.step({str(index): prompt for index, prompt in enumerate(prompts)})
        for index, prompt in enumerate(prompts):
            with torch.no_grad():
                expected = model(torch.tensor([prompt])).logits[0, -1]
            torch.testing.assert_close(logits[str(index)], expected, atol=2e-4, rtol=1e-4)
        for prompt in prompts:
            expected_tokens = greedy(model, prompt, 12)
            assert pipeline.greedy(f"whole {len(prompt)}", prompt, 12) == expected_tokens
            assert pipeline.greedy(f"chunks {len(prompt)}", prompt, 12, chunk=9) == expected_tokens


def test_one_file_and_many_shards_are_the_same(saved, tmp_path, make_pipeline):
    model, folder = saved
    model.save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.glob("*.safetensors*")] == ["model.safetensors"]
    one, many = (make_pipeline(open_checkpoint(str(path))).step({"a": [5, 6, 7]})["a"] for path in (tmp_path, folder))
    assert torch.equal(one, many)


def test_a_config_alone_gives_seeded_weights_that_do_not_depend_on_the_split(saved, tmp_path, make_pipeline):
    _, folder = saved
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    first, again, other = (open_checkpoint(str(tmp_path), load_format="dummy", seed=seed) for seed in (1, 1, 2))
    logits = [make_pipeline(c, ranks=n).step({"a": [5, 6, 7]})["a"] for c, n in ((first, 1), (again, 3), (other, 1))]
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=0)
    assert not torch.allclose(logits[0], logits[2], atol=1e-2)
    with pytest.raises(ModelError, match="no weights"):
        open_checkpoint(str(tmp_path))


def edit_one_file(model, folder, change) -> None:
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "missing tensors: model.norm.weight"),
        (lambda t: t.pop("model.layers.2.input_layernorm.weight"), "of the last of 3 layers"),
        (lambda t: t.update(spare=torch.ones(1)), "does not account for: spare"),
        (lambda t: t.update({"model.norm.weight": torch.ones(49)}), r"shape \(49,\); \(48,\) is needed"),
    ],
)
def test_the_loader_is_strict(saved, tmp_path, make_pipeline, change, message):
    model, _ = saved
    edit_one_file(model, tmp_path, change)
    with pytest.raises(ModelError, match=message):
        make_pipeline(open_checkpoint(str(tmp_path)))


def test_tensors_that_older_files_carry_are_ignored(saved, tmp_path, make_pipeline):
    model, folder = saved
    edit_one_file(model, tmp_path, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    if json.loads((folder / "config.json").read_text())["tie_word_embeddings"]:
        edit_one_file(model, tmp_path, lambda t: t.update({"lm_head.weight": torch.ones(1)}))
    make_pipeline(open_checkpoint(str(tmp_path)))
