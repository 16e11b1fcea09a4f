"""A production fork of SGLang's main loop: rank 0's admission decision travels with each pass.

Source: the fork's `scheduler_pp_mixin.py` (github.com/efschu/htsglang) in the state where a rank that cannot run what
rank 0 admitted retracts it, which voids the pass from there on. What makes that safe is in the table: the ranks before
it have launched, so their hidden states are drained; the last rank sends a void output to a rank 0 that expects one;
and the void travels round the ring as far as ranks have launched. Requests are forwarded before they are handled;
every rank sends before it receives; decision and requests are awaited at the end of the pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from headway.spec.language import FALSE, TRUE, Bool, Const, Expr, Got, Param, PassNumber, Past, Posted, Range, Var, ite
from headway.spec.serving import Steps
from headway.spec.sglang.loop import (
    CHAIN,
    DIGEST,
    NOBODY,
    OUTPUT,
    PASS,
    PLANNED,
    PROXY,
    RELAY,
    RESULT_LAG,
    SEND_LAG,
    WIRE,
    Parity,
    batch,
    build,
    digest,
    due,
    held,
    receive_proxy,
    stop,
    take_requests,
    work,
)
from headway.spec.table import Await, Channel, Fields, Local, Post, Protocol, Receive, Role, Variable

RANK = Range(0, Param("P") - 1)
"""The first rank that retracted a pass; 0 for none, because rank 0 decides and never retracts."""
VOIDED_BY = ("retracted", RANK)

DECISION = Channel(
    "decision",
    "forward",
    "tensor",
    (("pass", PassNumber()), ("work", Bool()), ("digest", DIGEST), ("launched", Bool()), VOIDED_BY),
    payload="decision",
    wire=WIRE,
    doc="what rank 0 admitted, whether the sender launches it, and the first rank that retracted it",
)
CHANNELS = (
    replace(CHAIN, fields=(("pass", PassNumber()), ("stop", Bool())), doc="requests, once a pass"),
    DECISION,
    PROXY,
    replace(RELAY, fields=(*RELAY.fields, VOIDED_BY)),
    replace(OUTPUT, fields=(*OUTPUT.fields, VOIDED_BY)),
)

RETRACTED = Variable("retracted", RANK, 0, "the first rank that retracted this pass, 0 for none")
UPSTREAM = Variable("upstream", Bool(), False, "the previous rank launches this pass")
HELD_VOID = Variable("held_void", RANK, 0, "`retracted` of the output last received")

retracted, upstream, held_void = Var("retracted"), Var("upstream"), Var("held_void")
NONE = Const(0)
MEMBERS_DECIDED = ite(work, PLANNED, NOBODY)


def _take_chain(steps: Steps) -> None:
    steps.do("receive chain", Receive("chain", expect=(("pass", PASS),)), (("stop", Got("stop")),))


def _post_chain(steps: Steps) -> None:
    steps.do("post chain", Post("chain", (("pass", PASS), ("stop", stop))))


def _handle_requests(steps: Steps) -> None:
    steps.do("handle requests", Local("handle_requests", ("requests",)))


def _honour(steps: Steps) -> None:
    facts: Fields = tuple((name, Got(name)) for name in ("work", "digest", "retracted"))
    steps.do("receive decision", Receive("decision", expect=(("pass", PASS),)), (*facts, ("upstream", Got("launched"))))
    honoured, live = Got("honoured"), work & retracted.eq(0)
    steps.do(
        "honour",
        Local("honour", ("decision",), (), (("honoured", Bool()),)),
        (("batch", live & honoured), ("retracted", ite(live & ~honoured, Param("R"), retracted))),
    )


def _post_decision(steps: Steps, void: Expr) -> None:
    fields: Fields = (("pass", PASS), ("work", work), ("digest", digest), ("launched", batch), ("retracted", void))
    steps.do("post decision", Post("decision", fields))


def _drain_proxy(steps: Steps) -> None:
    orphan = ~batch & ~retracted.eq(0) & upstream
    steps.do("drain proxy", Receive("proxy", expect=(("pass", PASS),)), when=orphan)


def _exchange(steps: Steps, last: bool, first: bool) -> None:
    outgoing, incoming = ("output" if last else "relay"), ("output" if first else "relay")
    lag = SEND_LAG if last else Param("L")
    steps.do("await output", Await(outgoing), when=Posted(outgoing))
    void = Past("retracted", SEND_LAG) if last else held_void
    owed = held & (held_void.eq(0) | (Param("R") + 1).lt(held_void))
    steps.do(
        "post output",
        Post(outgoing, (("pass", PASS - lag), ("digest", Past("digest", lag)), ("retracted", void))),
        when=Past("work", SEND_LAG) if last else owed,
    )
    expect: Fields = (("pass", PASS - RESULT_LAG), ("digest", Past("digest", RESULT_LAG)))
    stored: Fields = () if last else (("held_void", Got("retracted")),)
    steps.do("receive output", Receive(incoming, expect=expect), stored, when=due)
    steps.do("apply output", Local("apply_output", ("output",)), when=due)


def _send_and_flush(steps: Steps) -> None:
    steps.do("post proxy", Post("proxy", (("pass", PASS), ("digest", digest))), when=batch)
    steps.do("rotate", None, (("held", TRUE),), when=due, otherwise=(("held", FALSE),))
    steps.do("await decision", Await("decision"))
    steps.do("await chain", Await("chain"))


def _role(place: Literal["first", "middle", "last"], name: str, steps: Steps, posts: tuple[str, ...]) -> Role:
    parity: Parity = "any"
    role = build(steps, name, place, parity, posts)
    more = () if place == "last" else (HELD_VOID,)
    return replace(role, variables=(*role.variables, RETRACTED, *(() if place == "first" else (UPSTREAM,)), *more))


def _first() -> Role:
    steps = Steps()
    take_requests(steps)
    _post_chain(steps)
    _handle_requests(steps)
    steps.branch("stop here", stop, "settle chain")
    steps.do("plan", Local("plan"), (("batch", work), ("digest", MEMBERS_DECIDED)))
    _post_decision(steps, NONE)
    steps.do("await proxy", Await("proxy"), when=Posted("proxy"))
    steps.do("launch", Local("forward_first", (), ("hidden",), nature="compute"), when=batch)
    _exchange(steps, last=False, first=True)
    _send_and_flush(steps)
    return _role("first", "first", steps, ("chain", "proxy", "relay"))


def _middle() -> Role:
    steps = Steps()
    _take_chain(steps)
    _post_chain(steps)
    _handle_requests(steps)
    steps.branch("stop here", stop, "settle chain")
    _honour(steps)
    _post_decision(steps, retracted)
    receive_proxy(steps)
    _drain_proxy(steps)
    steps.do("await proxy", Await("proxy"), when=Posted("proxy"))
    steps.do("launch", Local("forward_middle", ("hidden",), ("hidden",), nature="compute"), when=batch)
    _exchange(steps, last=False, first=False)
    _send_and_flush(steps)
    return _role("middle", "middle", steps, ("chain", "proxy", "relay"))


def _last() -> Role:
    steps = Steps()
    _take_chain(steps)
    _handle_requests(steps)
    steps.branch("stop here", stop, "settle output")
    _honour(steps)
    receive_proxy(steps)
    _drain_proxy(steps)
    steps.do("launch", Local("forward_last", ("hidden",), ("output",), nature="compute"), when=batch)
    _exchange(steps, last=True, first=False)
    return _role("last", "last", steps, ("output",))


def fork_table() -> Protocol:
    """The fork's main loop with admission decisions, void outputs and drained hidden states."""
    registers = ("requests", "decision", "hidden", "output")
    return Protocol("sglang fork", CHANNELS, registers, (_first(), _middle(), _last()), __doc__ or "")
