"""The server with the tokenizer of the models instead of the fake."""

from __future__ import annotations

import pytest
import tokenizers

from headway.engine.messages import Submit
from headway.engine.serving import TextCodec
from headway.models.tokenizer import Tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> TextCodec:
    """One token a byte."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    plain = tokenizers.Tokenizer(tokenizers.models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(plain, TEMPLATE, {})


@pytest.fixture
def running(launch, tokenizer):
    return launch(tokenizer=tokenizer)


def test_characters_of_several_tokens_come_whole_and_stop_strings_cut_them(running, tokenizer, speak):
    text = "Ça va? 🐢 über"
    running.rank0.script = speak(tokenizer.encode(text))
    options = {"model": "bytes", "messages": [{"role": "user", "content": "ü"}]}
    deltas = [c.choices[0].delta.content for c in running.client.chat.completions.create(stream=True, **options)]
    assert deltas == [*text, None]
    (new,) = running.rank0.of(Submit)
    assert tokenizer.decode(new.prompt) == "[ü]>"
    answer = running.client.chat.completions.create(stop=["🐢"], **options)
    assert answer.choices[0].message.content == "Ça va? "


def test_what_the_chat_template_refuses_is_a_bad_request(running):
    answer = running.http.post("/v1/chat/completions", json={"messages": [{"role": "system", "content": "x"}]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
    assert "no system role" in answer.json()["error"]["message"]
