"""Progress: a way round in which something stays pending is found, is real, and is fair to every rank."""

import pytest

from headway.spec.incidents import find_incident
from headway.spec.language import FALSE, TRUE, Bool, Got, SpecError, Var
from headway.spec.sglang import Traffic, sglang_table
from headway.spec.table import Await, Channel, Local, Post, Probe, Protocol, Receive, Role, Row, Variable
from headway.verification.corpus import incident_model
from headway.verification.livelock import check_progress
from headway.verification.model import Model
from headway.verification.states import State


def walk(model: Model, state: State, steps) -> list[State]:
    """The states along some steps."""
    path = [state]
    for step in steps:
        (state,) = (after for made, after in model.successors(path[-1], step.rank) if made == step)
        path.append(state)
    return path


def test_the_way_round_is_real_and_serves_nothing():
    incident = find_incident("void-spin")
    model = incident_model(incident)
    lasso = check_progress(model, incident.pending).lasso
    entry = walk(model, model.initial(), lasso.prefix)[-1]
    states = walk(model, entry, lasso.cycle)
    assert states[-1] == entry
    assert {step.rank for step in lasso.cycle} == {0, 1}
    assert any("void true" in step.detail for step in lasso.cycle if step.row == "receive output")
    assert not any("void false" in step.detail for step in lasso.cycle if step.row == "receive output")


def test_an_idle_loop_is_only_a_livelock_if_something_is_pending():
    idle = Model(Traffic(batches=0, stops=False).attach(sglang_table()), 2, 2)
    assert check_progress(idle, TRUE).lasso is not None
    assert check_progress(idle, FALSE).lasso is None


def test_a_choice_that_never_serves_is_a_livelock_and_a_forced_one_is_none():
    free = Model(Traffic(batches=1, stops=False).attach(sglang_table()), 2, 2)
    assert check_progress(free, ~Var("left").eq(0)).lasso is not None
    forced = Model(Traffic(batches=1, gaps=False, stops=False).attach(sglang_table()), 2, 2)
    assert check_progress(forced, ~Var("left").eq(0)).lasso is None


def test_a_cycle_that_only_holds_up_an_enabled_rank_is_none():
    """Rank 0 looks for a message until rank 1, which nothing keeps from it, has sent it."""
    seen, note = Var("seen"), Channel("note", "closing", "control", ())
    looking = (
        Row("look", "look", TRUE, Probe("note"), "seen", (("seen", Got("ready")),)),
        Row("again", "seen", ~seen, None, "look"),
        Row("take", "seen", seen, Receive("note"), "end"),
    )
    sending = (
        Row("work", "work", TRUE, Local("work"), "send"),
        Row("send", "send", TRUE, Post("note", ()), "wait"),
        Row("wait", "wait", TRUE, Await("note"), "end"),
    )
    first = Role("first", "first", (Variable("seen", Bool(), False),), looking, "look")
    model = Model(Protocol("look", (note,), (), (first, Role("last", "last", (), sending, "work"))), 2, 2)
    assert check_progress(model, TRUE).lasso is None


def test_a_bound_on_states_is_an_error_and_no_verdict():
    model = incident_model(find_incident("void-floor"))
    with pytest.raises(SpecError, match="more than 100 states"):
        check_progress(model, TRUE, limit=100)
