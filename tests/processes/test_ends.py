"""How real pipelines end: on signals, when a rank dies, when a table is wrong, when nothing can start."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest

from headway.spec.catalog import load_table
from headway.spec.workload import Workload
from headway.verification.explore import explore
from headway.verification.model import Model

DATA = Path(__file__).parents[1] / "data"
CASE = json.loads((DATA / "smollm2_greedy.json").read_text())["cases"][0]
SMALL = ("--kv-pages", "256")
GREEDY = {"extra": {"ignore_eos": True}}

SWAPPED = """
from headway.spec.edits import edit, move
from headway.spec.serving import serving_table

def table():
    return edit(serving_table(), move("post chain", after="flush decision", roles=["first"]))
"""

OWN_FEED = """
from headway.spec.edits import drop_step, edit, move
from headway.spec.serving import serving_table

def table():
    both = ["first", "middle"]
    awaited = move("flush chain", after="post chain", roles=both)
    return edit(serving_table(), awaited, drop_step("settle chain", roles=both))
"""

REFUSING = """
import headway.engine.pipeline as pipeline
make = pipeline.Settings
pipeline.Settings = lambda **settings: make(refuse_by_rank={refuse!r}, **settings)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_requests_finish_and_leaves_nothing(serving, number):
    with serving("--pp", "2", *SMALL) as served:
        stream = served.pieces(CASE["prompt_ids"], 30, **GREEDY)
        tokens = list(next(stream).token_ids)
        served.signal(number)
        tokens += [token for choice in stream for token in choice.token_ids]
        assert len(tokens) == 30
        assert served.ended() == 0, served.stderr()


def test_requests_that_outlast_the_grace_get_an_error(serving):
    with serving("--pp", "2", *SMALL, "--grace", "0.5") as served:
        stream = served.pieces(CASE["prompt_ids"], 3000, **GREEDY)
        next(stream)
        served.signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        assert served.ended() == 0, served.stderr()


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_ends_the_group_and_is_named(serving, victim):
    with serving("--pp", "3", *SMALL) as served:
        failures: list[str] = []

        def ask() -> None:
            failures.append(served.generate(CASE["prompt_ids"], 3000, **GREEDY).error)

        clients = [threading.Thread(target=ask) for _ in range(3)]
        for client in clients:
            client.start()
        time.sleep(1.0)
        begin = time.monotonic()
        os.kill(served.ranks[victim], signal.SIGKILL)
        for client in clients:
            client.join(30)
        assert served.ended() == 1
        assert time.monotonic() - begin < 20
        assert len(failures) == 3
        assert all(f"rank {victim} was killed by SIGKILL" in failure for failure in failures), failures
        assert f"rank {victim} was killed by SIGKILL" in served.stderr()


def test_a_swapped_table_is_refused_and_gets_stuck_where_the_search_says(serving, headway, tmp_path):
    """Rank 0 waits for its decision to be received before it has posted the chain that the receiver waits for."""
    path = tmp_path / "swapped.py"
    path.write_text(SWAPPED)
    name = f"{path}:table"
    model = Model(Workload().attach(load_table(name)), 3, 3)
    found = explore(model, reduced=True).counterexample
    assert found is not None
    assert [w.rank for w in found.cycle] == [0, 1]
    predicted = [(w.rank, w.row, w.on) for w in found.positions]

    refused = headway("serve", "--table", name, "--port", "0")
    assert refused.returncode == 2
    assert "no certificate covers table" in refused.stderr

    with serving("--pp", "3", *SMALL, "--table", name, "--unproved", "--stall-bound", "2") as served:
        assert served.ended() == 1
        errors = served.stderr()
    assert "UNPROVED TABLE" in errors
    stall = next(json.loads(line) for line in errors.splitlines() if line.startswith("{"))
    assert [(p["rank"], p["row"], p["waits_on"]) for p in stall["positions"]] == predicted
    assert stall["cycle"] == [0, 1]
    assert "stuck in a cycle rank 0 -> rank 1 -> rank 0" in errors


def test_ranks_that_await_their_own_feed_get_stuck_where_the_search_says(serving, headway, tmp_path):
    """The chain is awaited right after its post: four busy ranks then wait in a ring, whatever the timing."""
    path = tmp_path / "own_feed.py"
    path.write_text(OWN_FEED)
    name = f"{path}:table"
    found = explore(Model(Workload(3, 2, 0).attach(load_table(name)), 4, 4), reduced=True).counterexample
    assert found is not None
    predicted = [(w.rank, w.row, w.on) for w in found.positions]
    assert [w.rank for w in found.cycle] == [0, 1, 2, 3]

    refused = headway("serve", "--table", name, "--pp", "4", "--port", "0")
    assert refused.returncode == 2
    assert "no certificate covers table" in refused.stderr

    with serving("--pp", "4", *SMALL, "--table", name, "--unproved", "--stall-bound", "2") as served:
        answers = served.together([lambda: served.generate(CASE["prompt_ids"], 200, **GREEDY)] * 8)
        assert served.ended() == 1
        errors = served.stderr()
    stall = next(json.loads(line) for line in errors.splitlines() if line.startswith("{"))
    assert [(p["rank"], p["row"], p["waits_on"]) for p in stall["positions"]] == predicted
    assert stall["cycle"] == [0, 1, 2, 3]
    assert all("stuck in a cycle rank 0 -> rank 1 -> rank 2 -> rank 3 -> rank 0" in answer.error for answer in answers)


@pytest.mark.parametrize(("ranks", "rank"), [("4", 1), ("3", 2)], ids=["passed on void", "last"])
def test_a_refused_decision_is_void_for_all_and_tried_again(serving, ranks, rank):
    with serving("--pp", ranks, *SMALL, prelude=REFUSING.format(refuse={rank: [0, 2, 3]})) as served:
        answer = served.generate(CASE["prompt_ids"], len(CASE["token_ids"]), **GREEDY)
        assert answer.tokens == CASE["token_ids"]
        assert served.await_rest()["headway_voids_total"] == 3


def test_a_decision_refused_for_ever_ends_the_request_with_an_error(serving):
    with serving("--pp", "2", *SMALL, prelude=REFUSING.format(refuse={1: list(range(50))})) as served:
        answer = served.generate(CASE["prompt_ids"], 3)
        assert "rank 1" in answer.error
        assert "a planted refusal" in answer.error
        assert httpx.get(f"{served.url}/health").status_code == 200
        served.await_rest()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--model", "/no/such/model"), "model '/no/such/model' not found"),
        (("--pp", "31"), "31"),
        (("--pp", "0"), "--pp is 0"),
        (("--pp", "3", "--slots", "2"), "--slots is 2"),
        (("--port", "99999"), "--port is 99999"),
        (("--kv-pages", "0"), "pages"),
        (("--max-context", "1"), "--max-context is 1"),
        (("--grace", "nan"), "--grace is nan"),
        (("--table", "nope"), "table 'nope'"),
    ],
)
def test_wrong_options_are_named_in_a_line(headway, words, named):
    done = headway("serve", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors"])
def test_a_broken_model_file_is_named_in_a_line(headway, tmp_path, name):
    (tmp_path / name).write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 40)
    model = tmp_path / name if name.endswith(".gguf") else tmp_path
    done = headway("serve", "--model", str(model), "--port", "0")
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_port_in_use_is_named_in_a_line(headway):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = headway("serve", "--port", str(port))
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
