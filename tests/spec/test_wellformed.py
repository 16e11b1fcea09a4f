"""Every kind of fault in a table is an error that names where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headway.spec.language import (
    TRUE,
    Bool,
    Const,
    Enum,
    Expr,
    Got,
    Identity,
    Op,
    Param,
    PassNumber,
    Past,
    Posted,
    Range,
    SpecError,
    ThisPass,
    Var,
    ite,
)
from headway.spec.table import Await, Channel, Local, Post, Protocol, Receive, Role, Row, Variable

MARK = Var("mark")
WORD = Channel("word", "forward", "control", (("pass", PassNumber()), ("mark", Bool())), payload="note")
VARIABLES = (
    Variable("mark", Bool(), False),
    Variable("mood", Enum(("calm", "busy")), "calm"),
    Variable("count", Range(0, Param("L")), 0),
    Variable("name", Identity(), 0),
    Variable("shadow", Bool(), False, ghost=True),
)
FIRST = Role(
    "first",
    "first",
    VARIABLES,
    (
        Row(
            "choose",
            "choose",
            TRUE,
            Local("choose", (MARK,), ("note",), (("mark", Bool()),)),
            "post",
            (("mark", Got("mark")),),
        ),
        Row("post", "post", MARK, Post("word", (("pass", ThisPass()), ("mark", MARK))), "flush"),
        Row("post: pass by", "post", ~MARK, None, "flush"),
        Row("flush", "flush", Posted("word"), Await("word"), "choose", advances=True),
        Row("flush: pass by", "flush", ~Posted("word"), None, "choose", advances=True),
    ),
    "choose",
)
LAST = Role(
    "last",
    "last",
    VARIABLES,
    (Row("take", "take", TRUE, Receive("word", (("pass", ThisPass()),)), "take", (("mark", Got("mark")),), True),),
    "take",
)
Change = Callable[[Role], Role]


def table(first: Role = FIRST, last: Role = LAST, channels: tuple[Channel, ...] = (WORD,)) -> Protocol:
    return Protocol("small", channels, ("note",), (first, last))


def row(name: str, **changes: object) -> Change:
    """The role with one row changed."""
    return lambda role: replace(role, rows=tuple(replace(r, **changes) if r.name == name else r for r in role.rows))


def operation(name: str, **changes: object) -> Change:
    """The role with the operation of one row changed."""
    return lambda role: row(name, operation=replace(role.row(name).operation, **changes))(role)


def without(*names: str) -> Change:
    return lambda role: replace(role, rows=tuple(r for r in role.rows if r.name not in names))


def more(*rows: Row) -> Change:
    return lambda role: replace(role, rows=(*role.rows, *rows))


def guards(yes: Expr, no: Expr) -> Change:
    return lambda role: row("post: pass by", guard=no)(row("post", guard=yes)(role))


def effect(variable: str, value: Expr) -> Change:
    return row("choose", effects=((variable, value),))


def posting(*fields: tuple[str, Expr]) -> Change:
    return operation("post", fields=fields)


def test_the_small_table_is_well_formed():
    assert table().role("first").row("flush").advances


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # names
        (guards(Var("marc"), ~Var("marc")), "row 'post': unknown variable 'marc'"),
        (guards(Param("Q").eq(1), ~Param("Q").eq(1)), "row 'post': unknown parameter 'Q'"),
        (guards(Posted("word "), ~Posted("word ")), "row 'post': unknown channel 'word '"),
        (effect("mark", Got("remark")), "row 'choose': unknown field of this row's operation 'remark'"),
        (effect("marc", TRUE), "row 'choose': role 'first' has no variable 'marc'"),
        (effect("mark", Past("marc", Const(1))), "row 'choose': unknown variable 'marc'"),
        (operation("post", channel="wort"), "row 'post': unknown channel 'wort'"),
        (operation("choose", reads=("notes",)), "row 'choose': reads 'notes', which is no register"),
        (operation("choose", writes=("notes",)), "row 'choose': writes 'notes', which is no register"),
        (
            posting(("pass", ThisPass()), ("mark", MARK), ("marc", MARK)),
            "row 'post': channel 'word' has no field 'marc'",
        ),
        (row("flush", to="chose"), "row 'flush': goes to 'chose', where there is no row"),
        # guards
        (guards(MARK, TRUE), "rows 'post', 'post: pass by' at 'post': overlapping guards when mark = True"),
        (guards(MARK, MARK), "at 'post': no guard holds when mark = False"),
        (without("post: pass by"), "rows 'post' at 'post': no guard holds when mark = False"),
        (guards(MARK, ~Past("mark", Const(1))), "at 'post': no guard holds when mark = False, mark@(n-1) = True"),
        (guards(Got("mark"), ~Got("mark")), "row 'post': unknown field of this row's operation 'mark'"),
        (guards(Var("count"), ~MARK), "row 'post': the guard count is not a condition"),
        # handles
        (row("flush", operation=None), "row 'post': posts on 'word', which no row awaits"),
        (more(Row("again", "flush", ~TRUE, Await("other"), "choose")), "row 'again': unknown channel 'other'"),
        # types
        (effect("mark", Const(1)), "row 'choose': effect on 'mark': 1 is int, not bool"),
        (effect("mood", Const("angry")), "row 'choose': effect on 'mood': angry is enum=angry, not enum:calm|busy"),
        (effect("count", MARK), "row 'choose': effect on 'count': mark is bool, not int"),
        (effect("name", ThisPass()), "row 'choose': effect on 'name': n is pass, not identity"),
        (effect("mark", Var("count").lt(MARK)), "row 'choose': count < mark: lt takes int"),
        (effect("mark", Var("mood").eq(MARK)), "row 'choose': types enum:calm|busy and bool do not fit together"),
        (effect("mark", ite(MARK, MARK, 1)), "row 'choose': types bool and int do not fit together"),
        (effect("mark", Op("xor", (MARK, MARK))), "row 'choose': unknown operator 'xor'"),
        (effect("mark", Op("not", (MARK, MARK))), "row 'choose': not mark: not takes 1 arguments, not 2"),
        (posting(("pass", Const(0)), ("mark", MARK)), "row 'post': field 'pass': 0 is int, not pass"),
        (posting(("pass", ThisPass())), "row 'post': posts on 'word' without field 'mark'"),
        (
            row("choose", effects=(("mark", TRUE), ("mark", TRUE))),
            "row 'choose': effects: effect on 'mark' is defined twice",
        ),
        # time
        (effect("mark", Past("mark", Const(-1))), "row 'choose': mark@(n--1) looks ahead for P=2"),
        (effect("mark", Past("mark", Param("P") - 3)), "row 'choose': mark@(n-(P - 3)) looks ahead for P=2"),
        (effect("mark", Past("mark", Var("count"))), "row 'choose': the lag of Past('mark') may use only literals"),
        # what exists in models only
        (guards(Var("shadow"), ~Var("shadow")), "row 'post': the guard reads 'shadow', which exists in models only"),
        (
            effect("mark", Var("shadow")),
            "row 'choose': the effect on 'mark' reads 'shadow', which exists in models only",
        ),
        (
            posting(("pass", ThisPass()), ("mark", Past("shadow", Const(1)))),
            "row 'post': a posted field reads 'shadow'",
        ),
        (operation("choose", reads=(Var("shadow"),)), "row 'choose': the binding's input reads 'shadow'"),
        # ends of channels
        (
            row("flush: pass by", operation=Receive("word")),
            "row 'flush: pass by': Receive on 'word', of which a first rank is no receiver",
        ),
        # shape
        (more(Row("alone", "nowhere", TRUE, None, "choose")), "row 'alone': nothing leads to 'nowhere'"),
        (more(Row("after", "end", TRUE, None, "choose")), "row 'after': leaves 'end', where a rank is done"),
        (more(Row("post", "post", TRUE, None, "choose")), "row 'post' is defined twice"),
        (
            lambda role: more(Row("spin", "spin", TRUE, None, "spin"))(row("post: pass by", to="spin")(role)),
            "location 'spin': no way to the end of a pass",
        ),
        (lambda role: replace(role, start="begin"), "location 'begin': there is no row"),
        (
            lambda role: replace(role, variables=(*role.variables, Variable("mark", Bool(), False))),
            "'mark' is defined twice",
        ),
        (
            lambda role: replace(role, variables=(Variable("mark", Bool(), 0), *role.variables[1:])),
            "initial value of variable 'mark' is 0",
        ),
        (
            lambda role: replace(role, variables=(*role.variables, Variable("far", Range(0, 2), 3))),
            "initial value of variable 'far' is 3; allowed: 0, 1, 2",
        ),
    ],
)
def test_a_fault_of_the_sender_is_named(change: Change, message: str):
    with pytest.raises(SpecError) as fault:
        table(change(FIRST))
    assert str(fault.value).startswith("table 'small', role 'first': ")
    assert message in str(fault.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            row("take", operation=Post("word", (("pass", ThisPass()), ("mark", MARK))), effects=()),
            "row 'take': Post on 'word', of which a last rank is no sender",
        ),
        (operation("take", expect=(("marc", MARK),)), "row 'take': channel 'word' has no field 'marc'"),
        (operation("take", expect=(("pass", MARK),)), "row 'take': field 'pass': mark is bool, not pass"),
        (row("take", effects=(("mark", Got("name")),)), "row 'take': unknown field of this row's operation 'name'"),
    ],
)
def test_a_fault_of_the_receiver_is_named(change: Change, message: str):
    with pytest.raises(SpecError) as fault:
        table(last=change(LAST))
    assert str(fault.value).startswith("table 'small', role 'last': ")
    assert message in str(fault.value)


def test_a_post_that_nobody_receives_is_named():
    deaf = row("take", operation=None, effects=())(LAST)
    with pytest.raises(
        SpecError, match="row 'post' of role 'first' uses 'word', but role 'last' has no row to receive it"
    ):
        table(last=deaf)


def test_a_receive_that_nobody_posts_for_is_named():
    silent = row("flush", operation=None)(row("post", operation=None)(FIRST))
    with pytest.raises(
        SpecError, match="row 'take' of role 'last' uses 'word', but role 'first' has no row to post it"
    ):
        table(silent)


def test_an_await_that_nothing_is_posted_for_is_named():
    other = replace(WORD, name="other")
    with pytest.raises(SpecError, match="row 'flush': awaits 'other', which no row posts"):
        table(operation("flush", channel="other")(row("post", operation=None)(FIRST)), channels=(WORD, other))


def test_two_channels_or_roles_of_one_name_are_an_error():
    with pytest.raises(SpecError, match="channel 'word' is defined twice"):
        table(channels=(WORD, WORD))
    with pytest.raises(SpecError, match="role 'first' is defined twice"):
        Protocol("small", (WORD,), ("note",), (FIRST, FIRST, LAST))


@pytest.mark.parametrize(
    ("channel", "message"),
    [
        (replace(WORD, payload="notes"), "channel 'word': its payload 'notes' is no register; known: note"),
        (replace(WORD, path="sideways"), "channel 'word': path 'sideways'; allowed: forward, closing"),
        (replace(WORD, kind="pigeon"), "channel 'word': kind 'pigeon'; allowed: control, tensor"),
        (
            replace(WORD, fields=(*WORD.fields, ("mark", Bool()))),
            "channel 'word': fields: field 'mark' is defined twice",
        ),
        (replace(WORD, lag=Const(True)), "channel 'word': the lag true is no integer"),
        (replace(WORD, capacity=Param("Q")), "channel 'word': unknown parameter 'Q'"),
    ],
)
def test_a_fault_of_a_channel_is_named(channel: Channel, message: str):
    with pytest.raises(SpecError) as fault:
        table(channels=(channel,))
    assert message in str(fault.value)
