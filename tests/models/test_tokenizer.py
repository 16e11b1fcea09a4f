"""Token ids, chat prompts and streams of text."""

import json
import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from headway.models import ChatTemplateError, ModelError, Tokenizer
from headway.models.sources import smollm2_path
from headway.models.tokenizer_files import tokenizer_from_folder, tokenizer_from_gguf

TRUTH = json.loads((Path(__file__).parents[1] / "data" / "smollm2_truth.json").read_text())
TEXTS = [
    "Hello, world!",
    "  two  spaces, a tab\t, and lines\n\n\n  end ",
    "It's 12345 o'clock: 3.14159 or 1,000,000",
    "naïve café — “quoted” … 你好，世界。こんにちは 안녕 Здравствуйте مرحبا",
    "👩‍👩‍👧‍👦 🇫🇷 🤷🏽‍♀️ \u00a0\u200b",
    "def f(x):\n    return x**2  # comment\n\n\tif True:\n",
    "<|im_start|>user\nhi<|im_end|><|endoftext|><|im_start|>",
    "a" * 100 + "\r\n" + "!?" * 20,
]


@pytest.fixture(scope="module")
def tokenizer(smollm2) -> Tokenizer:
    return smollm2.tokenizer()


def test_the_prompt_of_the_truth(tokenizer):
    prompt = tokenizer.render_chat([{"role": "user", "content": "What is the capital of France?"}])
    assert prompt == TRUTH["prompt_text"]
    assert tokenizer.encode(prompt) == TRUTH["prompt_ids"]
    assert tokenizer.decode(TRUTH["token_ids"], skip_special_tokens=False) == TRUTH["text"]
    assert "<|im_end|>" not in tokenizer.decode(TRUTH["token_ids"])


def test_a_system_message_and_no_generation_prompt(tokenizer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert tokenizer.render_chat(messages, add_generation_prompt=False) == expected
    assert tokenizer.render_chat(messages) == expected + "<|im_start|>assistant\n"


def test_ids_and_prompts_are_those_of_transformers(tokenizer):
    from transformers import AutoTokenizer

    path = smollm2_path()
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert tokenizer.render_chat(chat) == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


def test_every_digit_is_a_word_of_its_own(tokenizer):
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("is 12345 x")]
    assert pieces == ["is", " ", "1", "2", "3", "4", "5", " x"]
    # Numbers of other scripts too; the merges would join this one's first byte to the space.
    assert tokenizer.encode("a ½²") == [token for part in ("a", " ", "½", "²") for token in tokenizer.encode(part)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_stream_is_the_whole_text_in_whole_characters(tokenizer, size):
    for text in TEXTS:
        ids = tokenizer.encode(text)
        stream = tokenizer.detokenizer()
        pieces = [stream.add(ids[at : at + size]) for at in range(0, len(ids), size)]
        assert not any("\ufffd" in piece for piece in pieces)
        assert "".join(pieces) + stream.flush() == tokenizer.decode(ids)


def test_a_stream_of_any_tokens_is_their_text(tokenizer):
    """Random ids are mostly broken UTF-8: the pieces still make up what decoding all at once gives."""
    for seed in range(20):
        ids = random.Random(seed).choices(range(49152), k=60)
        stream = tokenizer.detokenizer()
        assert "".join(stream.add([token]) for token in ids) + stream.flush() == tokenizer.decode(ids)


def test_a_character_waits_for_its_last_byte(tokenizer):
    ids = tokenizer.encode("🤷")
    assert len(ids) > 1
    stream = tokenizer.detokenizer()
    assert [stream.add([token]) for token in ids] == [""] * (len(ids) - 1) + ["🤷"]
    unfinished = tokenizer.detokenizer()
    assert unfinished.add(ids[:1]) == ""
    assert unfinished.flush() == "\ufffd"
    assert unfinished.flush() == ""


def test_decoders_that_look_at_neighbours_stream_with_their_spaces(tmp_path):
    """SentencePiece-like tokenizers strip a space in front of the first token only."""
    words = ["<unk>", "▁Hello", "▁big", "▁world", "!", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "</s>"]
    inner = tokenizers.Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens([AddedToken("</s>", special=True)])
    inner.save(str(tmp_path / "tokenizer.json"))
    stream = tokenizer_from_folder(tmp_path).detokenizer()
    ids = [1, 2, 3, 4, 3, 5, 6, 7, 8, 5, 6, 7, 8, 9, 9, 9, 9, 9, 2]
    pieces = [stream.add([token]) for token in ids]
    faces = ["", "", "", "😀"] * 2
    assert pieces == ["Hello", " big", " world", "!", " world", *faces, "", "", "", "", "", " big"]


CONFIG = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "special": True},
    "chat_template": "{% for m in messages %}{{ bos_token + m.content + eos_token }}{% endfor %}",
}


def save_folder(folder: Path, config: dict) -> None:
    inner = tokenizers.Tokenizer(models.BPE({"a": 0, "<s>": 1, "</s>": 2}, []))
    inner.add_special_tokens(["<s>", "</s>"])
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("named", [False, True])
def test_a_folder_gives_template_and_special_tokens(tmp_path, named):
    template = CONFIG["chat_template"]
    listed = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]
    save_folder(tmp_path, {**CONFIG, "chat_template": listed if named else template})
    tokenizer = tokenizer_from_folder(tmp_path)
    prompt = tokenizer.render_chat([{"role": "user", "content": "a"}])
    assert prompt == "<s>a</s>"
    assert tokenizer.encode(prompt) == [1, 0, 2]
    assert tokenizer.decode([1, 0, 2]) == "a"


def test_a_template_file_wins(tmp_path):
    save_folder(tmp_path, CONFIG)
    (tmp_path / "chat_template.jinja").write_text(
        "{%- if tools is not none %}tools{% endif %}\n    {% if true %}\n{{ flag }} {{ messages[0] | tojson }}"
        "{% endif %}{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    prompt = tokenizer_from_folder(tmp_path).render_chat([{"content": "<é>"}], variables={"flag": "on"})
    assert prompt == 'on {"content": "<é>"}01'


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[3].content }}", "messages"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
    ],
)
def test_a_template_that_refuses_is_an_error_of_the_request(tmp_path, template, message):
    save_folder(tmp_path, {**CONFIG, "chat_template": template})
    with pytest.raises(ChatTemplateError, match=message):
        tokenizer_from_folder(tmp_path).render_chat([{"role": "user", "content": "a"}])


def test_no_template_is_an_error_of_the_request(tmp_path):
    save_folder(tmp_path, {})
    tokenizer = tokenizer_from_folder(tmp_path)
    assert not tokenizer.has_chat_template
    with pytest.raises(ChatTemplateError, match="no chat template"):
        tokenizer.render_chat([])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{", "not a readable tokenizer"),
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer_config.json", "[]", "holds no JSON object"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "does not compile"),
        ("tokenizer_config.json", '{"chat_template": 3}', "must be a string"),
        ("tokenizer_config.json", '{"bos_token": {"text": 3}}', "bos_token"),
    ],
)
def test_broken_tokenizer_files(tmp_path, file, content, message):
    save_folder(tmp_path, CONFIG)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(ModelError, match=message):
        tokenizer_from_folder(tmp_path)


def gguf_metadata(**changes: object) -> dict[str, object]:
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "12", "123", "1234", "<|end|>", "<own>"]
    values = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": letters,
        "token_type": [1] * (len(letters) - 2) + [3, 4],
        "merges": ["a b", "1 2", "12 3", "123 4"],
        "bos_token_id": len(letters) - 2,
        **changes,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in values.items() if value is not None}


def test_llama3_words_and_its_first_token():
    tokenizer = tokenizer_from_gguf(gguf_metadata(), "file")
    pieces = [tokenizer.decode([token], skip_special_tokens=False) for token in tokenizer.encode("abab<own><|end|>")]
    assert pieces == ["ab", "ab", "<own>", "<|end|>"]
    assert [tokenizer.decode([token]) for token in tokenizer.encode("1234ab12")] == ["123", "4", "ab", "12"]
    ids = tokenizer.encode("ab", add_special_tokens=True)
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|end|>ab"
    assert tokenizer.decode(ids) == "ab"
    plain = tokenizer_from_gguf(gguf_metadata(add_bos_token=False), "file")
    assert plain.encode("ab", add_special_tokens=True) == ids[1:]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "tekken"}, "tokenizer.ggml.pre is 'tekken'; supported: gpt-2, smollm, llama-bpe"),
        ({"model": "llama"}, "tokenizer.ggml.model is 'llama'"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": ["a zebra"]}, "do not fit"),
        ({"merges": ["ab"]}, "do not fit"),
        ({"merges": [3]}, "tokenizer.ggml.merges"),
        ({"tokens": 3}, "tokenizer.ggml.tokens"),
        ({"token_type": [1]}, "1 token types for"),
        ({"bos_token_id": 10**6}, "tokenizer.ggml.bos_token_id is 1000000"),
        ({"bos_token_id": "x"}, "tokenizer.ggml.bos_token_id is 'x'"),
    ],
)
def test_broken_tokenizer_metadata(changes, message):
    with pytest.raises(ModelError, match=message):
        tokenizer_from_gguf(gguf_metadata(**changes), "file")
