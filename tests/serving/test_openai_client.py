"""The official client against a real server, with a scripted engine behind it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from headway.engine.messages import Abort, Generated, Sampling, Submit

END = 256
USER = [{"role": "user", "content": "hi"}]


def submitted(server) -> Submit:
    (only,) = server.rank0.of(Submit)
    return only


def test_chat(server, speak):
    server.rank0.script = speak("Grüß dich")
    messages = [{"role": "developer", "content": "be kind"}, *USER]
    answer = server.client.chat.completions.create(model="bytes", messages=messages)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Grüß dich", "stop")
    assert (answer.object, answer.model, answer.system_fingerprint) == ("chat.completion", "bytes", "table-1")
    prompt = list(b"<system>be kind<user>hi")
    assert (submitted(server).prompt, submitted(server).stop_tokens) == (prompt, [END])
    assert submitted(server).max_tokens == 512 - len(prompt)
    # Eleven bytes and the stop token.
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (23, 12, 35)
    assert answer.model_extra == {}
    assert choice.model_extra == {}


def test_streamed_chat(server, speak):
    server.rank0.script = speak("Grüß dich")
    chunks = list(server.client.chat.completions.create(model="bytes", messages=USER, stream=True))
    assert {(chunk.object, chunk.id) for chunk in chunks} == {("chat.completion.chunk", chunks[0].id)}
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    # One chunk a character, none for the first byte of a character of two; then the end.
    assert [delta.content for delta in deltas] == [*"Grüß dich", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 9 + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_ends_a_stream_on_request(server, speak):
    server.rank0.script = speak("four")
    chunks = list(
        server.client.chat.completions.create(
            model="bytes", messages=USER, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"}) == {
        "prompt_tokens": 8,
        "completion_tokens": 5,
        "total_tokens": 13,
    }
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_stream_is_server_sent_events_and_says_when_it_is_done(server, speak):
    server.rank0.script = speak("ab")
    answer = server.http.post("/v1/completions", json={"prompt": "x", "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert all(event.startswith("data: {") for event in events[:-2])
    assert events[-2:] == ["data: [DONE]", ""]
    assert "usage" not in answer.text


@pytest.mark.parametrize("prompt", ["once", list(b"once")])
def test_completion_of_text_and_of_token_ids(server, speak, prompt):
    server.rank0.script = speak(" upon a time, in a land")
    answer = server.client.completions.create(model="bytes", prompt=prompt)
    assert submitted(server).prompt == list(b"once")
    # OpenAI's default for completions is 16 tokens.
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (" upon a time, in", "length")
    chunks = list(server.client.completions.create(model="bytes", prompt=prompt, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == " upon a time, in"
    assert chunks[-1].choices[0].finish_reason == "length"


def test_every_sampling_parameter_reaches_the_engine(server):
    server.client.completions.create(
        model="bytes", prompt="x", temperature=0.5, top_p=0.9, max_tokens=3, seed=7, extra_body={"top_k": 40}
    )
    assert submitted(server).sampling == Sampling(temperature=0.5, top_p=0.9, top_k=40, seed=7)
    assert submitted(server).max_tokens == 3


def test_temperature_is_one_unless_given_and_zero_is_greedy(server):
    for given in (None, 0, 1e-300):
        server.client.chat.completions.create(model="bytes", messages=USER, temperature=given)
    assert [new.sampling.temperature for new in server.rank0.of(Submit)] == [1.0, 0.0, 0.0]


def test_top_k_of_the_whole_vocabulary_is_no_limit(server):
    for top_k in (256, 257, 10**30):
        server.client.completions.create(model="bytes", prompt="x", extra_body={"top_k": top_k})
    assert [new.sampling.top_k for new in server.rank0.of(Submit)] == [256, 0, 0]


def test_max_completion_tokens_is_max_tokens(server, speak):
    server.rank0.script = speak("endless", end=False)
    answer = server.client.chat.completions.create(model="bytes", messages=USER, max_completion_tokens=3)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("end", "length")


def test_ignore_eos_sends_no_stop_tokens(server, speak):
    server.rank0.script = speak("ab")
    answer = server.client.completions.create(
        model="bytes", prompt="x", max_tokens=3, extra_body={"ignore_eos": True, "return_token_ids": True}
    )
    assert submitted(server).stop_tokens == []
    assert (answer.choices[0].token_ids, answer.choices[0].finish_reason) == ([97, 98, END], "length")


def test_token_ids_are_told_on_request(server, speak):
    server.rank0.script = speak("ü.")
    extra = {"return_token_ids": True}
    (whole,) = server.client.chat.completions.create(model="bytes", messages=USER, extra_body=extra).choices
    assert whole.token_ids == [*"ü.".encode(), END]
    assert whole.prompt_token_ids == list(b"<user>hi")
    stream = server.client.chat.completions.create(model="bytes", messages=USER, stream=True, extra_body=extra)
    parts = [chunk.choices[0] for chunk in stream]
    assert [part.token_ids for part in parts] == [[0xC3], [0xBC], [ord(".")], [END]]
    assert parts[0].prompt_token_ids == list(b"<user>hi")
    assert "prompt_token_ids" not in parts[1].model_extra


@pytest.mark.parametrize("stop", ["STOP", ["never", "STOP", "STOPPED"]])
def test_a_stop_string_ends_the_text_and_aborts_the_request(server, speak, stop):
    server.rank0.script = speak("one ST two STOPPED three", end=False)
    answer = server.client.completions.create(model="bytes", prompt="x", max_tokens=100, stop=stop)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("one ST two ", "stop")
    assert answer.usage.completion_tokens == len("one ST two STOP")
    chunks = list(server.client.completions.create(model="bytes", prompt="x", max_tokens=100, stop=stop, stream=True))
    texts = [chunk.choices[0].text for chunk in chunks]
    assert "".join(texts) == "one ST two "
    assert "S" not in texts  # Held back until it was clear that no stop string begins.
    requests = [new.request for new in server.rank0.of(Submit)]
    server.rank0.await_received(lambda messages: [m.request for m in messages if isinstance(m, Abort)] == requests)


def test_tokens_reported_after_a_stop_string_are_dropped(server):
    def several_at_once(new):
        yield Generated(new.request, list(b"a.b"))
        for _ in range(20):
            yield Generated(new.request, list(b"more"))
        yield Generated(new.request, [END], "stop")

    server.rank0.script = several_at_once
    answer = server.client.completions.create(
        model="bytes", prompt="x", stop=".", n=2, max_tokens=100, extra_body={"return_token_ids": True}
    )
    assert [(c.text, c.finish_reason, c.token_ids) for c in answer.choices] == [("a", "stop", list(b"a."))] * 2
    assert answer.usage.completion_tokens == 4


def test_several_prompts_and_choices(server):
    def echo(new):
        yield Generated(new.request, [*new.prompt, ord("0") + new.sampling.seed])
        yield Generated(new.request, [END], "stop")

    server.rank0.script = echo
    options = {"model": "bytes", "prompt": ["ab", "c"], "n": 2, "seed": 3}
    answer = server.client.completions.create(**options)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "ab3"), (1, "ab4"), (2, "c3"), (3, "c4")]
    # A prompt counts once; two choices of "ab", a digit and the stop token, two of "c", a digit and the stop token.
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 14)
    texts = dict.fromkeys(range(4), "")
    for chunk in server.client.completions.create(stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "ab3", 1: "ab4", 2: "c3", 3: "c4"}


def test_fields_at_their_defaults_are_accepted(server, speak):
    server.rank0.script = speak("ok")
    said = server.client.chat.completions.create(model="bytes", messages=USER).choices[0].message
    answer = server.client.chat.completions.create(
        model="bytes",
        messages=[
            *USER,
            said,
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        frequency_penalty=0,
        presence_penalty=0.0,
        logit_bias={},
        logprobs=False,
        n=1,
        response_format={"type": "text"},
        tools=[],
        tool_choice="none",
        user="someone",
        stop=None,
        metadata={"a": "b"},
        service_tier="auto",
        store=False,
    )
    assert answer.choices[0].message.content == "ok"
    assert server.rank0.of(Submit)[1].prompt == list(b"<user>hi<assistant>ok<user>ab")


def test_models(server):
    (card,) = server.client.models.list().data
    assert (card.id, card.object) == ("bytes", "model")
    assert server.client.models.retrieve("bytes") == card


def test_concurrent_streams_get_their_own_tokens(server):
    def count(new):
        for number in range(new.prompt[0]):
            yield Generated(new.request, [(new.prompt[0] + number) % 128])
        yield Generated(new.request, [END], "stop")

    server.rank0.script = count

    def run(length: int) -> str:
        stream = server.client.completions.create(model="bytes", prompt=[length], max_tokens=200, stream=True)
        return "".join(chunk.choices[0].text for chunk in stream)

    lengths = range(1, 33)
    with ThreadPoolExecutor(32) as pool:
        texts = list(pool.map(run, lengths))
    assert texts == ["".join(chr((length + number) % 128) for number in range(length)) for length in lengths]
