"""Clients that leave, requests and engines that fail, and servers that shut down: nobody waits for ever."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from headway.engine.messages import Abort, Gauges, Generated, Stop, Submit
from headway.engine.serving import listen

DEADLINE = 10.0


def start(server, **options):
    """A streamed completion of which the first token has come."""
    stream = server.client.completions.create(model="bytes", prompt="x", max_tokens=400, stream=True, **options)
    assert next(stream).choices[0].text == "a"
    return stream


def aborted(requests: list[int]):
    return lambda messages: [message.request for message in messages if isinstance(message, Abort)] == requests


def test_a_client_that_leaves_a_stream_aborts_its_request(server, speak):
    server.rank0.script = speak("a", end=False)
    disconnected = server.metric('headway_requests_total{outcome="disconnected"}')
    stream = start(server)
    stream.close()
    server.rank0.await_received(aborted([server.rank0.of(Submit)[0].request]))
    server.await_metric('headway_requests_total{outcome="disconnected"}', disconnected + 1)


def test_a_client_that_leaves_while_it_waits_aborts_its_request(server, speak):
    server.rank0.script = speak("a", end=False)
    body = b'{"prompt": "x", "n": 2}'
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        server.rank0.await_received(lambda messages: len(messages) == 2)
    server.rank0.await_received(aborted([new.request for new in server.rank0.of(Submit)]))


def test_nothing_is_aborted_after_the_end(server, speak):
    server.rank0.script = speak("abc")
    for stream in (False, True):
        answer = server.client.completions.create(model="bytes", prompt="x", stream=stream)
        if stream:
            assert len(list(answer)) == 4
    assert server.rank0.of(Abort) == []


def test_a_request_that_fails_is_an_error_of_that_request(server, speak):
    def script(new):
        yield Generated(new.request, [97])
        yield Generated(new.request, [], "error", "no page is left")

    server.rank0.script = script
    with pytest.raises(openai.InternalServerError, match="no page is left") as caught:
        server.client.completions.create(model="bytes", prompt="x")
    assert (caught.value.status_code, caught.value.type, caught.value.code) == (
        500,
        "server_error",
        "generation_failed",
    )
    with pytest.raises(openai.APIError, match="no page is left"):
        list(start(server))
    server.rank0.script = speak("ok")
    assert server.client.completions.create(model="bytes", prompt="x").choices[0].text == "ok"
    assert server.http.get("/health").status_code == 200


def test_a_failed_engine_ends_running_waiting_and_new_requests(mortal, speak):
    mortal.rank0.script = speak("a", end=False)
    stream = start(mortal)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(mortal.client.completions.create, model="bytes", prompt="x")
        mortal.rank0.await_received(lambda messages: len(messages) == 2)
        mortal.engine.fail("rank 1 died")
        with pytest.raises(openai.APIError, match="rank 1 died"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="rank 1 died") as caught:
            waiting.result(DEADLINE)
    assert (caught.value.status_code, caught.value.code) == (503, "engine_failed")
    mortal.engine.fail("a later cause")
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="rank 1 died"):
            mortal.client.completions.create(model="bytes", prompt="x", stream=stream)
    health = mortal.http.get("/health")
    assert (health.status_code, health.json()["error"]["message"]) == (503, "the engine failed: rank 1 died")
    assert mortal.metric('headway_requests_total{outcome="unavailable"}') == 4 + 1


def test_a_stream_that_fails_ends_with_an_error_event(mortal, speak):
    mortal.rank0.script = speak("a", end=False)
    with mortal.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as answer:
        lines = answer.iter_lines()
        assert '"text":"a"' in next(lines)
        mortal.engine.fail("rank 2 died")
        rest = [line for line in lines if line]
    assert rest == [
        'data: {"error":{"message":"the engine failed: rank 2 died","type":"server_error",'
        '"param":null,"code":"engine_failed"}}'
    ]


def test_a_report_that_cannot_be_read_is_a_failure_of_the_engine(mortal, speak):
    mortal.rank0.script = speak("a", end=False)
    stream = start(mortal)
    mortal.rank0.send(b"\xc1")
    with pytest.raises(openai.APIError, match="a report of rank 0 cannot be read"):
        list(stream)


def test_draining_lets_requests_finish_and_takes_no_more(mortal):
    release = threading.Event()

    def script(new):
        yield Generated(new.request, [97])
        while not release.is_set():
            yield None
        yield Generated(new.request, [98, 256], "stop")

    mortal.rank0.script = script
    stream = start(mortal)
    drained = mortal.drain(1000 * DEADLINE)
    mortal.eventually(lambda: mortal.http.get("/health").status_code == 503)
    assert mortal.http.get("/health").json()["error"]["code"] == "shutting_down"
    with pytest.raises(openai.InternalServerError, match="shutting down"):
        mortal.client.completions.create(model="bytes", prompt="x")
    assert mortal.rank0.of(Stop) == []
    release.set()
    assert "".join(chunk.choices[0].text for chunk in stream) == "b"
    assert drained.result(DEADLINE) == 0
    mortal.rank0.await_received(lambda messages: isinstance(messages[-1], Stop))
    assert mortal.rank0.of(Abort) == []


def test_draining_aborts_what_outlasts_the_bound(mortal, speak):
    mortal.rank0.script = speak("a", end=False)
    stream = start(mortal)
    assert mortal.drain(0.05).result(DEADLINE) == 1
    with pytest.raises(openai.APIError, match="shutting down"):
        list(stream)
    mortal.rank0.await_received(lambda messages: [type(message) for message in messages] == [Submit, Abort, Stop])


def test_an_idle_server_drains_at_once(mortal):
    assert mortal.drain(1000 * DEADLINE).result(DEADLINE) == 0
    mortal.rank0.await_received(lambda messages: messages == [Stop()])


def test_without_a_seed_requests_take_them_from_the_sequence_of_the_server(launch):
    def seeds(running) -> list[int]:
        for _ in range(2):
            running.client.completions.create(model="bytes", prompt="x")
        return [new.sampling.seed for new in running.rank0.of(Submit)]

    first, again, other = seeds(launch(seed=0)), seeds(launch(seed=0)), seeds(launch(seed=1))
    assert first == again
    assert len({*first, *other}) == 4


def test_metrics_count_tokens_latencies_and_what_rank_0_reports(mortal, speak):
    mortal.rank0.script = speak("abc")
    mortal.client.completions.create(model="bytes", prompt="12345")
    mortal.client.completions.create(model="bytes", prompt="1", max_tokens=2)
    assert mortal.metric('headway_requests_total{outcome="stop"}') == 1
    assert mortal.metric('headway_requests_total{outcome="length"}') == 1
    assert mortal.metric("headway_prompt_tokens_total") == 6
    assert mortal.metric("headway_generated_tokens_total") == 6
    assert mortal.metric("headway_time_to_first_token_seconds_count") == 2
    assert mortal.metric("headway_inter_token_latency_seconds_count") == 4
    assert "headway_kv_pages" not in mortal.http.get("/metrics").text
    mortal.rank0.send(Gauges(passes=9, waiting=1, running=2, free_pages=30, total_pages=40, voids=3))
    mortal.eventually(lambda: "headway_kv_pages" in mortal.http.get("/metrics").text)
    assert mortal.metric("headway_passes_total") == 9
    assert mortal.metric("headway_kv_pages_free") == 30
    assert mortal.metric("headway_voids_total") == 3


def test_a_port_in_use_is_named():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: "):
            listen("127.0.0.1", port)
    with pytest.raises(OSError, match=r"cannot listen on no\.such\.host\.invalid:0: "):
        listen("no.such.host.invalid", 0)
