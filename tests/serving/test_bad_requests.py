"""Bad input gets OpenAI's error shape with the field, what was sent and what is allowed; the server goes on."""

from __future__ import annotations

import json

import openai
import pytest

from headway.engine.messages import Submit

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]


def error(answer, status: int = 400) -> dict:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["type"] == ("invalid_request_error" if status < 500 else "server_error")
    assert "\n" not in body["error"]["message"]
    return body["error"]


@pytest.fixture(autouse=True)
def unharmed(server, speak):
    """After every bad request a good one is answered, and it is the only one that the engine sees."""
    server.rank0.script = speak("fine")
    yield
    answer = server.client.completions.create(model="bytes", prompt="good")
    assert answer.choices[0].text == "fine"
    assert [bytes(new.prompt) for new in server.rank0.of(Submit)] == [b"good"]


# What of the value and of what is allowed the message must have.
EITHER = [
    ("temperature", "-0.1", "-0.1", "0"),
    ("temperature", "2.1", "2.1", "2"),
    ("temperature", "NaN", "NaN", "finite"),
    ("temperature", "Infinity", "Infinity", "finite"),
    ("temperature", "1e999", "Infinity", "finite"),
    ("temperature", '"hot"', '"hot"', "number"),
    ("temperature", "true", "true", "number"),
    ("top_p", "0", "0", "greater than 0"),
    ("top_p", "1.5", "1.5", "1"),
    ("top_p", "-Infinity", "Infinity", "finite"),
    ("top_k", "-1", "-1", "0"),
    ("top_k", "1.5", "1.5", "integer"),
    ("max_tokens", "0", "0", "1"),
    ("max_tokens", "-5", "-5", "1"),
    ("max_tokens", '"7"', '"7"', "integer"),
    ("max_tokens", "600", "600", "up to 5"),
    ("max_tokens", "1" + "0" * 400, "1000", "up to 5"),
    ("seed", "-1", "-1", "0"),
    ("seed", "9223372036854775808", "9223372036854775808", "9223372036854775807"),
    ("n", "0", "0", "1"),
    ("n", "5", "5", "4"),
    ("stop", "5", "5", "a string or a list"),
    ("stop", '["a", "b", "c", "d", "e"]', '"e"', "4"),
    ("stop", '["a", ""]', '""', "1 to 512"),
    ("stop", '["a", 1]', "1", "strings"),
    ("stream", '"yes"', '"yes"', "boolean"),
    ("stream_options", '{"include_usage": true}', "stream", "only with stream"),
    ("ignore_eos", "1", "1", "boolean"),
    ("frequency_penalty", "0.5", "0.5", "null or 0"),
    ("presence_penalty", "-0.5", "-0.5", "null or 0"),
    ("logit_bias", '{"5": 1}', '{"5": 1}', "null or {}"),
    ("temprature", "1", "1", "unknown field"),
]
IN_CHAT = [
    ("messages", "[]", "[]", "at least 1"),
    ("messages", '"hi"', '"hi"', "array"),
    ("messages", "null", "null", "array"),
    ("messages[0].role", '[{"role": "wizard", "content": "x"}]', '"wizard"', "'user' or 'assistant'"),
    ("messages[0].role", '[{"content": "x"}]', "role", "required"),
    ("messages[0].content", '[{"role": "user"}]', "content", "required"),
    ("messages[0].content", '[{"role": "user", "content": null}]', "null", "a string or a list of parts"),
    ("messages[0].content", '[{"role": "user", "content": [{"type": "image_url", "image_url": ""}]}]', "image", "text"),
    ("messages[0].tool_calls", '[{"role": "assistant", "content": "", "tool_calls": [1]}]', "[1]", "null or []"),
    ("messages[0]", "[7]", "7", "object"),
    ("messages", '[{"role": "assistant", "content": "x"}]', "assistant", "must not"),
    ("logprobs", "true", "true", "null or false"),
    ("top_logprobs", "2", "2", "null or 0"),
    ("tools", '[{"type": "function"}]', "function", "null or []"),
    ("response_format", '{"type": "json_object"}', "json_object", "text"),
    ("max_completion_tokens", "0", "0", "1"),
]
IN_TEXT = [
    ("prompt", '""', "empty", "at least one"),
    ("prompt", "[]", "[]", "a string, a list"),
    ("prompt", "[[]]", "empty", "at least one"),
    ("prompt", "null", "null", "a string, a list"),
    ("prompt", "[1, 257]", "257", "0 to 256"),
    ("prompt", "[-1]", "-1", "0 to 256"),
    ("prompt", "[1, true]", "true", "token ids"),
    ("prompt", '[1, "a"]', '"a"', "token ids"),
    ("prompt", json.dumps("x" * 512), "512 tokens", "511"),
    ("n", "1", "5 prompt", "up to 4"),
    ("echo", "true", "true", "null or false"),
    ("logprobs", "3", "3", "null or false"),
    ("logprobs", "0", "0", "null or false"),
    ("best_of", "2", "2", "null or 1"),
    ("best_of", "true", "true", "null or 1"),
    ("suffix", '"x"', '"x"', "null"),
]


@pytest.mark.parametrize(
    ("path", "param", "value", "named", "allowed"),
    [(path, *case) for path in (CHAT, TEXT) for case in EITHER]
    + [(CHAT, *case) for case in IN_CHAT]
    + [(TEXT, *case) for case in IN_TEXT],
)
def test_a_bad_value_is_named(server, path, param, value, named, allowed):
    body = {"messages": json.dumps(USER)} if path == CHAT else {"prompt": '"hi"'}
    if named == "5 prompt":
        body["prompt"] = '["a", "b", "c", "d", "e"]'
    body[param.partition("[")[0]] = value
    content = "{" + ", ".join(f'"{name}": {text}' for name, text in body.items()) + "}"
    found = error(server.http.post(path, content=content))
    assert found["param"] == param
    assert found["message"].startswith(f"{param}: ")
    assert named in found["message"]
    assert allowed in found["message"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "Invalid JSON"),
        (b"{", "Invalid JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"x"', "object"),
        (b'{"prompt": "\xff"}', "Invalid JSON"),
        (b'{"prompt": "\\ud800"}', "Invalid JSON"),
        (b"[" * 10_000, "Invalid JSON"),
        (b'{"prompt": "x", "top_k": ' + b"1" * 5000 + b"}", "Invalid JSON"),
        (b'{"model": "bytes"}', "required"),
        (b'{"prompt": "' + b"x" * 20_000 + b'"}', "more than 20000 bytes"),
        (b" " * 3_000_000, "more than 20000 bytes"),
    ],
)
def test_a_bad_body_is_refused(server, path, content, says):
    assert says in error(server.http.post(path, content=content))["message"]


def test_contradicting_limits_are_refused(server):
    body = {"messages": USER, "max_tokens": 3, "max_completion_tokens": 4}
    assert error(server.http.post(CHAT, json=body))["param"] == "max_tokens"


def test_a_message_quotes_only_the_beginning_of_a_long_value(server):
    found = error(server.http.post(TEXT, json={"prompt": "x", "temperature": "y" * 5000}))
    assert len(found["message"]) < 200


def test_an_unknown_model_is_not_found(server):
    for path, body in ((CHAT, {"messages": USER}), (TEXT, {"prompt": "x"})):
        found = error(server.http.post(path, json={"model": "gpt-9", **body}), 404)
        assert (found["param"], found["code"]) == ("model", "model_not_found")
        assert '"gpt-9"' in found["message"]
        assert '"bytes"' in found["message"]
    assert error(server.http.get("/v1/models/gpt-9"), 404)["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        server.client.completions.create(model="gpt-9", prompt="x")


def test_a_too_long_prompt_has_a_code_of_its_own(server):
    found = error(server.http.post(CHAT, json={"messages": [{"role": "user", "content": "x" * 600}]}))
    assert (found["param"], found["code"]) == ("messages", "context_length_exceeded")
    assert "606 tokens" in found["message"]
    with pytest.raises(openai.BadRequestError, match="max_tokens: 511"):
        server.client.completions.create(model="bytes", prompt="hi", max_tokens=511)


def test_unknown_routes_and_methods_have_the_shape_too(server):
    assert "/v1/embeddings" in error(server.http.post("/v1/embeddings", json={}), 404)["message"]
    assert "GET" in error(server.http.get(CHAT), 405)["message"]


def test_refused_requests_are_counted(server):
    name = 'headway_requests_total{outcome="refused"}'
    before = server.metric(name)
    error(server.http.post(TEXT, json={"prompt": "x", "max_tokens": 0}))
    assert server.metric(name) == before + 1
