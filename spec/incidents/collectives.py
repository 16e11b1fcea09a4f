"""Family A and C: blocking collectives inside handlers, cut-overs and ballots."""

from __future__ import annotations

from headway.spec.edits import (
    Edit,
    add_field,
    add_variable,
    assume,
    at_rank,
    choose,
    diverge,
    edit,
    insert,
    move,
    rewrite,
)
from headway.spec.incidents.incident import PASS, Incident, Then, busy, dead, free, idle, requests
from headway.spec.language import FALSE, TRUE, Bool, Expr, Got, Param, Range, Var, ite
from headway.spec.table import Collective, Protocol, Variable

RELAYING = ("first", "middle")
A = "fork of SGLang, family A"
C = "fork of SGLang, family C"


def invitation(when: Expr = TRUE, sticky: bool = False) -> Edit:
    """Rank 0 may once, where `when` holds, relay a request (`join`) whose handler is a collective of all ranks.

    `sticky`: every pass from then on joins.
    """
    left, asked = Var("invitations"), Got("asked")
    join = (Var("join") | asked) if sticky else asked

    def apply(protocol: Protocol) -> Protocol:
        return edit(
            protocol,
            add_variable(Variable("join", Bool(), False, "this pass's requests ask for the collective")),
            add_variable(Variable("invitations", Range(0, 1), 1, "still to come", ghost=True), roles=("first",)),
            add_field("chain", "join", Bool(), Var("join"), "join"),
            choose(
                "take requests",
                "asked",
                ~asked | (when & ~left.eq(0) & ~Got("stop")),
                (("join", join), ("invitations", ite(asked, left - 1, left))),
                roles=("first",),
            ),
            checked=False,
        )

    return Edit("rank 0 may invite all ranks to a collective", apply)


CUT_OVER_AT_END = (
    insert("cut over", Collective("cut over"), after="await chain", when=Var("join"), roles=("first", "middle")),
    insert("cut over", Collective("cut over"), after="apply output", when=Var("join"), roles=("last",)),
)
JOIN = insert("join", Collective("join"), after="handle requests", when=Var("join"))
FORWARD_FIRST = move("handle requests", after="post chain", roles=("first", "middle odd", "middle even"))
DRAINED = Var("idle").eq(Param("L") + 1)

HANDLERS = (
    Incident(
        "handler-before-forward",
        "requests are handled before they are forwarded, and a handler joins a collective",
        (1, 12),
        "sglang",
        (invitation(), JOIN),
        dead("join", "receive chain", "receive chain", cycle=(0, 1)),
        f"{A}, #633: dead even when idle",
        idle(),
    ),
    Incident(
        "handler-after-forward-idle",
        "requests are forwarded first, and nothing is in flight",
        (12,),
        "sglang",
        (invitation(), FORWARD_FIRST, JOIN),
        PASS,
        f"{A}, #633: the fix, on an idle server",
        idle(),
    ),
    Incident(
        "handler-after-forward-busy",
        "requests are forwarded first, with a batch in flight",
        (12,),
        "sglang",
        (invitation(), FORWARD_FIRST, JOIN),
        dead("join", "receive output", cycle=(0, 1)),
        f"{A}, #633: rank 0 in the handler does not forward the output that rank 1 waits for",
        busy(1),
        ranks=2,
        note="The source says two busy slots; one is enough, if the invitation comes L passes after its launch.",
    ),
    Incident(
        "handler-at-end-busy",
        "the handler at the end of the pass, with one batch in flight",
        (12,),
        "sglang",
        (
            invitation(),
            insert("join", Collective("join"), after="rotate", when=Var("join"), roles=("first", "middle odd")),
            insert("join", Collective("join"), after="apply output", when=Var("join"), roles=("last odd", "last even")),
        ),
        dead("join", "receive output", cycle=(0, 1)),
        f"{A}, #633",
        busy(1),
        ranks=2,
    ),
    Incident(
        "handler-drained",
        "requests are forwarded first, and the invitation waits until every output has come home",
        (12,),
        "sglang",
        (invitation(DRAINED), FORWARD_FIRST, JOIN),
        PASS,
        f"{A}, #633 and #631: quiescence",
        free(),
    ),
)

CUT_OVER = (
    Incident(
        "cut-over-top",
        "once armed every pass starts with a collective, before the chain is posted",
        (12,),
        "sglang fork",
        (
            invitation(sticky=True),
            insert(
                "cut over", Collective("cut over"), before="post chain", when=Var("join"), roles=("first", "middle")
            ),
            insert("cut over", Collective("cut over"), before="handle requests", when=Var("join"), roles=("last",)),
        ),
        dead("cut over", "receive chain", "receive chain", cycle=(0, 1)),
        f"{A}, #631 corpses: consensus at the top of the pass",
        idle(),
    ),
    Incident(
        "cut-over-end-busy",
        "once armed every pass ends with a collective, while outputs are still on their way",
        (12,),
        "sglang fork",
        (
            invitation(sticky=True),
            insert(
                "cut over", Collective("cut over"), after="await chain", when=Var("join"), roles=("first", "middle")
            ),
            insert("cut over", Collective("cut over"), after="apply output", when=Var("join"), roles=("last",)),
        ),
        dead("cut over", "cut over", "await output", cycle=(0, 2)),
        f"{A}, #631: safe only when every output has been forwarded",
        busy(1),
    ),
    Incident(
        "cut-over-end-drained",
        "the same, armed when every output has come home",
        (12,),
        "sglang fork",
        (
            invitation(DRAINED, sticky=True),
            insert(
                "cut over", Collective("cut over"), after="await chain", when=Var("join"), roles=("first", "middle")
            ),
            insert("cut over", Collective("cut over"), after="apply output", when=Var("join"), roles=("last",)),
        ),
        PASS,
        f"{A}, #631: the fix",
        busy(2),
    ),
)

VERDICTS = (
    Incident(
        "ballot-local-fallback",
        "a ballot of all ranks whose digest does not match is answered by one rank alone",
        (8,),
        "sglang",
        (
            add_variable(Variable("votes", Bool(), True, "this rank takes part in the ballot")),
            diverge("handle requests", "mismatch", (("votes", FALSE),), rank=at_rank(1)),
            insert("ballot", Collective("ballot"), before="plan", when=Var("votes")),
        ),
        dead("ballot", "receive chain", cycle=(0, 1)),
        f"{C}, #791b ballot, #823, #1158: mismatch falls back to the local verdict",
        idle(),
        ranks=2,
    ),
    Incident(
        "exception-around-collective",
        "one rank handles an exception and skips the collective that the others are in",
        (12, 8),
        "serving",
        (
            add_variable(Variable("failed", Bool(), False, "this rank's step raised")),
            diverge("learn requests", "raised", (("failed", TRUE),), rank=at_rank(1)),
            insert(
                "broadcast", Collective("broadcast"), after="post chain", when=~Var("failed"), roles=("first", "middle")
            ),
            insert("broadcast", Collective("broadcast"), after="learn requests", when=~Var("failed"), roles=("last",)),
        ),
        dead("broadcast", "receive decision", "broadcast"),
        f"{A}, #661",
        requests(),
    ),
    Incident(
        "sleep-on-own-idle",
        "rank 0 stops the group when it is idle itself, although outputs are on their way",
        (6, 12),
        "serving",
        (
            rewrite(
                "rank 0 takes one quiet pass for idleness",
                "take requests",
                Var("quiet").eq(Param("L")),
                ~Var("quiet").eq(0),
                roles=("first",),
            ),
        ),
        dead("end", "settle chain", "flush output"),
        f"{C}, #1268: one rank's idle answer puts the group to sleep",
        Then(requests(), (assume("plan", Got("launch") | Var("waiting").eq(0), roles=("first",)),)),
    ),
)

PROBE_KEPT = Incident(
    "health-probe-kept",
    "rank 0 drops a health probe because it is busy; the followers keep it",
    (6, 2),
    "sglang",
    (
        add_variable(Variable("probe", Bool(), False, "this pass's requests hold a health probe")),
        add_field("chain", "probe", Bool(), Var("probe"), "probe"),
        choose("take requests", "probed", ~Got("probed") | ~Got("work"), (("probe", Got("probed")),)),
        rewrite(
            "followers plan a batch for the probe",
            "plan",
            Var("work"),
            Var("work") | Var("probe"),
            roles=("middle odd", "middle even", "last odd", "last even"),
        ),
    ),
    dead("await chain", "receive proxy", "receive proxy", cycle=(0, 1)),
    f"{C}, #1158",
    busy(1),
)

INCIDENTS = (*HANDLERS, *CUT_OVER, *VERDICTS, PROBE_KEPT)
