"""What traces covered of the table; and that what is said to be impossible is."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from headway.engine.simulation import draw, run_schedule
from headway.engine.simulation.run import production
from headway.spec.workload import Workload
from headway.verification.conform import read_traces
from headway.verification.conform.coverage import Item, covered, items
from headway.verification.conform.uncovered import _REASONS, reason_not_executed
from headway.verification.model import Model
from headway.verification.states import Broken

TABLE = production()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in range(80):
        (root / str(seed)).mkdir()
        run_schedule(draw(seed), directory=root / str(seed))
    return root


def test_the_simulator_executes_all_that_can_be(runs):
    counts = Counter()
    for directory in runs.iterdir():
        counts += covered(TABLE, read_traces(TABLE, directory))
    missing = [item for item in items(TABLE) if not counts[item]]
    assert {(item.row, item.outcome) for item in missing} == set(_REASONS)
    assert all(reason_not_executed(TABLE, item) for item in missing)


def test_there_is_something_to_cover():
    everything = items(TABLE)
    assert Item("first", "receive output", "void = true") in everything
    assert Item("last", "report void: pass by") in everything
    assert len(everything) == len(set(everything)) > 90


@pytest.mark.parametrize(("ranks", "slots"), [(2, 2), (2, 3)])
def test_what_is_said_to_be_impossible_is(ranks, slots):
    """No state of the model has a rank at such a row."""
    model = Model(Workload(2, 2, 1).attach(TABLE), ranks, slots)
    frontier, seen, executed = [model.initial()], {model.initial()}, set()
    while frontier:
        state = frontier.pop()
        for rank in range(ranks):
            row = model.row_at(state, rank)
            executed.add(row.name if row else "end")
            following = [after for _, after in model.successors(state, rank)]
            for after in following:
                assert not isinstance(after, Broken)
                if after not in seen:
                    seen.add(after)
                    frontier.append(after)
            if following:
                break  # one rank a state: enough, since every enabled row stays enabled
    assert {"settle output: pass by", "report void", "end"} <= executed
    assert executed.isdisjoint(row for row, outcome in _REASONS if not outcome)


def test_the_command_fails_for_a_gap_and_names_it(runs):
    command = [sys.executable, "-m", "headway", "coverage"]
    whole = subprocess.run([*command, str(runs)], capture_output=True, text=True, check=False)
    assert whole.returncode == 0, whole.stdout
    assert "in 80 run(s); 0 without a reason" in whole.stdout
    part = subprocess.run([*command, str(runs / "0"), "--counts"], capture_output=True, text=True, check=False)
    assert part.returncode == 1
    assert "NO REASON KNOWN" in part.stdout
    none = subprocess.run([*command, str(runs / "nowhere")], capture_output=True, text=True, check=False)
    assert none.returncode == 2
    assert "no rank0.trace" in none.stderr
