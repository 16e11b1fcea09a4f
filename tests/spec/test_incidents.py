"""The incident corpus: each incident is a few edits of a base table, and gets the verdict that its source gives."""

import json
from dataclasses import replace

import pytest

from headway.cli import main
from headway.spec.incidents import INCIDENTS, find_incident
from headway.spec.incidents.incident import PASS, Expected, Incident, dead, idle
from headway.spec.language import SpecError
from headway.spec.sglang import Traffic
from headway.spec.workload import Workload
from headway.verification.corpus import run_incident
from headway.verification.explore.search import Bounds

BOUNDS = Bounds(threads=1)
MOST_EDITS = 10
LEAST_SHARED = 0.8


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.id)
def test_search_agrees_with_the_source(incident):
    found = run_incident(incident, bounds=BOUNDS)
    assert not found.disagreement
    if found.outcome == "dead" and incident.expected.cycle:
        assert len(found.counterexample.cycle) > 1


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.id)
def test_incident_is_an_edit_and_no_copy(incident):
    base, table = incident.base_table(), replace(incident, unchecked=True).table()
    assert len(incident.edits) <= MOST_EDITS
    rows = [(role.name, row.at, row.name, row.operation) for role in base.roles for row in role.rows]
    kept = set(rows) & {(role.name, row.at, row.name, row.operation) for role in table.roles for row in role.rows}
    assert len(kept) >= LEAST_SHARED * len(rows), f"shares {len(kept)} of {len(rows)} rows"
    assert [role.name for role in table.roles] == [role.name for role in base.roles]


def test_no_two_incidents_are_the_same():
    seen = {}
    for incident in INCIDENTS:
        table = replace(incident, unchecked=True).table()
        key = (
            table.fingerprint_without_name if False else table.canonical.replace(incident.id, ""),
            incident.transports,
        )
        key = (*key, incident.ranks, incident.slot_count, incident.unchecked, str(incident.pending))
        assert key not in seen, f"{incident.id} is {seen[key]}"
        seen[key] = incident.id


def test_ids_and_texts():
    assert len({incident.id for incident in INCIDENTS}) == len(INCIDENTS)
    assert all(incident.title and incident.source for incident in INCIDENTS)
    for incident in INCIDENTS:
        if incident.expected.outcome == "dead":
            assert len(incident.expected.stuck) == incident.ranks, incident.id


def test_corpus_covers_outcomes_bases_and_mutants_that_must_pass():
    outcomes = {incident.expected.outcome for incident in INCIDENTS}
    assert {"pass", "dead", "livelock", "mispair", "unmatched", "duplicated", "refused"} <= outcomes
    assert {incident.base for incident in INCIDENTS} == {"serving", "sglang", "sglang fork"}
    assert sum(incident.expected.outcome == "pass" for incident in INCIDENTS) >= 20
    public = [i for i in INCIDENTS if "/" in i.source and "#" in i.source and "fork" not in i.source]
    assert len(public) >= 8


def test_a_wrong_expectation_is_a_disagreement():
    truth = find_incident("presence-top")
    for wrong in (
        PASS,
        Expected("mispair"),
        dead("await chain", "await chain", "await chain"),
        replace(truth.expected, cycle=(0, 1)),
    ):
        found = run_incident(replace(truth, expected=wrong), bounds=BOUNDS)
        assert found.disagreement
        assert not found.agrees


def test_the_counterexample_of_a_presence_divergence_names_who_waits_for_whom():
    found = run_incident(find_incident("presence-top"), bounds=BOUNDS)
    assert found.words == "dead: 0 await chain, 1 await chain, 2 receive proxy"
    assert [(w.rank, w.on) for w in found.counterexample.positions] == [(0, 1), (1, 2), (2, 1)]
    assert any(step.row == "plan" and "phantom = true" in step.detail for step in found.counterexample.steps)


def test_an_edit_that_does_not_fit_is_no_verdict():
    broken = replace(find_incident("chain-flush-end"), base="serving")
    with pytest.raises(SpecError, match="await chain"):
        run_incident(broken, bounds=BOUNDS)


def test_bad_incidents_are_refused():
    good = find_incident("presence-top")
    with pytest.raises(SpecError, match="laws"):
        replace(good, laws=(16,))
    with pytest.raises(SpecError, match="2 stuck rows for 3 ranks"):
        replace(good, expected=dead("await chain", "await chain"))
    with pytest.raises(SpecError, match="unknown incident 'nothing'"):
        find_incident("nothing")


def test_command_prints_json_and_exits_by_agreement(capsys, monkeypatch):
    with pytest.raises(SystemExit) as done:
        main(["incidents", "--json", "--threads", "1", "cut-over-top", "decision-wrap-refused"])
    records = json.loads(capsys.readouterr().out)
    assert done.value.code == 0
    assert [record["id"] for record in records] == ["cut-over-top", "decision-wrap-refused"]
    assert records[0]["found"] == "dead: 0 cut over, 1 receive chain, 2 receive chain"
    assert records[0]["agrees"]
    assert records[0]["cycle"] == [0, 1]

    wrong = replace(find_incident("cut-over-top"), expected=PASS)
    monkeypatch.setattr("headway.cli.incidents.find_incident", lambda name: wrong)
    with pytest.raises(SystemExit) as done:
        main(["incidents", "--threads", "1", "cut-over-top"])
    assert done.value.code == 1
    assert "expected pass" in capsys.readouterr().out


def test_command_refuses_unknown_ids(capsys):
    with pytest.raises(SystemExit) as done:
        main(["incidents", "nothing"])
    assert done.value.code == 2
    assert "nothing" in capsys.readouterr().err


def test_workloads_attach_to_any_table_unchecked():
    bare = Incident("bare", "a table as it is", (1,), "sglang", (), PASS, "none", idle())
    assert bare.table().role("first").variable("idle").ghost
    assert Workload(1, 1).attach(find_incident("void-spin").base_table()).role("first").variable("waiting").ghost
    assert Traffic(batches=2).attach(bare.base_table()).role("first").variable("left").initial == 2
