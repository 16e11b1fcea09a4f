"""Bindings neither wait, nor read clocks, nor draw lots, nor order by sets: by their source, and while they run."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import msgspec
import pytest
import torch

import headway.engine.offline as offline
from headway.engine.bindings import binding_table
from headway.engine.loop import compile_program
from headway.engine.loop.purity import ImpureError, guarded
from headway.engine.messages import Sampling, Submit
from headway.engine.scheduling import Scheduler
from headway.engine.simulation import draw, run_schedule
from headway.engine.simulation.run import production
from headway.engine.workers import Worker
from headway.verification.purity import impurities

ROOT = Path(__file__).parents[2]
FILES = [
    ROOT / "engine/bindings.py",
    ROOT / "engine/desk.py",
    *sorted((ROOT / "engine/scheduling").glob("*.py")),
    ROOT / "engine/workers/layout.py",
    ROOT / "engine/workers/worker.py",
]
ALLOWED = {
    ("engine/bindings.py", "LeaderBindings.wait_for_requests", "self._desk.wait"): "an idle row: it is there to sleep",
    ("engine/bindings.py", "LeaderBindings.poll_requests", "self._desk.poll"): "takes what is there",
    ("engine/desk.py", "ZmqDesk.wait", "self._intake.recv"): "an idle row: it is there to sleep",
    ("engine/desk.py", "ZmqDesk.wait", "self.poll"): "takes what is there",
    ("engine/desk.py", "ZmqDesk.poll", "self._intake.poll"): "with a bound of 0",
    ("engine/desk.py", "ZmqDesk.poll", "self._intake.recv"): "only when the poll said that something is there",
    ("engine/desk.py", "ZmqDesk.report", "self._reports.send"): "the socket's queue has no limit",
    ("engine/workers/worker.py", "Worker.prepare", "host.numpy"): "a view of host memory",
    ("engine/workers/worker.py", "Worker.collect", "outbox.arrived.synchronize"): "a compute row: the wait for tokens",
    ("engine/workers/worker.py", "Worker.collect", "outbox.tokens[:count].tolist"): "host memory, after that wait",
}
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in FILES}


def test_bindings_and_what_they_call_are_pure():
    assert [each.words() for each in impurities(SOURCES, ALLOWED)] == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import time\ndef plan(self):\n    return time.time() > self.late", "time.time reads a clock"),
        ("from time import monotonic as now\ndef plan(self):\n    return now()", "now reads a clock"),
        ("from datetime import datetime\ndef plan(self):\n    return datetime.now()", "datetime.now reads a clock"),
        ("def prepare(self, x):\n    return x.max().item()", "x.max().item may wait for the device"),
        ("def f(self, x):\n    return x.cpu()", "x.cpu may wait for the device"),
        ("import torch\ndef f():\n    torch.cuda.synchronize()", "torch.cuda.synchronize may wait for the device"),
        ("def f(rows):\n    return [r for r in set(rows)]", "set(rows) is a set"),
        ("def f(rows):\n    for r in {1, 2}: pass", "{1, 2} is a set"),
        (
            "class A:\n    def __init__(self):\n        self.x = set()\n    def f(self):\n        return list(self.x)",
            "a set",
        ),
        ("class A:\n    x: frozenset[int]\n    def f(self):\n        return [*self.x]", "self.x is a set"),
        ("def f(a: set[int], b):\n    for x in a - b: pass", "a - b is a set"),
        ("def f(a):\n    left = {x for x in a}\n    return left.pop()", "left is a set"),
        ("import random\ndef f():\n    return random.random()", "random.random draws a lot"),
        ("import numpy as np\ndef f():\n    return np.random.rand()", "np.random.rand draws a lot"),
        ("import os\ndef f():\n    return os.read(0, 1)", "os.read reaches out"),
        ("def f():\n    return open('x')", "open may wait"),
        ("def f(p):\n    return p.read_text()", "p.read_text touches a file"),
        ("def f(t):\n    t.join()", "t.join may wait"),
        ("def f(lock):\n    lock.acquire()", "lock.acquire may wait"),
        ("import torch.distributed as dist\ndef f(x):\n    dist.isend(x, 1)", "dist.isend may wait"),
        ("def f(work):\n    work.wait()", "work.wait may wait"),
    ],
)
def test_an_impure_source_is_named(source, said):
    found = impurities({"a.py": source}, {})
    assert any(said in each.words() for each in found), found


def test_what_is_pure_is_not_called_impure():
    source = (
        "from random import Random\n"
        "class A:\n"
        "    stops: frozenset[int]\n"
        "    def f(self, xs, seed):\n"
        "        left = set(xs)\n"
        "        return sorted(left), len(left), 3 in self.stops, ','.join(xs), Random(seed), {x: 1 for x in xs}\n"
    )
    assert impurities({"a.py": source}, {}) == []


def test_a_permission_that_nothing_needs_is_named():
    (only,) = impurities({"a.py": "x = 1"}, {("a.py", "f", "g"): "why"})
    assert "is allowed, but not done" in only.words()


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "engine/scheduling/policy.py",
            "        batch = Batch(",
            "        import time; time.time(); batch = Batch(",
            "time",
        ),
        (
            "engine/workers/worker.py",
            "        count = layout.tokens",
            "        count = self._words.sum().item()",
            "item",
        ),
        ("engine/scheduling/books.py", "for row in decision.rows]", "for row in set(decision.rows)]", "set"),
    ],
)
def test_what_is_planted_in_production_is_found(file, old, new, said):
    assert old in SOURCES[file]
    planted = {**SOURCES, file: SOURCES[file].replace(old, new, 1)}
    assert any(said in each.name for each in impurities(planted, ALLOWED))


# --- while they run ----------------------------------------------------------------------------------------


def watched(rank, bindings):
    return guarded(compile_program(production(), rank, 3, 3), bindings)


def test_bindings_of_simulated_ranks_are_pure_while_they_run():
    for seed in range(6):
        assert run_schedule(draw(seed, ranks=3, slots=3), bindings=watched).law == ""


class Clocked(Scheduler):
    def plan(self, pass_number, slot):
        time.time()
        return super().plan(pass_number, slot)


class Lucky(Scheduler):
    def take(self, intake):
        random.random()
        return super().take(intake)


class Writing(Scheduler):
    def apply(self, pass_number, output, void):
        open("/dev/null").close()
        super().apply(pass_number, output, void)


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [(Clocked, "time.time reads a clock"), (Lucky, "random.random draws a lot"), (Writing, "open reaches out")],
)
def test_an_impure_policy_is_caught_while_it_runs(scheduler, said):
    schedule = msgspec.structs.replace(draw(2, ranks=3, slots=3), kill=None, gate_bound=1.0, stop_at=10**9)
    outcome = run_schedule(schedule, bindings=watched, scheduler=scheduler)
    assert outcome.law == "exception"
    assert said in outcome.finding
    assert "of a step row" in outcome.finding


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"vocab_size": 64, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 64}
    (path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **shape, **more}))
    return str(path)


def run_real(model, monkeypatch):
    """A few requests through the real worker with its bindings watched."""
    torch.set_num_threads(1)
    llm = offline.LLM(
        model, load_format="dummy", device="cpu", kernels="reference", pages=64, max_batch_tokens=8, max_batch_rows=4
    )
    program = compile_program(production(), 0, 1, 1)
    monkeypatch.setattr(offline, "binding_table", lambda owner, names: guarded(program, binding_table(owner, names)))
    requests = [Submit(r, [r + 1, 2, 3], 4, [], Sampling(temperature=r % 2)) for r in range(4)]
    return llm.generate(requests)


def test_bindings_of_a_real_model_are_pure_while_they_run(model, monkeypatch):
    assert [completion.finish for completion in run_real(model, monkeypatch)] == ["length"] * 4


def test_an_item_on_the_pass_path_is_caught_while_it_runs(model, monkeypatch):
    prepare = Worker.prepare

    def planted(self, members, tokens):
        self._words.sum().item()
        return prepare(self, members, tokens)

    monkeypatch.setattr(Worker, "prepare", planted)
    with pytest.raises(ImpureError, match=r"binding 'plan', of a step row: Tensor\.item"):
        run_real(model, monkeypatch)
