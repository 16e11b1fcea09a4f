"""Predictions of the planning tool, where they can be computed by hand."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headway.engine.messages import Submit
from headway.engine.simulation.plan import ModelTimes, StageTimes, plan, planning_limits
from headway.engine.simulation.run import production


def predicted(ranks, stages, slots=None, requests=8, generate=40, **more):
    work = [Submit(n, [1], generate) for n in range(requests)]
    slots = slots or ranks
    limits = planning_limits(production(), ranks, slots, work, rows=requests, tokens=64)
    times = ModelTimes(stages=stages, **{"row_us": 0.0, "control_us": 0.0, "tensor_us": 0.0, **more})
    return plan(production(), times, ranks, limits, work)


def test_one_rank_takes_as_long_as_its_forwards():
    found = predicted(1, [StageTimes(1000.0, 10.0)], requests=4)
    assert found.tokens == 4 * 40
    assert found.seconds == pytest.approx(40 * (1000 + 4 * 10) / 1e6, rel=0.03)
    assert found.bubbles[0] == pytest.approx(0.0, abs=0.03)
    assert found.between_tokens == pytest.approx(1040 / 1e6, rel=0.03)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_balanced_pipeline_is_always_busy(ranks):
    """Each slot's pass takes P stages, and P slots are in flight: a pass comes out every stage time."""
    found = predicted(ranks, [StageTimes(1000.0)], requests=4 * ranks, generate=60)
    passes = found.passes
    assert found.seconds == pytest.approx((passes + ranks - 1) * 1e-3, rel=0.05)
    assert max(found.bubbles) < 0.1


def test_the_slowest_stage_sets_the_pace():
    stages = [StageTimes(500.0), StageTimes(1000.0), StageTimes(250.0)]
    found = predicted(3, stages, requests=12, generate=60)
    assert found.bubbles == [pytest.approx(b, abs=0.05) for b in (0.5, 0.0, 0.75)]


def test_slow_links_make_bubbles_that_one_more_slot_cannot_all_fill():
    fast = predicted(2, [StageTimes(1000.0)])
    slow = predicted(2, [StageTimes(1000.0)], tensor_us=2000.0)
    assert slow.tokens_per_second < 0.7 * fast.tokens_per_second
    assert min(slow.bubbles) > 0.3


def test_bandwidth_counts_by_tokens():
    without = predicted(2, [StageTimes(1000.0)])
    narrow = predicted(2, [StageTimes(1000.0)], token_bytes=4096, bytes_per_us=4.0)
    assert narrow.tokens_per_second < 0.5 * without.tokens_per_second


def test_measured_times_are_taken_in_turn():
    stage = StageTimes(0.0, measured_us=[1000.0, 3000.0])
    assert [stage.of(n, 5, 1) for n in range(4)] == [1000.0, 3000.0, 1000.0, 3000.0]


def test_wrong_numbers_of_stages_are_refused():
    with pytest.raises(ValueError, match="stages has 2 entries; allowed: 1, or 3"):
        predicted(3, [StageTimes(1.0), StageTimes(1.0)])


def test_the_command_predicts_for_many_ranks(tmp_path):
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"stages": [{"base_us": 1000}]}))
    command = [sys.executable, "-m", "headway", "simulate", "--model-times", str(path)]
    more = ["--pp", "16", "--slots", "17", "--requests", "17", "--generate", "4"]
    done = subprocess.run([*command, *more], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("16 rank(s), 17 slot(s): ")
    path.write_text('{"stages": 3}')
    wrong = subprocess.run(command, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "stages" in wrong.stderr
