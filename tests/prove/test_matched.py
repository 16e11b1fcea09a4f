"""Both ends of a channel are tied to one carried fact: weakening either end, or breaking the carriage, is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.spec.edits import (
    Edit,
    drop_step,
    edit,
    negate,
    rewrite,
    set_effect,
    set_field,
    strengthen,
    weaken,
)
from headway.spec.language import FALSE, TRUE, Const, Got, Param, Past, Slot, ThisPass, Var
from headway.spec.serving import serving_table
from headway.spec.sglang.loop import sglang_table
from headway.spec.sglang.traffic import Traffic
from headway.spec.table import Protocol
from headway.verification.prove import Finding, prove_table


def findings(protocol: Protocol) -> list[Finding]:
    obligations, _, _ = prove_table(protocol)
    return [finding for obligation in obligations for finding in obligation.findings]


def faults(protocol: Protocol) -> list[Finding]:
    """Only what the theorem rests on."""
    obligations, _, _ = prove_table(protocol)
    return [finding for obligation in obligations if not obligation.apart for finding in obligation.findings]


def test_the_production_table_is_proved() -> None:
    obligations, facts, carried = prove_table(serving_table())
    assert [str(finding) for obligation in obligations for finding in obligation.findings] == []
    assert {"not launch in the last quiet passes", "a handle on proxy iff launch"} <= set(map(str, facts["first"]))
    assert {("launch", "launch"), ("digest", "digest")} <= carried["first"]["last"]


def test_sglangs_replicated_plans_are_proved_where_rank_0_sends_what_they_are() -> None:
    assert faults(Traffic().attach(sglang_table())) == []


def test_sglang_may_not_stop_at_any_time() -> None:
    found = findings(sglang_table())
    assert any("still to be received when the receiver ends" in finding.text for finding in found)


def names(found: list[Finding]) -> set[str]:
    return {row for finding in found for row in finding.rows}


@pytest.mark.parametrize(
    ("change", "law", "rows"),
    [
        (
            weaken("post output", ~Var("launch")),
            "matched traffic",
            {"last: post output", "first: receive output"},
        ),
        (
            strengthen("post output", Var("will_launch")),
            "matched traffic",
            {"last: post output", "first: receive output"},
        ),
        (
            strengthen("receive hidden states", Var("will_launch"), roles=("middle",)),
            "matched traffic",
            {"first: post hidden states", "middle: receive hidden states"},
        ),
        (
            weaken("receive output", Past("launch", Param("P"))),
            "matched traffic",
            {"last: post output", "first: receive output"},
        ),
        (
            negate("post hidden states", roles=("middle",)),
            "matched traffic",
            {"middle: post hidden states", "last: receive hidden states"},
        ),
        (
            set_effect("receive decision", "upstream", Got("launch"), roles=("last",)),
            "matched traffic",
            {"middle: post hidden states", "last: receive hidden states"},
        ),
        (
            set_effect("receive decision", "digest", Const(0), roles=("middle",)),
            "message identity",
            {"first: post hidden states", "middle: receive hidden states"},
        ),
        (
            set_field("post output", "pass", ThisPass() + 1),
            "message identity",
            {"last: post output", "first: receive output"},
        ),
    ],
)
def test_weakening_either_end_is_noticed(change: Edit, law: str, rows: set[str]) -> None:
    found = findings(edit(serving_table(), change))
    assert law in {finding.law for finding in found}
    assert rows <= names(found)


def test_a_stop_while_outputs_are_due_is_noticed() -> None:
    """Rank 0 may stop only after L quiet passes; with a shorter count an output is never received."""
    table = edit(serving_table(), rewrite("sleep early", "take requests", Param("L"), Const(1), roles=("first",)))
    found = findings(table)
    assert any("when the receiver ends" in finding.text for finding in found)
    assert any("when the receiver sleeps" in finding.text for finding in found)


def test_a_lag_of_the_guard_that_is_not_the_channels_is_noticed() -> None:
    table = edit(
        serving_table(), rewrite("one pass late", "receive output", Param("P") - 1, Param("P") - 0, roles=("first",))
    )
    assert {"last: post output", "first: receive output"} <= names(findings(table))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (drop_step("flush chain", roles=("middle",)), "posts on 'chain' before the last is awaited"),
        (strengthen("flush decision", Var("launch"), roles=("first",)), "posts on 'decision' before the last is"),
        (drop_step("flush hidden states", roles=("middle",)), "posts on 'proxy'"),
        (weaken("flush output", TRUE), "awaits on 'output' while no handle is held"),
    ],
)
def test_handles_without_custody_are_noticed(change: Edit, text: str) -> None:
    found = findings(edit(serving_table(), change, checked=False))
    assert any(finding.law == "handle custody" and text in finding.text for finding in found), found


def test_a_value_that_leaves_its_domain_for_large_l_only_is_noticed() -> None:
    """Small instances, as `spec.wellformed` enumerates them, do not reach L = 100."""
    table = serving_table()
    grown = edit(table, set_effect("plan", "quiet", Slot() - 100, roles=("first",)), checked=False)
    assert any(finding.law == "domains" for finding in findings(grown))


def test_guards_that_overlap_for_many_ranks_only_are_noticed() -> None:
    many = Param("P").eq(9)
    table = edit(serving_table(), checked=False)
    role = table.role("first")
    rows = [replace(row, guard=row.guard | many) if row.name == "launch: pass by" else row for row in role.rows]
    changed = replace(role, rows=tuple(rows))
    found = findings(table.with_roles([changed if r is role else r for r in table.roles], checked=False))
    assert found[0].law == "one guard at a location"
    assert "P = 9" in found[0].text


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (set_effect("honour", "void", Var("launch") & ~Got("honoured"), roles=("last",)), "last: honour"),
        (set_effect("receive output", "returned_void", FALSE, roles=("first",)), "first: receive output"),
        (set_field("post output", "void", FALSE), "first: receive output"),
    ],
)
def test_voids_that_are_lost_or_made_up_are_noticed(change: Edit, row: str) -> None:
    found = [finding for finding in findings(edit(serving_table(), change)) if finding.law == "no void unreported"]
    assert row in names(found)
