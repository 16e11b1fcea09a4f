"""SGLang 0.5.23's loops for disaggregated prefill and decode servers.

Source: `event_loop_pp_disagg_prefill` and `event_loop_pp_disagg_decode` of `scheduler_pp_mixin.py`. They differ from
the main loop in that requests are forwarded at the end of the pass, and that lists on which the ranks must agree travel
in two phases: a local list from rank 0 to the last in the pass, and the consensus from the last rank round the ring as
outputs do. All of these share one FIFO between two ranks, with nothing but their order to tell them apart: in a model
`list_channels` need a transport that makes a pair's messages one FIFO. The pipeline does not stop.
"""

from __future__ import annotations

from typing import Literal

from headway.spec.language import FALSE, TRUE, Bool, Const, Expr, Param, PassNumber, Posted, Range, Var, ite
from headway.spec.serving import Steps, next_pass
from headway.spec.sglang.loop import (
    BATCH,
    CHAIN,
    HELD,
    MEMBERS,
    OUTPUT,
    PASS,
    PROXY,
    RELAY,
    RESULT_LAG,
    STOP,
    WORK,
    Parity,
    batch,
    digest,
    due,
    exchange,
    handle_requests,
    plan,
    receive_chain,
    receive_proxy,
    stop,
    take_requests,
    work,
)
from headway.spec.table import Await, Channel, Fields, Local, Post, Protocol, Receive, Role, Variable

LISTS = {"prefill": ("transferred",), "decode": ("retracted", "allocated", "transferred")}

LAP = Variable("lap", Range(0, RESULT_LAG), 0, "passes so far, at most L - 1")
HELD_LIST = Variable("held_lists", Bool(), False, "consensus lists received in the previous pass are to be forwarded")
FULL = Var("lap").eq(RESULT_LAG)
"""From pass L - 1 on every slot has lists."""

Place = Literal["first", "middle", "last"]


def list_channels(kind: str) -> tuple[str, ...]:
    """The channels that share the FIFO of the chain, in the loop of that kind ("prefill" or "decode")."""
    names = LISTS[kind]
    return ("chain", *names, *(f"{name}_{way}" for name in names for way in ("consensus", "relay")))


def _channels(kind: str) -> tuple[Channel, ...]:
    fields = (("pass", PassNumber()),)
    lists = []
    for name in LISTS[kind]:
        lists += [
            Channel(name, "forward", "control", fields, doc="what the ranks so far agree on"),
            Channel(f"{name}_consensus", "closing", "control", fields, lag=Param("P") - 1, doc="what all agree on"),
            Channel(f"{name}_relay", "forward", "control", fields, lag=Const(-1), doc="the same, round the ring"),
        ]
    return (CHAIN, *lists, PROXY, RELAY, OUTPUT)


def _gather(steps: Steps, names: tuple[str, ...], place: Place) -> None:
    for name in names:
        if place != "first":
            steps.do(f"receive {name}", Receive(name, expect=(("pass", PASS),)))
        if place != "last":
            steps.do(f"await {name}", Await(name), when=Posted(name))


def _agree(steps: Steps, names: tuple[str, ...], place: Place) -> None:
    out, back = ("consensus" if place == "last" else "relay"), ("consensus" if place == "first" else "relay")
    lag: Expr = Const(0) if place == "last" else Param("L")
    for name in names:
        steps.do(
            f"post {name}_{out}",
            Post(f"{name}_{out}", (("pass", PASS - lag),)),
            when=TRUE if place == "last" else Var("held_lists"),
        )
    for name in names:
        steps.do(f"receive {name}_{back}", Receive(f"{name}_{back}", expect=(("pass", PASS - RESULT_LAG),)), when=FULL)
        steps.do(f"await {name}_{out}", Await(f"{name}_{out}"), when=Posted(f"{name}_{out}"))


def _role(kind: str, place: Place, parity: Parity) -> Role:
    names, steps = LISTS[kind], Steps()
    if place == "first":
        take_requests(steps)
    else:
        receive_chain(steps)
    handle_requests(steps)
    if place != "last":
        steps.do("await chain", Await("chain"), when=Posted("chain"))
    _gather(steps, names, place)
    plan(steps)
    if place != "first":
        receive_proxy(steps)
    if place != "last":
        steps.do("await proxy", Await("proxy"), when=Posted("proxy"))
    steps.do("launch", Local(f"forward_{place}", (), (), nature="compute"), when=batch)
    exchange(steps, last=place == "last", first=place == "first", parity=parity)
    _agree(steps, names, place)
    if place != "last":
        steps.do("post chain", Post("chain", (("pass", PASS), ("work", work), ("stop", stop))))
        for name in names:
            steps.do(f"post {name}", Post(name, (("pass", PASS),)))
        steps.do("post proxy", Post("proxy", (("pass", PASS), ("digest", digest))), when=batch)
        steps.do("rotate", None, (("held", TRUE),), when=due, otherwise=(("held", FALSE),))
    lap: Fields = (("lap", ite(FULL, RESULT_LAG, Var("lap") + 1)),)
    steps.do("end pass", None, (("held_lists", FULL), *lap))
    start = "take requests" if place == "first" else "receive chain"
    rows = next_pass(steps.rows(start), start)
    name = place if place == "first" else f"{place} {parity}"
    shown: Parity = "any" if place == "first" else parity
    return Role(name, place, (WORK, STOP, BATCH, MEMBERS, HELD, LAP, HELD_LIST), rows, start, parity=shown)


def disaggregated_table(kind: Literal["prefill", "decode"]) -> Protocol:
    """The loop of a prefill or a decode server."""
    roles = (
        _role(kind, "first", "even"),
        _role(kind, "middle", "odd"),
        _role(kind, "middle", "even"),
        _role(kind, "last", "odd"),
        _role(kind, "last", "even"),
    )
    return Protocol(f"sglang {kind}", _channels(kind), ("requests", "hidden", "output"), roles, __doc__ or "")
