"""Row edits: each does what it says, refuses what is not there, and changes nothing else."""

import pytest

from headway.spec import edits as e
from headway.spec.language import FALSE, TRUE, Bool, Const, Got, Past, Posted, SpecError, Var
from headway.spec.serving import serving_table
from headway.spec.sglang import sglang_table
from headway.spec.table import Await, Channel, Post, Receive, Row, Variable

SGLANG, SERVING = sglang_table(), serving_table()


def order(protocol, role):
    """The steps of a role as a pass without branches goes through them."""
    rows, at, seen = protocol.role(role).rows, protocol.role(role).start, []
    while at not in seen:
        seen.append(at)
        onward = [row.to for row in rows if row.at == at]
        at = onward[-1]
    return seen


def row(protocol, role, at) -> Row:
    return e.acting(protocol.role(role), at)


def test_move_puts_a_step_where_it_is_told_and_nothing_else():
    moved = e.edit(SGLANG, e.move("await chain", before="post proxy"))
    steps = order(moved, "first")
    assert steps[steps.index("await chain") + 1] == "post proxy"
    assert [s for s in steps if s != "await chain"] == [s for s in order(SGLANG, "first") if s != "await chain"]
    assert moved.role("last odd") == SGLANG.role("last odd")


@pytest.mark.parametrize("role", ["first", "middle"])
def test_move_there_and_back_gives_the_same_pass(role):
    there = e.edit(SERVING, e.move("flush chain", after="launch", roles=(role,)))
    assert there.fingerprint != SERVING.fingerprint
    back = e.edit(there, e.move("flush chain", after="flush decision", roles=(role,)))
    assert set(back.role(role).rows) == set(SERVING.role(role).rows)


def test_what_ends_a_pass_stays_at_the_end_of_the_pass():
    moved = e.edit(SERVING, e.move("flush chain", before="flush decision", roles=("first",)))
    assert row(moved, "first", "flush decision").advances
    assert dict(row(moved, "first", "flush decision").effects) == dict(row(SERVING, "first", "flush chain").effects)
    assert not row(moved, "first", "flush chain").advances
    assert row(moved, "first", "flush chain").effects == ()


def test_roles_narrow_an_edit():
    moved = e.edit(SGLANG, e.move("await chain", after="rotate", roles=("middle odd",)))
    assert moved.role("first") == SGLANG.role("first")
    assert moved.role("middle odd") != SGLANG.role("middle odd")


def test_dropped_step_is_gone_and_the_pass_still_closes():
    without = e.edit(SERVING, e.drop_step("gate hidden states"))
    assert not without.role("middle").rows_at("gate hidden states")
    assert order(without, "middle") == [s for s in order(SERVING, "middle") if s != "gate hidden states"]


def test_insert_adds_both_branches():
    grown = e.edit(
        SGLANG,
        e.add_variable(Variable("seen", Bool(), False)),
        e.insert("look", None, (("seen", TRUE),), before="plan", when=Var("work"), otherwise=(("seen", FALSE),)),
    )
    taken, passed = grown.role("last odd").rows_at("look")
    assert (taken.guard, taken.to, dict(taken.effects)) == (Var("work"), "plan", {"seen": TRUE})
    assert (passed.guard, passed.to, dict(passed.effects)) == (~Var("work"), "plan", {"seen": FALSE})


def test_guards_stay_total_and_disjoint():
    for change in (
        e.weaken("post proxy", Var("work")),
        e.strengthen("receive proxy", Var("work")),
        e.negate("apply output"),
        e.guard("await proxy", Posted("proxy") & Var("batch")),
        e.guard("post proxy", TRUE),
    ):
        e.edit(SGLANG, change)  # the check of the table enumerates the guards


def test_strengthen_and_weaken_are_and_and_or():
    stronger = row(e.edit(SGLANG, e.strengthen("post proxy", Var("work"))), "first", "post proxy")
    weaker = row(e.edit(SGLANG, e.weaken("post proxy", Var("work"))), "first", "post proxy")
    assert stronger.guard == Var("batch") & Var("work")
    assert weaker.guard == Var("batch") | Var("work")


def test_omitted_else_keeps_the_old_value():
    (passed,) = (
        r for r in e.edit(SGLANG, e.omit_else("rotate")).role("first").rows_at("rotate") if r.name.endswith("pass by")
    )
    assert passed.effects == ()


def test_post_and_receive_edits():
    late = row(e.edit(SGLANG, e.set_field("post proxy", "digest", Past("digest", Const(1)))), "first", "post proxy")
    assert dict(late.operation.fields)["digest"] == Past("digest", Const(1))
    blind = row(e.edit(SGLANG, e.forget("receive proxy", "digest")), "last odd", "receive proxy")
    assert [name for name, _ in blind.operation.expect] == ["pass"]
    other = e.edit(SGLANG, e.swap_channel("receive proxy", "relay"), checked=False)
    assert row(other, "last odd", "receive proxy").operation.channel == "relay"


def test_added_field_is_posted_and_stored():
    grown = e.edit(
        SGLANG,
        e.add_variable(Variable("probe", Bool(), False)),
        e.add_field("chain", "probe", Bool(), Var("probe"), "probe"),
    )
    assert dict(row(grown, "first", "post chain").operation.fields)["probe"] == Var("probe")
    assert dict(row(grown, "last even", "receive chain").effects)["probe"] == Got("probe")


def test_dropped_handle_has_no_await():
    without = e.edit(SERVING, e.drop_handle("decision"))
    operations = [r.operation for role in without.roles for r in role.rows]
    assert Await("decision") not in operations
    assert {o.handle for o in operations if isinstance(o, Post) and o.channel == "decision"} == {"drop"}


def test_surplus_post_is_refused_by_the_check_of_tables():
    surplus = e.surplus_post(Channel("wrap", "closing", "control", ()), (), after="honour", roles=("last",))
    with pytest.raises(SpecError, match="no row to receive"):
        e.edit(SERVING, surplus)
    table = e.edit(SERVING, surplus, checked=False)
    assert order(table, "last").index("await wrap") < order(table, "last").index("post wrap")


def test_divergence_is_a_bounded_choice_of_one_rank():
    changed = e.edit(SGLANG, e.diverge("plan", "declined", (("batch", FALSE),), rank=e.at_rank(1), only=Var("work")))
    planned = row(changed, "middle odd", "plan")
    assert dict(planned.operation.returns) == {"declined": Bool()}
    assert changed.role("middle odd").variable("declined_budget").ghost


def test_rewrite_replaces_an_expression_everywhere_in_a_step():
    changed = e.edit(SGLANG, e.rewrite("batch from nothing", "plan", Var("work"), FALSE))
    assert dict(row(changed, "first", "plan").effects)["batch"] == FALSE


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (e.move("no such step", before="plan"), "no step 'no such step'"),
        (e.move("await chain", before="no such step"), "no step 'no such step'"),
        (e.move("await chain", before="plan", roles=("last odd",)), "role 'last odd' has no step 'await chain'"),
        (e.move("await chain", before="plan", roles=("nobody",)), "unknown role 'nobody'"),
        (e.move("stop here", before="plan"), "branches"),
        (e.move("take requests", before="plan"), "starts"),
        (e.drop_step("nowhere"), "no step 'nowhere'"),
        (e.insert("plan", None, before="launch"), "already has a step 'plan'"),
        (e.guard("stop here", TRUE), "branches"),
        (e.omit_else("post chain"), "no else branch"),
        (e.set_effect("plan", "nothing", TRUE), "no variable 'nothing'"),
        (e.set_field("post chain", "colour", TRUE), "no field 'colour'"),
        (e.set_field("plan", "pass", TRUE), "does not post"),
        (e.forget("receive proxy", "colour"), "no field 'colour'"),
        (e.swap_channel("plan", "chain"), "uses no channel"),
        (e.add_field("chain", "work", Bool(), TRUE), "already has a field 'work'"),
        (e.add_field("wrap", "work", Bool(), TRUE), "unknown channel 'wrap'"),
        (e.drop_handle("wrap"), "unknown channel 'wrap'"),
        (e.overwrite_handle("wrap"), "unknown channel 'wrap'"),
        (e.choose("post chain", "x", TRUE), "calls no binding"),
        (e.diverge("nowhere", "x", (), rank=TRUE), "no step 'nowhere'"),
        (e.rewrite("r", "plan", Var("held"), TRUE), "does not read held"),
        (e.set_otherwise("post chain", "batch", TRUE), "no else branch"),
        (e.change_channel("wrap", lambda c: c, "a wrap"), "unknown channel 'wrap'"),
    ],
)
def test_an_edit_that_does_not_fit_names_what_is_missing(change, words):
    with pytest.raises(SpecError, match=words):
        e.edit(SGLANG, change)


def test_an_ill_formed_result_is_refused():
    with pytest.raises(SpecError, match="no row"):
        e.edit(SGLANG, e.set_operation("receive proxy", Receive("relay")))
