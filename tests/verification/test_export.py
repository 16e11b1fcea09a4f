"""SPIN and our search agree on verdicts and, unreduced, on the exact number of states and transitions."""

from dataclasses import replace

import pytest

from headway.cli import main
from headway.spec.serving import serving_table
from headway.spec.table import Protocol
from headway.spec.transports import DROPPED, LAZY, POSTED, RENDEZVOUS, credits, stream_ordered
from headway.spec.workload import Workload
from headway.verification.export import run_spin, spin_installed
from headway.verification.model import Model
from headway.verification.reference import search

needs_spin = pytest.mark.skipif(not spin_installed(), reason="SPIN is not installed (Debian package `spin`)")


@needs_spin
@pytest.mark.parametrize(
    "transport", [POSTED, RENDEZVOUS, LAZY, stream_ordered(1), credits(1), DROPPED], ids=lambda t: t.name
)
@pytest.mark.parametrize(("ranks", "slots", "refusals"), [(1, 2, 0), (2, 2, 1), (2, 3, 0)])
def test_spin_counts_the_same_states(ranks, slots, refusals, transport):
    model = Model(Workload(2, 2, refusals).attach(serving_table()), ranks, slots, transport=transport)
    ours, spins = search(model, stop_at_first=False), run_spin(model)
    assert spins.holds == ours.holds
    assert (spins.states, spins.transitions) == (ours.states, ours.transitions)


def without_row_effect(table: Protocol, role: str, row: str) -> Protocol:
    """A table in which one row forgets its effects."""
    roles = [
        replace(r, rows=tuple(replace(w, effects=()) if w.name == row else w for w in r.rows)) if r.name == role else r
        for r in table.roles
    ]
    return table.with_roles(roles)


@needs_spin
@pytest.mark.parametrize(
    ("role", "row"),
    [("last", "receive decision"), ("first", "plan"), ("middle", "receive decision"), ("last", "honour")],
)
def test_spin_finds_the_same_mutants_faulty(role, row):
    table = without_row_effect(Workload(2, 2, 0).attach(serving_table()), role, row)
    model = Model(table, 3 if role == "middle" else 2, 3)
    ours = search(model, reduced=True)
    assert run_spin(model).holds == ours.holds


def test_the_command_prints_a_model(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", "promela", "--ranks", "2"])
    assert ended.value.code == 0
    assert "active proctype Rank1()" in capsys.readouterr().out
