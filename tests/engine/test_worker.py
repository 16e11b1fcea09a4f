"""The worker on a CPU, where graphs are emulated: tokens do not depend on how passes are made up, or overlapped."""

from __future__ import annotations

import ast
import json
from array import array
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

import headway.engine.workers.graphs
import headway.engine.workers.layout
import headway.engine.workers.pieces
import headway.engine.workers.worker
from headway.engine.messages import Sampling, Submit
from headway.engine.offline import LLM
from headway.engine.scheduling import Limits, Member
from headway.engine.workers import Worker, build_worker
from headway.engine.workers.graphs import decode_ladder, prompt_ladder
from headway.engine.workers.layout import lay_out
from headway.kernels import load_kernels
from headway.models import Stage, allocate_kv_cache, open_checkpoint, partition

torch.set_num_threads(1)
VOCABULARY, PAGE = 96, 4
LIMITS = Limits(1, 64, PAGE, 16, 6, 128, ahead=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 128,
    }
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def requests(seed, count=24):
    random, made = Random(seed), []
    for i in range(count):
        prompt = [random.randrange(VOCABULARY) for _ in range(random.randint(1, 40))]
        choice = [Sampling(), Sampling(0.9, seed=i), Sampling(1.2, 0.8, 12, seed=2**64 - i)][i % 3]
        stops = [random.randrange(VOCABULARY) for _ in range(6 * (i % 2))]
        made.append(Submit(i, prompt, random.randint(1, 20), stops, choice))
    return made


def llm_of(folder, **options):
    given = {"max_batch_tokens": 64, "max_batch_rows": 8, "page_size": PAGE, "pages": 256, **options}
    return LLM(folder, load_format="dummy", device="cpu", kernels="reference", **given)


def results(completions):
    return [(completion.tokens, completion.finish) for completion in completions]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"table": "serving", "max_batch_tokens": 9, "max_batch_rows": 5},
        {"table": "serving", "slots": 2},
        {"table": "serving", "pages": 20},
    ],
    ids=["overlap", "small chunks", "two slots", "few pages"],
)
def test_tokens_are_those_of_one_request_at_a_time(folder, options, seed):
    alone = llm_of(folder, table="serving-in-step", max_batch_rows=1)
    llm = llm_of(folder, **options)
    submits = requests(seed)
    assert results(llm.generate(submits)) == results(alone.generate(submits))
    assert (llm.gauges.preemptions > 0) == ("pages" in options)
    assert llm.gauges.free_pages == llm.limits.pages


def test_a_second_run_starts_afresh(folder, seed):
    llm = llm_of(folder)
    first = results(llm.generate(requests(seed)))
    assert results(llm.generate(requests(seed))) == first


GREEDY, WARM = Sampling(), Sampling(0.9, 0.8, 20, seed=3)


def member(request, table, start, count, samples=True, from_last=False, sampling=None):
    return Member(request, array("q", table), start, count, sampling or Sampling(), samples, from_last)


def stage_of(folder, ranks=1, rank=0):
    checkpoint = open_checkpoint(folder, "dummy", 0)
    span = partition(checkpoint.config.layers, ranks)[rank]
    stage = Stage.load(checkpoint, span, load_kernels("reference"))
    return stage, allocate_kv_cache(checkpoint.config, span.layers, LIMITS.pages, PAGE)


def worker_of(folder, decodes=(), prompts=(), ranks=1, rank=0):
    stage, cache = stage_of(folder, ranks, rank)
    return Worker(stage, cache, stage.kernels, LIMITS, decodes, prompts)


@pytest.mark.parametrize("graphs", [(), ((2, 4), (16,))], ids=["no graphs", "graphs"])
def test_last_tokens_feed_the_next_pass_before_they_are_collected(folder, graphs):
    tables = {1: [3, 1], 2: [0], 3: [7, 2]}
    prompts = {1: [5, 6, 7], 2: [9], 3: [1, 2, 3, 4]}
    ahead, behind = worker_of(folder, *graphs), worker_of(folder)
    first = [member(r, tables[r], 0, len(prompts[r])) for r in prompts]
    ahead.launch(ahead.prepare(first, list(prompts.values())), None)
    # In another order, and without request 2: the second pass must find each request's own token.
    second = [member(r, tables[r], len(prompts[r]), 1, from_last=True) for r in (3, 1)]
    ahead.launch(ahead.prepare(second, [[], []]), None)
    behind.launch(behind.prepare(first, list(prompts.values())), None)
    tokens = dict(zip(prompts, behind.collect(), strict=True))
    known = [member(r, tables[r], len(prompts[r]), 1) for r in (3, 1)]
    behind.launch(behind.prepare(known, [[tokens[3]], [tokens[1]]]), None)
    assert ahead.collect() == list(tokens.values())
    assert ahead.collect() == behind.collect()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("rows", [1, 3, 4, 5])
def test_graphs_with_padding_give_what_no_graph_gives(folder, rows, ranks):
    """Passes of one kind after another: prompts of two tokens, greedy decodes, decodes of which some sample nothing."""
    outputs = []
    for graphs in ((), ((1, 4), (3, 8))):
        workers = [worker_of(folder, *graphs, ranks=ranks, rank=rank) for rank in range(ranks)]
        got = []
        for start, count, choice in ((0, 2, GREEDY), (2, 1, GREEDY), (3, 1, WARM), (4, 1, GREEDY), (5, 2, WARM)):
            batch = [
                member(r, [r, 10 + r], start, count, samples=r != 2 or start < 4, sampling=choice) for r in range(rows)
            ]
            tokens = [[11 * r + start, 7 * r][:count] for r in range(rows)]
            hidden = None
            for rank, worker in enumerate(workers):
                work = worker.prepare(batch, [] if rank else tokens)
                if rank < ranks - 1:
                    hidden = worker.forward(work, hidden).clone()
                else:
                    worker.launch(work, hidden)
                    got.append(worker.collect())
        outputs.append(got)
    assert outputs[0] == outputs[1]
    assert [len(tokens) for tokens in outputs[0]] == [rows] * 3 + [rows - (rows > 2)] * 2


def test_more_passes_in_flight_than_there_may_be_are_loud(folder):
    worker = worker_of(folder)
    for _ in range(LIMITS.slots + LIMITS.ahead + 1):
        worker.launch(worker.prepare([member(1, [0], 0, 1)], [[1]]), None)
    with pytest.raises(RuntimeError, match="3 passes are launched and not collected"):
        worker.launch(worker.prepare([member(1, [0], 0, 1)], [[1]]), None)


def test_layout_by_hand():
    layout = lay_out([member(4, [9], 2, 1), member(5, [3, 6, 2], 3, 4, samples=False), member(6, [1, 8], 4, 1)], PAGE)
    assert layout.positions.tolist() == [2, 3, 4, 5, 6, 4]
    assert layout.write_slots.tolist() == [38, 15, 24, 25, 26, 32]
    assert layout.query_starts.tolist() == [0, 1, 5, 6]
    assert layout.context_lengths.tolist() == [3, 7, 5]
    assert np.array_equal(layout.block_tables, [[9, 0, 0], [3, 6, 2], [1, 8, 0]])
    assert (layout.samplers, layout.logit_rows.tolist(), layout.decodes) == ([0, 2], [0, 5], False)


def test_ladders_rise_and_reach_what_was_asked_for():
    for most in (1, 3, 8, 100, 256, 300, 1024, 1030):
        sizes = decode_ladder(most)
        assert sizes[-1] == most
        assert sizes == sorted(set(sizes))
    assert decode_ladder(256)[:8] == [1, 2, 4, 8, 16, 24, 32, 40]
    assert prompt_ladder(8192)[-1] == 4096
    assert prompt_ladder(100) == [16, 32, 48, 64, 80, 96]


def test_pages_are_measured_on_a_gpu_only(folder):
    checkpoint = open_checkpoint(folder, "dummy", 0)
    with pytest.raises(ValueError, match="pages is 0; only a GPU's memory is measured"):
        build_worker(checkpoint, partition(4, 1)[0], LIMITS)


WAITS = {"item", "tolist", "cpu", "nonzero", "synchronize", "wait"}


def test_only_collect_waits_for_the_device():
    """No call that would wait stands elsewhere in the modules that a pass runs through."""
    found = []
    workers = headway.engine.workers
    for module in (workers.worker, workers.graphs, workers.pieces, workers.layout):
        tree = ast.parse(Path(module.__file__).read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
                    found.append((function.name, node.func.attr))
    assert found == [("collect", "synchronize"), ("collect", "tolist")]
