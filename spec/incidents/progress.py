"""Families B, C and F: tables whose ranks move for ever and serve nothing, and slots that publish too much."""

from __future__ import annotations

from headway.spec.edits import (
    Edit,
    acting,
    add_variable,
    assume,
    choose,
    edit,
    insert,
    rewrite,
    set_effect,
    set_otherwise,
)
from headway.spec.incidents.incident import LIVELOCK, PASS, Expected, Incident, Then, requests
from headway.spec.language import TRUE, Bool, Const, Expr, Got, Param, Past, Range, Slot, Var, ite
from headway.spec.sglang import Traffic
from headway.spec.sglang.loop import due
from headway.spec.table import Protocol, Variable

B = "fork of SGLang, family B"
F = "fork of SGLang, family F"
DECIDING = ("first",)
WAITS = ~Var("waiting").eq(0)

# --- retries -----------------------------------------------------------------------------------------------

VOID_SPIN = (
    Incident(
        "void-spin",
        "a void pass is put back and offered again unchanged, and refused again",
        (9,),
        "serving",
        (),
        LIVELOCK,
        f"{F}, #801-spin: 2353 void passes in five seconds; {B}, #630",
        Then(requests(1, 1, 1), (set_effect("honour", "refusals", Var("refusals"), roles=("middle", "last")),)),
        ranks=2,
        pending=TRUE,
    ),
    Incident(
        "void-floor",
        "each refusal lowers what is offered next, so refusals of one request are bounded",
        (9,),
        "serving",
        (),
        PASS,
        f"{B}, #630: the learned floor",
        requests(1, 1, 3),
        ranks=2,
        pending=TRUE,
    ),
)

# --- admission that depends on its own effects -------------------------------------------------------------


def _hold_back(unless: Expr) -> Edit:
    """In models, a waiting request is not planned unless `unless` holds; rank 0 does not sleep meanwhile."""
    held_back, asleep = WAITS & ~unless, Var("quiet").eq(Param("L"))
    nothing, holds = ~Got("launch") & Got("digest").eq(0), Got("holds")

    def apply(protocol: Protocol) -> Protocol:
        present = acting(protocol.role("first"), "plan").assume
        return edit(
            protocol,
            add_variable(Variable("held_back", Bool(), False, "a request waits for more than a slot"), roles=DECIDING),
            rewrite("hold back", "plan", present, ite(held_back, nothing, present), roles=DECIDING),
            rewrite("stay awake", "take requests", asleep, asleep & ~Var("held_back"), roles=DECIDING),
            choose("plan", "holds", holds.eq(held_back), (("held_back", holds),), roles=DECIDING),
            checked=False,
        )

    return Edit("hold waiting requests back", apply)


EXTENT = Var("extent")
PUBLISHED = add_variable(Variable("extent", Bool(), False, "the extent of the cached prefix was published"))

ADMISSION = (
    Incident(
        "extent-only-with-admission",
        "a request waits for a fact that is published only with an admission",
        (9,),
        "serving",
        (PUBLISHED, set_effect("post decision", "extent", EXTENT | Var("launch"), roles=DECIDING)),
        LIVELOCK,
        f"{B}, #1040 and #1041",
        Then(requests(1, 1), (_hold_back(unless=EXTENT),)),
        ranks=2,
        pending=WAITS,
    ),
    Incident(
        "extent-with-every-decision",
        "the fact is published with every decision",
        (9,),
        "serving",
        (PUBLISHED, set_effect("post decision", "extent", TRUE, roles=DECIDING)),
        PASS,
        f"{B}, #1040 and #1041: the fix",
        Then(requests(1, 1), (_hold_back(unless=EXTENT),)),
        ranks=2,
        pending=WAITS,
    ),
    Incident(
        "vetoes-together",
        "two vetoes, each of which leaves slots to serve from, leave none together",
        (15, 9),
        "serving",
        (),
        LIVELOCK,
        "fork of SGLang, family C, #856: no layout may admit again what was retracted",
        Then(requests(1, 1), (_hold_back(unless=Slot().eq(0) & Slot().eq(1)),)),
        ranks=2,
        pending=WAITS,
    ),
    Incident(
        "veto-alone",
        "one of the two vetoes alone",
        (15,),
        "serving",
        (),
        PASS,
        "fork of SGLang, family C, #856",
        Then(requests(1, 1), (_hold_back(unless=Slot().eq(0)),)),
        ranks=2,
        pending=WAITS,
    ),
)

# --- slots -------------------------------------------------------------------------------------------------

MERGED = Past("resident", Param("L")) + Past("publishes", Const(1))
SLOTS: tuple[Edit, ...] = (
    add_variable(Variable("fresh", Bool(), False, "this pass's batch prefills a request that is not resident yet")),
    add_variable(Variable("resident", Range(0, 1), 0, "requests resident in this slot (`running_mbs`)")),
    add_variable(Variable("publishes", Range(0, 1), 0, "requests for the slot's next visit to merge (`last_mbs`)")),
    set_effect("plan", "resident", MERGED),
    set_effect("plan", "fresh", Var("work") & MERGED.eq(0)),
    insert(
        "publish",
        None,
        (("publishes", ite(Past("fresh", Param("L") - 1), 1, 0)),),
        after="apply output",
        when=due,
        otherwise=(("publishes", Const(0)),),
    ),
)
"""What a slot publishes after a result is merged into its residents by its next visit."""
NO_ELSE = set_otherwise("publish", "publishes", Past("publishes", Param("L")))
"""A lap without a result leaves what the slot published a lap before."""

PUBLISH = (
    Incident(
        "slot-publish",
        "a slot publishes on every lap, also that there is nothing",
        (13,),
        "sglang",
        SLOTS,
        PASS,
        f"{B}, #1189: the fix",
        Traffic(stops=False),
        ranks=2,
    ),
    Incident(
        "slot-publish-no-else",
        "a lap without a result keeps what was published, and the next visit merges it again",
        (13,),
        "sglang",
        (*SLOTS, NO_ELSE),
        Expected("duplicated", ("plan",)),
        f"{B}, #1189: 7768 running against a limit of 8",
        Traffic(stops=False),
        ranks=2,
    ),
    Incident(
        "slot-publish-no-else-busy",
        "the same where a slot with residents always runs a batch",
        (13,),
        "sglang",
        (*SLOTS, NO_ELSE, assume("take requests", Got("work") | MERGED.eq(0))),
        PASS,
        f"{B}, #1189, scope: why SGLang itself is safe",
        Traffic(stops=False),
        ranks=2,
    ),
)

INCIDENTS = (*VOID_SPIN, *ADMISSION, *PUBLISH)
