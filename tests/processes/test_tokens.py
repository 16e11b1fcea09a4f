"""Real ranks give the tokens of the model, whatever runs beside them, and give back what they took."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import openai
import pytest

DATA = Path(__file__).parents[1] / "data"
TRUTH = json.loads((DATA / "smollm2_truth.json").read_text())
CASES = json.loads((DATA / "smollm2_greedy.json").read_text())["cases"] + [TRUTH]
LONGEST = max(CASES, key=lambda case: len(case["prompt_ids"]))
END_OF_TEXT = 2
GREEDY = {"extra": {"ignore_eos": True}}
RANKS = (1, 2, 3, 4)
CROWD = ("--pp", "3", "--slots", "4")
in_crowd = pytest.mark.xdist_group("crowd")


def until_stop(tokens: list[int]) -> list[int]:
    """Tokens up to the end of the text, which is reported with them."""
    return tokens[: tokens.index(END_OF_TEXT) + 1] if END_OF_TEXT in tokens else tokens


@pytest.fixture(
    scope="module", params=[pytest.param(each, marks=pytest.mark.xdist_group(f"pp{each}")) for each in RANKS]
)
def pipeline(servers, request):
    """A server with 1 to 4 ranks, whose passes of 40 tokens hold the truth's prompt and cut those of a hundred."""
    served = servers.get("--pp", str(request.param), "--max-batch-tokens", "40", "--kv-pages", "256")
    assert len(served.ranks) == request.param
    return served


def test_greedy_tokens_alone(pipeline):
    for case in (TRUTH, LONGEST):
        answer = pipeline.generate(case["prompt_ids"], len(case["token_ids"]), stream=case is TRUTH, **GREEDY)
        assert answer.tokens == case["token_ids"]
        assert answer.finish == "length"


def test_greedy_tokens_in_a_busy_batch(pipeline):
    before = pipeline.await_rest()["headway_passes_total"]
    expected = [case["token_ids"][: 8 + number] for number, case in enumerate(CASES)]
    jobs = [
        partial(pipeline.generate, case["prompt_ids"], len(tokens), **GREEDY)
        for case, tokens in zip(CASES, expected, strict=True)
    ]
    assert [answer.tokens for answer in pipeline.together(jobs)] == expected
    passes = pipeline.await_rest()["headway_passes_total"] - before
    assert passes < sum(map(len, expected)), "the requests did not share passes: alone they take one a token"


@in_crowd
def test_a_chat_is_answered(servers):
    served = servers.get(*CROWD)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    chat = served.client.chat.completions.create(model="smollm2", messages=question, temperature=0, max_tokens=20)
    assert chat.choices[0].message.content == "The capital of France is Paris."
    assert chat.choices[0].finish_reason == "stop"
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (len(TRUTH["prompt_ids"]), 8)


@in_crowd
def test_a_crowd_of_streams_gets_exactly_its_tokens(servers):
    """32 requests of mixed length: greedy, cut short, ended by the model, sampled with a seed."""
    served = servers.get(*CROWD)
    expected, jobs = [], []
    for number in range(32):
        case = CASES[number % len(CASES)]
        count = len(case["token_ids"]) - number % 3
        if number < 27:
            tokens = until_stop(case["token_ids"][:count])
            expected.append((tokens, "stop" if tokens[-1] == END_OF_TEXT else "length"))
            jobs.append(partial(served.generate, case["prompt_ids"], count))
        else:
            sampled = {"temperature": 0.9, "top_p": 0.95, "seed": number, "extra": {"top_k": 50}}
            alone = served.generate(case["prompt_ids"], count, **sampled)
            expected.append((alone.tokens, alone.finish))
            jobs.append(partial(served.generate, case["prompt_ids"], count, **sampled))
    served.await_rest()
    answers = served.together(jobs)
    assert [answer.error for answer in answers] == [""] * 32
    assert [(answer.tokens, answer.finish) for answer in answers] == expected
    assert {finish for _, finish in expected} == {"stop", "length"}
    assert len({tuple(tokens) for tokens, _ in expected[27:]}) == 5, "sampling chose nothing"
    assert served.await_rest()["headway_voids_total"] == 0


@in_crowd
def test_a_client_that_leaves_gives_its_pages_back(servers):
    served = servers.get(*CROWD)
    streams = [served.pieces(LONGEST["prompt_ids"], 4000, extra={"ignore_eos": True}) for _ in range(3)]
    for stream in streams:
        for _ in range(2):
            next(stream)
    gauges = served.gauges()
    assert gauges["headway_requests_running"] == 3
    assert gauges["headway_kv_pages_free"] <= gauges["headway_kv_pages"] - 3 * 7
    for stream in streams:
        stream.close()
    served.await_rest()  # long before 4000 tokens
    case = CASES[0]
    assert served.generate(case["prompt_ids"], len(case["token_ids"])).tokens == case["token_ids"]


@in_crowd
def test_bad_requests_are_refused_and_the_server_goes_on(servers):
    served = servers.get(*CROWD)
    create = partial(served.client.completions.create, model="smollm2")
    for bad, param in (
        ({"prompt": "Hello", "temperature": -1}, "temperature"),
        ({"prompt": "Hello", "max_tokens": -3}, "max_tokens"),
        ({"prompt": "Hello", "max_tokens": "many"}, "max_tokens"),
        ({"prompt": [1] * 8192, "max_tokens": 1}, None),
        ({"prompt": [10**9]}, None),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            create(**bad)
        body = refused.value.body
        assert isinstance(body, dict)
        assert body["type"] == "invalid_request_error"
        assert param is None or body["param"] == param
    assert served.generate(CASES[0]["prompt_ids"], 3).tokens == CASES[0]["token_ids"][:3]
    served.await_rest()


@in_crowd
def test_an_idle_server_sleeps_and_wakes_at_once(servers):
    served = servers.get(*CROWD)
    passes = served.await_rest()["headway_passes_total"]
    time.sleep(0.5)
    begin, busy = time.monotonic(), served.busy_seconds()
    time.sleep(4)
    share = (served.busy_seconds() - busy) / (time.monotonic() - begin)
    assert share < 0.02
    assert served.gauges()["headway_passes_total"] == passes
    assert served.generate(CASES[0]["prompt_ids"], 1).tokens == CASES[0]["token_ids"][:1]
