"""SGLang 0.5.23, `Scheduler.event_loop_pp`: one pass of each rank, step by step.

Source: PyPI `sglang==0.5.23`, `srt/managers/scheduler_pp_mixin.py`. There is no decision message: every rank runs
the same planner on the same requests, so the table carries what that planner makes of them (`work`) with the
requests. A pass serves slot n mod L, with L = P + d (d is SGLang's `pp_async_batch_depth`). The last rank posts the
output of pass n in pass n + d; every rank receives it in pass n + L - 1, and ranks but the last forward it in pass
n + L, out of a buffer of one element (`pp_outputs`). Hidden states and forwarded outputs share one wire.
"""

from __future__ import annotations

from typing import Literal

from headway.spec.language import (
    FALSE,
    TRUE,
    Bool,
    Const,
    Got,
    Identity,
    Param,
    PassNumber,
    Past,
    Posted,
    ThisPass,
    Var,
    ite,
)
from headway.spec.serving import Steps, next_pass
from headway.spec.table import Await, Channel, Fields, Local, Post, Protocol, Receive, Role, Row, Variable

Parity = Literal["any", "even", "odd"]

PASS = ThisPass()
RESULT_LAG = Param("L") - 1
"""In its pass n a rank collects the output of pass n - RESULT_LAG (slot `next_mb_id`)."""
SEND_LAG = Param("L") - Param("P")
"""In its pass n the last rank posts the output of pass n - SEND_LAG (slot `next_first_rank_mb_id`)."""

NOBODY, PLANNED, OTHER = 0, 1, 2
"""Digests of a batch: no members, the members that the replicated planner gives, any other members."""
DIGEST = Identity(3)

WIRE = "dict"
"""The wire of `send_tensor_dict`: a receive of one kind stashes messages of other kinds that come before it."""

CHAIN = Channel(
    "chain",
    "forward",
    "control",
    (("pass", PassNumber()), ("work", Bool()), ("stop", Bool())),
    payload="requests",
    doc="requests, once a pass, with what the replicated planner makes of them (`work`: a batch runs)",
)
PROXY = Channel(
    "proxy",
    "forward",
    "tensor",
    (("pass", PassNumber()), ("digest", DIGEST)),
    payload="hidden",
    wire=WIRE,
    doc="hidden states, from the end of the sender's pass",
)
RELAY = Channel(
    "relay",
    "forward",
    "tensor",
    (("pass", PassNumber()), ("digest", DIGEST)),
    payload="output",
    lag=Const(-1),
    wire=WIRE,
    doc="an output on its way round the ring: what the sender received in its previous pass",
)
OUTPUT = Channel(
    "output",
    "closing",
    "tensor",
    (("pass", PassNumber()), ("digest", DIGEST)),
    payload="output",
    lag=Param("P") - 1,
    wire=WIRE,
    doc="an output, from the last rank to rank 0",
)

WORK = Variable("work", Bool(), False, "the replicated planner makes a batch in this pass")
STOP = Variable("stop", Bool(), False, "this pass ends the pipeline")
BATCH = Variable("batch", Bool(), False, "this rank holds a batch in this pass's slot (`mbs[mb_id]`)")
MEMBERS = Variable("digest", DIGEST, NOBODY, "digest of that batch's members")
HELD = Variable("held", Bool(), False, "an output received in the previous pass is to be forwarded (`pp_outputs`)")

work, stop, batch, digest, held = Var("work"), Var("stop"), Var("batch"), Var("digest"), Var("held")
due = Past("batch", RESULT_LAG)
"""A batch of this rank whose output is collected in this pass (`mbs[next_mb_id]`)."""


def take_requests(steps: Steps) -> None:
    """Rank 0 polls its socket; it never sleeps inside a pass."""
    returns = (("work", Bool()), ("stop", Bool()))
    steps.do(
        "take requests",
        Local("take_requests", (), ("requests",), returns),
        (("work", Got("work")), ("stop", Got("stop"))),
    )


def receive_chain(steps: Steps) -> None:
    """The one blocking receive of a pass that keeps the ranks in step."""
    steps.do(
        "receive chain",
        Receive("chain", expect=(("pass", PASS),)),
        (("work", Got("work")), ("stop", Got("stop"))),
    )


def handle_requests(steps: Steps) -> None:
    """Run the handlers and enqueue, before the requests are forwarded."""
    steps.do("handle requests", Local("handle_requests", ("requests",)))


def forward_chain(steps: Steps) -> None:
    """Wait for the previous pass's post, then post: SGLang never overwrites a live handle."""
    steps.do("await chain", Await("chain"), when=Posted("chain"))
    steps.do("post chain", Post("chain", (("pass", PASS), ("work", work), ("stop", stop))))


def plan(steps: Steps) -> None:
    """The planner, run by every rank for itself."""
    made: Fields = (("batch", work), ("digest", ite(work, PLANNED, NOBODY)))
    steps.do("plan", Local("plan"), made)


def receive_proxy(steps: Steps) -> None:
    """Hidden states of this pass, if this rank holds a batch."""
    steps.do("receive proxy", Receive("proxy", expect=(("pass", PASS), ("digest", digest))), when=batch)


def exchange(steps: Steps, last: bool, first: bool, parity: Parity) -> None:
    """Collect one output and send another; even ranks send first, odd ranks receive first."""
    outgoing, incoming = ("output" if last else "relay"), ("output" if first else "relay")
    when = Past("batch", SEND_LAG) if last else held
    lag = SEND_LAG if last else Param("L")
    fields: Fields = (("pass", PASS - lag), ("digest", Past("digest", lag)))
    expect: Fields = (("pass", PASS - RESULT_LAG), ("digest", Past("digest", RESULT_LAG)))
    steps.do("await output", Await(outgoing), when=Posted(outgoing))

    def send() -> None:
        steps.do("post output", Post(outgoing, fields), when=when)

    if parity == "even":
        send()
    steps.do("receive output", Receive(incoming, expect=expect), when=due)
    if parity == "odd":
        send()
    steps.do("apply output", Local("apply_output", ("output",)), when=due)


def build(
    steps: Steps, name: str, place: Literal["first", "middle", "last"], parity: Parity, posts: tuple[str, ...]
) -> Role:
    """The role whose pass `steps` holds; at a stop it awaits what it still holds on `posts`."""
    start = "take requests" if place == "first" else "receive chain"
    rows: tuple[Row, ...] = next_pass(steps.rows(start), start)
    settle = Steps()
    for channel in posts:
        settle.do(f"settle {channel}", Await(channel), when=Posted(channel))
    variables = (WORK, STOP, BATCH, MEMBERS) if place == "last" else (WORK, STOP, BATCH, MEMBERS, HELD)
    return Role(name, place, variables, (*rows, *settle.rows("end")), start, parity=parity)


def _first() -> Role:
    steps = Steps()
    take_requests(steps)
    handle_requests(steps)
    forward_chain(steps)
    steps.branch("stop here", stop, "settle chain")
    plan(steps)
    steps.do("await proxy", Await("proxy"), when=Posted("proxy"))
    steps.do("launch", Local("forward_first", (), ("hidden",), nature="compute"), when=batch)
    exchange(steps, last=False, first=True, parity="even")
    steps.do("post proxy", Post("proxy", (("pass", PASS), ("digest", digest))), when=batch)
    steps.do("rotate", None, (("held", TRUE),), when=due, otherwise=(("held", FALSE),))
    return build(steps, "first", "first", "any", ("chain", "proxy", "relay"))


def _middle(parity: Parity) -> Role:
    steps = Steps()
    receive_chain(steps)
    handle_requests(steps)
    forward_chain(steps)
    steps.branch("stop here", stop, "settle chain")
    plan(steps)
    receive_proxy(steps)
    steps.do("await proxy", Await("proxy"), when=Posted("proxy"))
    steps.do("launch", Local("forward_middle", ("hidden",), ("hidden",), nature="compute"), when=batch)
    exchange(steps, last=False, first=False, parity=parity)
    steps.do("post proxy", Post("proxy", (("pass", PASS), ("digest", digest))), when=batch)
    steps.do("rotate", None, (("held", TRUE),), when=due, otherwise=(("held", FALSE),))
    return build(steps, f"middle {parity}", "middle", parity, ("chain", "proxy", "relay"))


def _last(parity: Parity) -> Role:
    steps = Steps()
    receive_chain(steps)
    handle_requests(steps)
    steps.branch("stop here", stop, "settle output")
    plan(steps)
    receive_proxy(steps)
    steps.do("launch", Local("forward_last", ("hidden",), ("output",), nature="compute"), when=batch)
    exchange(steps, last=True, first=False, parity=parity)
    return build(steps, f"last {parity}", "last", parity, ("output",))


def sglang_table() -> Protocol:
    """SGLang's main loop at depth 0 or, with more slots than ranks, deeper ones before their reordering.

    For d > 0 SGLang exchanges outputs before the launch: `early_exchange` in `spec.sglang.variants`.
    """
    roles = (_first(), _middle("odd"), _middle("even"), _last("odd"), _last("even"))
    return Protocol("sglang", (CHAIN, PROXY, RELAY, OUTPUT), ("requests", "hidden", "output"), roles, __doc__ or "")
