"""Counterexamples of the search taken again: by the compiled loop over simulated wires, and by real gloo processes."""

from __future__ import annotations

import subprocess
import sys
import time

import msgspec
import pytest

from headway.engine.replay import HeldProcesses, ReplayError, Script, ScriptStep, executable, replay_simulated
from headway.engine.watchdog import diagnose, positions
from headway.spec.incidents import INCIDENTS, find_incident
from headway.spec.language import SpecError
from headway.spec.table import Collective, Probe
from headway.verification.model import Model
from headway.verification.reference import search
from headway.verification.report.script import scripted
from headway.verification.states import Step

# On real processes: who is stuck where, and in which ring, as the sources of these incidents say.
ON_GLOO = {
    "presence-top": (["await chain", "await chain", "receive proxy"], [1, 2]),
    "presence-end": (["await chain", "await chain", "receive proxy"], [1, 2]),
    "decision-handle-dropped": (["await chain", "receive decision", "receive decision"], [0, 1]),
    "crossing-decision-late": (["receive crossing", "receive decision"], [0, 1]),
    "receive-first": (["receive output", "receive output", "receive output"], [0, 2, 1]),
    "retraction-idle-tail": (["receive output", "receive chain", "receive chain"], [0, 2, 1]),
}


def found(incident):
    """The model of an incident and a script of its counterexample."""
    transports = dict(incident.transports)
    model = Model(incident.table(), incident.ranks, incident.slot_count, incident.transport, transports)
    example = search(model, reduced=True, limit=100_000).counterexample
    assert example is not None
    steps = msgspec.convert(scripted(model, example.steps), list[ScriptStep])
    return model, Script(model.ranks, model.slots, steps, [p.row for p in example.positions], example.law)


def runs(incident):
    operations = [row.operation for role in incident.table().roles for row in role.rows]
    return not any(isinstance(operation, Probe | Collective) for operation in operations)


DEAD = [i for i in INCIDENTS if i.expected.outcome == "dead" and runs(i)]


@pytest.mark.parametrize("incident", DEAD, ids=lambda incident: incident.id)
def test_the_simulated_ranks_are_stuck_where_the_search_says(incident):
    model, script = found(incident)
    assert replay_simulated(model.protocol, script, model.network.transports) == script.rows
    if incident.expected.stuck:
        assert script.rows == list(incident.expected.stuck)


@pytest.mark.parametrize("name", ON_GLOO)
def test_real_processes_are_stuck_there_too_and_the_watchdog_names_it(name, tmp_path):
    model, script = found(find_incident(name))
    rows, ring = ON_GLOO[name]
    with HeldProcesses(model.protocol, script, model.network.transports, tmp_path) as processes:
        assert processes.play() == rows
        where = positions(processes.table, processes.readers(), time.monotonic_ns())
        stall = diagnose(where, {"wire": 0.5})
    assert stall is not None
    assert [p.row for p in stall.positions] == rows
    assert stall.cycle == ring
    for rank, row in enumerate(rows):
        assert f"rank {rank} waits at {row!r}" in stall.words()


def test_there_are_enough_of_them():
    assert len(ON_GLOO) >= 5
    assert len(DEAD) > 15


def test_a_script_that_the_ranks_cannot_follow_is_told_where():
    model, script = found(find_incident("presence-top"))
    wrong = msgspec.structs.replace(script, steps=[script.steps[0], script.steps[-1]])
    with pytest.raises(ReplayError, match="step 2, rank"):
        replay_simulated(model.protocol, wrong, model.network.transports)


def test_ranks_that_can_go_on_are_not_called_stuck():
    model, script = found(find_incident("presence-top"))
    shorter = msgspec.structs.replace(script, steps=script.steps[:-1])
    with pytest.raises(ReplayError, match="can go on"):
        replay_simulated(model.protocol, shorter, model.network.transports)


def test_what_real_wires_do_not_have_is_refused(tmp_path):
    model, script = found(find_incident("gate-sent-lazy"))
    with pytest.raises(ReplayError, match="gloo keeps the contract posted"):
        HeldProcesses(model.protocol, script, model.network.transports, tmp_path)


def test_steps_of_another_model_are_refused():
    model, _ = found(find_incident("presence-top"))
    with pytest.raises(ValueError, match="cannot take step"):
        scripted(model, [Step(0, "nowhere", 0, 0, "")])


def test_what_exists_in_models_only_is_stripped():
    table = find_incident("presence-top").table()
    assert any(v.ghost for role in table.roles for v in role.variables)
    bare = executable(table)
    assert not any(v.ghost for role in bare.roles for v in role.variables)
    assert bare.fingerprint != table.fingerprint


def test_the_command_replays_what_it_saved(tmp_path):
    path = tmp_path / "counterexample.json"
    headway = [sys.executable, "-m", "headway", "replay"]
    first = subprocess.run(
        [*headway, "--incident", "crossing-decision-late", "--on", "simulator", "--save", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    again = subprocess.run([*headway, str(path), "--on", "simulator"], capture_output=True, text=True, check=True)
    assert "the same rows" in first.stdout
    assert first.stdout == again.stdout
    path.write_text(path.read_text().replace('"fingerprint": "', '"fingerprint": "0'))
    stale = subprocess.run([*headway, str(path)], capture_output=True, text=True, check=False)
    assert stale.returncode == 2
    assert "found under table" in stale.stderr
    assert SpecError.__name__ not in stale.stderr
