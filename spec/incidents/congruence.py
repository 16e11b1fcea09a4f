"""Family B: facts that one rank decides for itself: admission, membership, voids, drains, publication."""

from __future__ import annotations

from headway.spec.edits import (
    Edit,
    add_variable,
    at_rank,
    diverge,
    drop_step,
    forget,
    guard,
    insert,
    move,
    set_effect,
)
from headway.spec.incidents.collectives import invitation
from headway.spec.incidents.incident import PASS, Expected, Incident, busy, dead, free, idle, mispair, requests
from headway.spec.language import FALSE, TRUE, Bool, Const, Got, Param, Past, Var, ite
from headway.spec.sglang.loop import NOBODY, OTHER, PLANNED, SEND_LAG, batch, due
from headway.spec.table import Probe, Receive, Variable

B = "fork of SGLang, family B"
F = "fork of SGLang, family F"
SWAPPED = ite(Var("digest").eq(0), 1, 0)
"""Another digest than the one received."""
FOLLOWERS = ("middle", "last")
NO_VOID_OUTPUT = guard("post output", Past("batch", SEND_LAG), roles=("last",))
"""The last rank sends an output only for a batch that it holds itself."""

ADMISSION = (
    Incident(
        "admission-declined",
        "rank 1 declines what ranks 0 and 2 admit",
        (6, 2),
        "sglang",
        (diverge("plan", "declined", (("batch", FALSE),), rank=at_rank(1), only=Var("work")),),
        dead("await proxy", "receive chain", "receive proxy", cycle=(0, 1)),
        f"{B}, #791: rank-local admission",
        busy(1),
    ),
    Incident(
        "admission-members",
        "rank 1 admits other requests than rank 0",
        (6, 10),
        "sglang",
        (diverge("plan", "other_members", (("digest", Const(OTHER)),), rank=at_rank(1), only=Var("work")),),
        mispair(1, "receive proxy"),
        f"{B}, #791: membership and prefix",
        busy(),
    ),
    Incident(
        "decode-retracted-by-rank-0",
        "rank 0 alone retracts a decoding request under memory pressure",
        (6,),
        "sglang",
        (diverge("plan", "retracted", (("digest", Const(OTHER)),), rank=at_rank(0), only=Var("work")),),
        mispair(1, "receive proxy"),
        f"{B}, decode-retraction paths",
        busy(),
    ),
    Incident(
        "proxy-wider-than-batch",
        "rank 1 narrows its batch by a request and keeps the rest",
        (7, 10),
        "serving",
        (diverge("honour", "narrowed", (("digest", SWAPPED),), rank=at_rank(1), only=Var("launch")),),
        mispair(1, "receive hidden states"),
        f"{B}, #791c",
        requests(),
    ),
    Incident(
        "narrowed-unseen",
        "the same, where only the pass is compared: presence and ring are in order, and nothing is found",
        (7, 10),
        "serving",
        (
            diverge("honour", "narrowed", (("digest", SWAPPED),), rank=at_rank(1), only=Var("launch")),
            forget("receive hidden states", "digest"),
            forget("receive output", "digest"),
        ),
        PASS,
        f"{B}, partial retraction: a check of presence alone is blind",
        requests(2, 2),
    ),
    Incident(
        "narrowed-before-output",
        "the last rank loses a request of the batch after it took the hidden states",
        (7, 10),
        "serving",
        (diverge("launch", "narrowed", (("digest", SWAPPED),), rank=Param("R").eq(Param("P") - 1)),),
        mispair(0, "receive output"),
        f"{B}, partial retraction: rows of the output against requests at launch",
        requests(),
    ),
)

TOKENS: tuple[Edit, ...] = (
    add_variable(Variable("odd", Bool(), False, "an odd number of outputs has been applied")),
    set_effect("apply output", "odd", ~Var("odd")),
    set_effect("plan", "digest", ite(Var("work"), ite(Var("odd"), OTHER, PLANNED), NOBODY)),
)
"""A batch depends on the tokens applied so far."""

OUTPUT_IDS = (
    Incident(
        "tokens-in-batch",
        "a batch depends on the tokens that every rank has applied",
        (6,),
        "sglang",
        TOKENS,
        PASS,
        f"{B}, 'extend differs'",
        free(),
        ranks=2,
    ),
    Incident(
        "output-ids-lag",
        "rank 1 skips one result, so its next batch differs",
        (6, 13),
        "sglang",
        (*TOKENS, diverge("apply output", "skipped", (("odd", Var("odd")),), rank=at_rank(1))),
        mispair(1, "receive proxy"),
        f"{B}, 'extend differs': void-lagged output ids",
        busy(),
        ranks=2,
    ),
)

RETRACTION = (
    Incident(
        "retraction-idle-tail",
        "a rank retracts, the last rank sends nothing, and no further batch comes",
        (2,),
        "sglang fork",
        (NO_VOID_OUTPUT,),
        dead("receive output", "receive chain", "receive chain", cycle=(0, 2, 1)),
        f"{B}, #791b: the wedge at the flip",
        busy(1, retractions=1, retracting=1),
    ),
    Incident(
        "retraction-busy-tail",
        "the same with batches behind it: rank 0 pairs each batch with the output of the next",
        (2, 10),
        "sglang fork",
        (NO_VOID_OUTPUT,),
        mispair(0, "receive output"),
        f"{B}, #791b: silent when busy",
        busy(retractions=1, retracting=1),
    ),
    Incident(
        "refusal-local-void",
        "the last rank voids its own slot and tells nobody",
        (7, 8),
        "sglang fork",
        (
            diverge("honour", "refused", (("batch", FALSE),), rank=at_rank(2), only=Var("work")),
            guard("drain proxy", ~batch & Var("upstream")),
            NO_VOID_OUTPUT,
        ),
        mispair(0, "receive output"),
        f"{B}, #1153",
        busy(),
        note="With two ranks it is a deadlock instead, because rank 0 posts its hidden states after the exchange.",
    ),
    Incident(
        "void-unreported",
        "the production table without an output for a void pass",
        (7, 2),
        "serving",
        (drop_step("report void"), guard("post output", Var("will_launch"))),
        dead("receive output", "receive chain", cycle=(0, 1)),
        f"{B}, #1153 and #791b in the production table",
        requests(1, 1, 1),
        ranks=2,
    ),
    Incident(
        "orphan-not-drained",
        "the upstream launched, the downstream voided, and nobody takes the hidden states",
        (3, 11),
        "sglang fork",
        (drop_step("drain proxy"),),
        mispair(1, "receive proxy"),
        f"{F}, #797",
        busy(2, retractions=1, retracting=1),
    ),
    Incident(
        "orphan-parked",
        "the same on an idle tail: a later receive puts the orphan aside, and it is left over",
        (3, 11),
        "sglang fork",
        (drop_step("drain proxy"),),
        Expected("unmatched"),
        f"{F}, #797",
        free(batches=1, retractions=1, retracting=1),
    ),
    Incident(
        "phantom-takes-next",
        "rank 1 holds a batch that rank 0 does not, and takes the next pass's hidden states for it",
        (3, 10),
        "sglang",
        (
            diverge(
                "plan", "phantom", (("batch", TRUE), ("digest", Const(PLANNED))), rank=at_rank(1), only=~Var("work")
            ),
        ),
        mispair(1, "receive proxy"),
        f"{F}, #798",
        free(),
    ),
    Incident(
        "observer-waits-for-device",
        "a log line of rank 0 waits for its device, which sends hidden states that rank 1 retracted",
        (14,),
        "sglang fork",
        (drop_step("drain proxy"), move("await proxy", before="post chain", roles=("first",))),
        dead("await proxy", "receive chain", "receive chain", cycle=(0, 1)),
        "fork of SGLang, family C, #790; which send occupied the device is inferred",
        busy(1, retractions=1, retracting=1),
    ),
)


ORPHAN = ~batch & ~Var("retracted").eq(0) & Var("upstream")
"""Hidden states are coming for a pass that was voided here."""


SEEN = add_variable(Variable("seen", Bool(), False, "a counter showed a message"), roles=FOLLOWERS)

DRAIN = (
    Incident(
        "drain-by-snapshot",
        "the drain takes what one look at the counter shows, and the hidden states come later",
        (11, 5),
        "sglang fork",
        (
            SEEN,
            insert(
                "look for orphan",
                Probe("proxy", counter="sent"),
                (("seen", Got("ready")),),
                before="drain proxy",
                when=ORPHAN,
                roles=FOLLOWERS,
            ),
            guard("drain proxy", ORPHAN & Var("seen")),
        ),
        mispair(1, "receive proxy"),
        f"{B}, #787 and #757",
        busy(2, retractions=1, retracting=1),
        ranks=2,
    ),
    Incident(
        "drain-kind-blind",
        "a rank that leaves a cut-over discards what is on the wire, which is an output that it still needs",
        (11,),
        "sglang fork",
        (
            invitation(),
            SEEN,
            insert(
                "look at wire",
                Probe("relay", counter="sent"),
                (("seen", Got("ready")),),
                before="await proxy",
                when=Var("join"),
                otherwise=(("seen", FALSE),),
                roles=("middle",),
            ),
            insert("drain wire", Receive("relay"), after="look at wire", when=Var("seen"), roles=("middle",)),
        ),
        dead("await chain", "receive output", "receive output", cycle=(0, 1)),
        f"{B}, #631 corpse S: an output eaten, PP1 blocks for ever",
        busy(1),
    ),
)

VOID_RELAY = (
    Incident(
        "void-relay",
        "voids travel as far as ranks have launched, whichever rank retracts",
        (3,),
        "sglang fork",
        (),
        PASS,
        f"{F}, #801 and #802: the fix",
        free(batches=3, retractions=1),
    ),
    Incident(
        "void-relay-first-only",
        "a void output ends at rank 0 when rank 2 retracted: rank 1 waits for it",
        (3, 2),
        "sglang fork",
        (guard("post output", Var("held") & Var("held_void").eq(0), roles=("first", "middle")),),
        dead("await chain", "receive output", "receive chain", cycle=(0, 1)),
        f"{F}, #801 and #802",
        busy(1, retractions=1, retracting=2),
    ),
    Incident(
        "void-relay-first-only-rank-1",
        "the same broken relay when rank 1 retracted: nobody waits for the void",
        (3,),
        "sglang fork",
        (guard("post output", Var("held") & Var("held_void").eq(0), roles=("first", "middle")),),
        PASS,
        "catalogue, what a checker must contain: a retraction at rank 1 alone passes the broken relay",
        free(batches=3, retractions=1, retracting=1),
    ),
)

PEEK = (
    Incident(
        "output-peeked-idle",
        "rank 0 looks for the output without blocking and takes absence for an answer",
        (2,),
        "sglang",
        (
            add_variable(Variable("seen", Bool(), False, "the output was there"), roles=("first",)),
            insert(
                "look for output",
                Probe("output"),
                (("seen", Got("ready")),),
                before="receive output",
                when=due,
                otherwise=(("seen", FALSE),),
                roles=("first",),
            ),
            guard("receive output", due & Var("seen"), roles=("first",)),
            guard("apply output", due & Var("seen"), roles=("first",)),
            guard("rotate", due & Var("seen"), roles=("first",)),
        ),
        dead("await chain", "await output", cycle=(0, 1)),
        f"{B}, #969 B, #1002 and #1009: the result is never consumed",
        busy(1),
        ranks=2,
    ),
    Incident(
        "void-frame-every-pass",
        "hidden states are posted in every pass, and received only with a batch",
        (3, 2),
        "sglang",
        (guard("post proxy", TRUE),),
        dead("await proxy", "await proxy", "receive chain", cycle=(1, 2)),
        f"{B}, #969 J and #1015",
        idle(),
    ),
    Incident(
        "receive-interval",
        "every other pass skips the chain's receive but not its post",
        (3,),
        "sglang",
        (
            add_variable(Variable("skip", Bool(), False, "this pass does not receive")),
            insert(
                "take turns",
                None,
                (("skip", ~Var("skip")), ("work", Var("work") & ~Var("skip"))),
                after="handle requests",
            ),
            guard("receive chain", ~Var("skip")),
            forget("receive chain", "pass"),
        ),
        dead("await chain", "receive output", cycle=(0, 1)),
        "SGLang 0.5.23, scheduler_recv_interval > 1",
        busy(1),
        ranks=2,
    ),
)

INCIDENTS = (*ADMISSION, *OUTPUT_IDS, *RETRACTION, *DRAIN, *VOID_RELAY, *PEEK)
