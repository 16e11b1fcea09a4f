"""Family A: the order of blocking acts, handles, readiness gates, and what a transport may wait for."""

from __future__ import annotations

from headway.spec.edits import (
    Edit,
    add_channel,
    add_variable,
    at_rank,
    diverge,
    drop_handle,
    drop_step,
    everywhere,
    guard,
    insert,
    move,
    omit_else,
    overwrite_handle,
    set_effect,
    set_field,
    set_operation,
    surplus_post,
)
from headway.spec.incidents.incident import PASS, Incident, busy, dead, free, idle, mispair, refused, requests
from headway.spec.language import FALSE, TRUE, Bool, Const, Expr, Param, Posted, ThisPass, Var
from headway.spec.sglang.loop import PLANNED, RESULT_LAG, batch, due
from headway.spec.table import Await, Channel, Gate, Post, Receive, Variable
from headway.spec.transports import LAZY

A = "fork of SGLang, family A"
EVEN = ("first", "middle even", "last even")
LASTS = ("last odd", "last even")
RELAYING = ("first", "middle odd", "middle even")

PHANTOM = diverge("plan", "phantom", (("batch", TRUE), ("digest", Const(PLANNED))), rank=at_rank(2), only=~Var("work"))
"""Rank 2 alone holds a batch in one pass that has none."""

FLUSH = (
    Incident(
        "chain-flush-top",
        "the chain is awaited at the top of the next pass instead of at the end of its own",
        (1,),
        "sglang fork",
        (move("await chain", before="post chain"), guard("await chain", Posted("chain"))),
        PASS,
        f"{A}, #788: claimed as the cause, refuted",
        free(batches=2, retractions=1),
    ),
    Incident(
        "chain-flush-end",
        "SGLang's chain awaited at the end of its own pass",
        (1,),
        "sglang",
        (move("await chain", after="rotate"),),
        PASS,
        f"{A}, #788: the fix, which moved the parking place",
        free(),
    ),
    Incident(
        "chain-flush-before-proxy",
        "SGLang's chain awaited before the hidden states are posted",
        (1,),
        "sglang",
        (move("await chain", before="post proxy"),),
        PASS,
        f"{A}, #788",
        free(),
    ),
    Incident(
        "chain-flush-after-post",
        "SGLang's chain awaited right after its post",
        (1,),
        "sglang",
        (move("await chain", after="post chain"),),
        dead("await chain", "receive output", "receive output", cycle=(0, 1)),
        f"{A}, #788: the placement that does kill, on the first batch",
        busy(1),
    ),
    Incident(
        "production-chain-flush-top",
        "the production table's chain awaited at the top of the next pass",
        (1,),
        "serving",
        (move("flush chain", before="post chain"), guard("flush chain", Posted("chain"))),
        PASS,
        f"{A}, #788",
        requests(2, 2, 1),
    ),
)

PRESENCE = (
    Incident(
        "presence-top",
        "one admission declined by ranks 0 and 1 and not by rank 2",
        (2, 6),
        "sglang",
        (PHANTOM,),
        dead("await chain", "await chain", "receive proxy", cycle=(1, 2)),
        f"{A}, #788 and #789: the true cause of both",
        busy(1),
    ),
    Incident(
        "presence-end",
        "the same with the chain awaited at the end of the pass",
        (2, 6),
        "sglang",
        (PHANTOM, move("await chain", after="rotate")),
        dead("await chain", "await chain", "receive proxy", cycle=(1, 2)),
        f"{A}, #789: the same ranks, parked elsewhere",
        busy(1),
    ),
    Incident(
        "presence-busy",
        "rank 2 declines one batch of a busy pipeline",
        (2, 10),
        "sglang",
        (diverge("plan", "declined", (("batch", FALSE),), rank=at_rank(2), only=Var("work")),),
        mispair(2, "receive proxy"),
        f"{A}, #791 under load",
        busy(),
    ),
)

DECISION = (
    Incident(
        "decision-after-flush",
        "the decision posted after the chain was awaited",
        (1,),
        "sglang fork",
        (
            move("post decision", after="await chain", roles=("first", "middle")),
            move("await decision", after="post decision", roles=("first", "middle")),
        ),
        PASS,
        f"{A}, admission-decision wiring: the claimed cause, refuted",
        free(),
    ),
    Incident(
        "decision-after-launch",
        "the decision posted after the launch",
        (1,),
        "sglang fork",
        (move("post decision", after="launch", roles=("first", "middle")),),
        PASS,
        f"{A}, admission-decision wiring",
        free(),
    ),
    Incident(
        "decision-handle-dropped",
        "the decision's handle is not kept",
        (4,),
        "sglang fork",
        (drop_handle("decision"),),
        dead("await chain", "receive decision", "receive decision"),
        f"{A}, #796a: six boots; PP0 one pass ahead in the chain flush",
        idle(),
    ),
    Incident(
        "decision-handle-overwritten",
        "the decision's handle is replaced by the next one without being awaited",
        (4,),
        "sglang fork",
        (overwrite_handle("decision"), guard("await decision", FALSE)),
        dead("await chain", "receive decision", "receive decision"),
        f"{A}, #788: the rejected second staging slot",
        idle(),
    ),
    Incident(
        "decision-wrap-unmatched",
        "the last rank posts the decision on to rank 0, which receives none",
        (3,),
        "sglang fork",
        (surplus_post(Channel("wrap", "closing", "tensor", (), wire="dict"), (), after="honour", roles=("last",)),),
        dead("await decision", "await decision", "await wrap"),
        f"{A}, #796b",
        idle(),
        unchecked=True,
    ),
    Incident(
        "decision-wrap-refused",
        "the same table is refused before it is searched: a channel without a receive",
        (3,),
        "sglang fork",
        (surplus_post(Channel("wrap", "closing", "tensor", (), wire="dict"), (), after="honour", roles=("last",)),),
        refused(),
        f"{A}, #796b",
        idle(),
    ),
    Incident(
        "decision-wrap-received",
        "rank 0 blocks for the decision that the last rank passed on one pass earlier",
        (3,),
        "sglang fork",
        (
            surplus_post(Channel("wrap", "closing", "tensor", (), wire="dict"), (), after="honour", roles=("last",)),
            insert("settle wrap", Await("wrap"), before="settle output", when=Posted("wrap"), roles=("last",)),
            add_variable(Variable("started", Bool(), False), roles=("first",)),
            insert("receive wrap", Receive("wrap"), before="post chain", when=Var("started"), roles=("first",)),
            set_effect("plan", "started", TRUE, roles=("first",)),
        ),
        PASS,
        f"{A}, #796b: 'the fourth deadlock' is none once handles are kept",
        free(),
    ),
)

CROSSING_CHANNEL = Channel("crossing", "closing", "tensor", (), capacity=Const(2))


def _crossing(when: Expr) -> tuple[Edit, ...]:
    """Layers of rank 0 that need activations of rank 1 in the middle of its launch."""
    return (
        add_channel(CROSSING_CHANNEL),
        insert("receive crossing", Receive("crossing"), before="launch", when=when, roles=("first",)),
        insert("await crossing", Await("crossing"), after="honour", when=Posted("crossing"), roles=("last",)),
        insert("post crossing", Post("crossing", ()), after="await crossing", when=when, roles=("last",)),
    )


CROSSING = (
    *_crossing(Var("launch")),
    insert("settle crossing", Await("crossing"), before="settle output", when=Posted("crossing"), roles=("last",)),
)
RELAY_CROSSING = _crossing(batch)

CROSSINGS = (
    Incident(
        "crossing-decision-late",
        "a launch needs a crossing from the next rank, whose plan needs the decision posted after the launch",
        (1,),
        "serving",
        (*CROSSING, move("post decision", after="launch", roles=("first",))),
        dead("receive crossing", "receive decision", cycle=(0, 1)),
        f"{A}, #795",
        requests(),
        ranks=2,
    ),
    Incident(
        "crossing-decision-early",
        "the same with the decision posted right after the plan",
        (1,),
        "serving",
        CROSSING,
        PASS,
        f"{A}, #795: the fix",
        requests(2, 2),
        ranks=2,
    ),
    Incident(
        "crossing-with-relay",
        "the same fix in a loop that forwards outputs round the ring, with as many slots as ranks",
        (1,),
        "sglang fork",
        RELAY_CROSSING,
        dead("receive crossing", "receive output", cycle=(0, 1)),
        f"{A}, #795: the fix as it stood, but with the output ring",
        busy(3),
        ranks=2,
        note="Expected to pass; the search is right: rank 1 collects in pass n - 1 what rank 0 forwards in pass n, "
        "after the launch that waits for rank 1. The fork ran crossings in lockstep only, with one slot.",
    ),
)

GATES = (
    Incident(
        "gate-sent-lazy",
        "the gate waits for `sent`, which the first send of a pair reports only after the receive was entered",
        (5,),
        "serving",
        (set_operation("gate hidden states", Gate("proxy", counter="sent")),),
        dead("post hidden states", "gate hidden states", "gate hidden states", cycle=(0, 1)),
        f"{A}, #789 part 2",
        requests(),
        transports=(("proxy", LAZY),),
    ),
    Incident(
        "gate-attempted-lazy",
        "the gate waits for `attempted`",
        (5,),
        "serving",
        (),
        PASS,
        f"{A}, #789 part 2: the fix",
        requests(2, 1),
        transports=(("proxy", LAZY),),
    ),
    Incident(
        "gate-none-lazy",
        "no gate at all",
        (5,),
        "serving",
        (drop_step("gate hidden states"),),
        PASS,
        f"{A}, #789 part 2",
        requests(2, 1),
        transports=(("proxy", LAZY),),
    ),
    Incident(
        "gate-wire-counter",
        "the gate of an output receive is opened by decisions on the same wire",
        (5,),
        "sglang fork",
        (
            insert("gate output", Gate("relay", scope="wire"), before="receive output", when=due, roles=("middle",)),
            guard("post output", Var("held") & Var("held_void").eq(0), roles=("first", "middle")),
        ),
        dead("await chain", "receive output", "receive chain"),
        f"{A}, #974: the gate never held the output receive back",
        busy(1, retractions=1, retracting=2),
    ),
)


def _lags(expr: Expr) -> Expr | None:
    return Param("L") - 1 if expr == Param("L") else None


LOCKSTEP: tuple[Edit, ...] = (
    everywhere("collect each output in the pass of its launch", lambda e: Const(0) if e == RESULT_LAG else None),
    move("post proxy", before="await output"),
    move("receive output", before="post output", roles=("first", "middle even")),
    move("post output", before="receive output", roles=("last odd",)),
    guard("post output", batch, roles=RELAYING),
    set_field("post output", "pass", ThisPass() - 0, roles=RELAYING),
    set_field("post output", "digest", Var("digest"), roles=RELAYING),
    drop_step("rotate"),
)
"""One batch at a time (interleaved layers): an output is received and forwarded in the pass of its launch."""

EXCHANGE = (
    Incident(
        "receive-first",
        "every rank receives an output before it sends one, and awaits its last send before both",
        (1,),
        "sglang",
        (move("receive output", before="post output", roles=EVEN),),
        dead("receive output", "receive output", "receive output", cycle=(0, 2, 1)),
        f"{A}, #753: output flush before the exchange under receive-first",
        busy(),
    ),
    Incident(
        "lockstep-flush-before-exchange",
        "one batch at a time; the last output send is awaited before the exchange",
        (1,),
        "sglang",
        LOCKSTEP,
        PASS,
        f"{A}, #753 (iii), by trace and argument only",
        free(),
        note="Expected dead; the search is right: the peer has received the last output before it can start the next "
        "exchange, so the await is always done. The flush's place was not the cause.",
    ),
    Incident(
        "lockstep-flush-after-exchange",
        "one batch at a time; the output send is awaited after the exchange",
        (1,),
        "sglang",
        (*LOCKSTEP, move("await output", after="apply output")),
        PASS,
        f"{A}, #753 (iii): the fix",
        free(),
    ),
    Incident(
        "slots-below-ranks",
        "fewer slots than ranks: outputs are collected before the last rank can have run",
        (2,),
        "sglang",
        (
            everywhere("one slot fewer than ranks", _lags),
            guard("post output", batch, roles=LASTS),
            set_field("post output", "pass", ThisPass() - 0, roles=LASTS),
            set_field("post output", "digest", Var("digest"), roles=LASTS),
        ),
        dead("receive output", "receive proxy", cycle=(0, 1)),
        f"{A}, #753 (iv)",
        busy(1),
        ranks=2,
    ),
    Incident(
        "stale-output",
        "the buffer of the output to forward is never emptied, so idle passes forward it again",
        (3,),
        "sglang",
        (omit_else("rotate"),),
        dead("await output", "await output", "receive chain", cycle=(1, 2)),
        f"{A}, #753 (v): a default that means 'not supplied'",
        busy(1),
    ),
)

INCIDENTS = (*FLUSH, *PRESENCE, *DECISION, *CROSSINGS, *GATES, *EXCHANGE)
