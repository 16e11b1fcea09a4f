"""SmolLM2 from its GGUF file: the tokens that `transformers` gives, however the model is split and the work is cut."""

import json
from pathlib import Path

import pytest
import torch

from headway.models.weights import expected_tensors

TRUTH = json.loads((Path(__file__).parents[1] / "data" / "smollm2_truth.json").read_text())
PROMPTS = [
    "The three primary colours are",
    "def fibonacci(n):\n",
    "In 1969, 2 men walked on the Moon. ",
    "<|im_start|>user\nWrite a haiku about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time there was a king. " * 12 + "He",
]
COUNT = 12


@pytest.fixture(scope="module")
def whole(smollm2, make_pipeline):
    return make_pipeline(smollm2)


@pytest.fixture(scope="module")
def continuations(smollm2) -> dict[str, list[int]]:
    """What LlamaForCausalLM of `transformers` says to each prompt, given the tensors that we read from the file."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = smollm2.config
    theirs = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.ffn_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        rms_norm_eps=config.rms_eps,
        max_position_embeddings=config.context_length,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=config.bos_id,
        eos_token_id=None,
    )
    tensors = {name: torch.empty(shape) for name, shape in expected_tensors(config).items()}
    for name, tensor in tensors.items():
        smollm2.read_into(name, tensor)
    with torch.device("meta"):
        model = LlamaForCausalLM(theirs)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors, assign=True)
    model.model.rotary_emb = LlamaRotaryEmbedding(theirs)
    model.eval()
    tokenizer, answers = smollm2.tokenizer(), {}
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt)])
        mask = torch.ones_like(ids)
        answer = model.generate(ids, attention_mask=mask, max_new_tokens=COUNT, do_sample=False, pad_token_id=2)
        answers[prompt] = answer[0, ids.shape[1] :].tolist()
    return answers


def test_logits_are_those_of_the_truth(whole):
    tokens, fed = TRUTH["prompt_ids"], []
    for step, expected in zip(TRUTH["steps"], TRUTH["token_ids"], strict=True):
        logits = whole.step({"logits": tokens})["logits"]
        top = logits.topk(5)
        assert top.indices.tolist() == step["top5"]
        torch.testing.assert_close(top.values, torch.tensor(step["logits"]), atol=2e-3, rtol=0)
        torch.testing.assert_close(
            logits.log_softmax(-1)[top.indices], torch.tensor(step["logprobs"]), atol=1e-3, rtol=0
        )
        tokens = [int(logits.argmax())]
        fed += tokens
        assert tokens == [expected]
    assert fed == TRUTH["token_ids"]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_more_ranks_give_the_same_tokens(smollm2, make_pipeline, ranks):
    pipeline = make_pipeline(smollm2, ranks=ranks)
    assert pipeline.greedy("split", TRUTH["prompt_ids"], 20, chunk=10) == TRUTH["token_ids"]


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_chunked_prompts_give_the_same_tokens(whole, chunk):
    assert whole.greedy(f"chunk {chunk}", TRUTH["prompt_ids"], 8, chunk) == TRUTH["token_ids"][:8]


def test_other_prompts_agree_with_transformers_alone(whole, smollm2, continuations):
    tokenizer = smollm2.tokenizer()
    for prompt, expected in continuations.items():
        assert whole.greedy(f"alone {prompt}", tokenizer.encode(prompt), COUNT) == expected


def test_other_prompts_agree_with_transformers_in_a_mixed_batch(whole, smollm2, continuations):
    """All at once, joining one pass after the other, in chunks of different sizes, decodes beside prefills."""
    tokenizer = smollm2.tokenizer()
    left = {prompt: tokenizer.encode(prompt) for prompt in continuations}
    chunk = {prompt: 5 + 20 * index for index, prompt in enumerate(left)}
    got: dict[str, list[int]] = {prompt: [] for prompt in left}
    passes = 0
    while any(len(tokens) < COUNT for tokens in got.values()):
        rows = {}
        for index, prompt in enumerate(got):
            if index <= passes and len(got[prompt]) < COUNT:
                rows[prompt] = left[prompt][: chunk[prompt]] or got[prompt][-1:]
                left[prompt] = left[prompt][chunk[prompt] :]
        logits = whole.step({f"mixed {prompt}": tokens for prompt, tokens in rows.items()})
        for prompt in rows:
            if not left[prompt]:
                got[prompt].append(int(logits[f"mixed {prompt}"].argmax()))
        passes += 1
    assert got == continuations


def test_bfloat16_stays_near(smollm2, make_pipeline):
    pipeline = make_pipeline(smollm2, dtype=torch.bfloat16)
    logits = pipeline.step({"a": TRUTH["prompt_ids"]})["a"].float()
    step = TRUTH["steps"][0]
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits[step["top5"]], torch.tensor(step["logits"]), atol=0.6, rtol=0)
