"""THE production table: the scheduling protocol that `headway serve` runs and `headway verify` checks.

A rank's pass n serves slot n mod L. Rank 0 decides; what it decided is carried, and nobody derives it again. The
output of pass n reaches rank 0 in its pass n + P - 1, before slot n mod L is planned again (L >= P).
"""

from __future__ import annotations

from collections.abc import Callable

from headway.spec.language import (
    FALSE,
    TRUE,
    Bool,
    Const,
    Expr,
    Got,
    Identity,
    Param,
    PassNumber,
    Past,
    Posted,
    Range,
    Slot,
    SpecError,
    ThisPass,
    Var,
    ite,
    static_value,
)
from headway.spec.table import (
    Await,
    Channel,
    Fields,
    Gate,
    Local,
    Operation,
    Post,
    Protocol,
    Receive,
    Role,
    Row,
    Variable,
)

OUTPUT_LAG = Param("P") - 1

CHANNELS = (
    Channel(
        "chain",
        "forward",
        "control",
        fields=(("pass", PassNumber()), ("stop", Bool())),
        payload="requests",
        doc="new requests, relayed once a pass; also the pass clock of ranks above 0, who sleep in its receive",
    ),
    Channel(
        "decision",
        "forward",
        "control",
        fields=(("pass", PassNumber()), ("launch", Bool()), ("void", Bool()), ("digest", Identity())),
        payload="decision",
        doc="what rank 0 decided (launch, digest of the batch), and whether a rank so far declared it void",
    ),
    Channel(
        "proxy",
        "forward",
        "tensor",
        fields=(("pass", PassNumber()), ("digest", Identity())),
        payload="hidden",
        doc="hidden states; sent iff the sender launched, which is what the decision that it relayed says",
    ),
    Channel(
        "output",
        "closing",
        "control",
        fields=(("pass", PassNumber()), ("void", Bool()), ("digest", Identity())),
        payload="output",
        lag=OUTPUT_LAG,
        doc="what came of a launched pass: its tokens (none for a chunk that samples nothing), or that it was void",
    ),
)

REGISTERS = ("requests", "decision", "batch", "hidden", "output")

LAUNCH = Variable("launch", Bool(), False, "rank 0 launched this pass")
DIGEST = Variable("digest", Identity(), 0, "digest of the members of this pass's batch")
STOP = Variable("stop", Bool(), False, "this pass ends the pipeline")
VOID = Variable("void", Bool(), False, "a rank up to this one could not honour the decision")
UPSTREAM = Variable("upstream", Bool(), False, "the previous rank launches this pass")
WILL_LAUNCH = Variable("will_launch", Bool(), False, "this rank launches this pass")
QUIET = Variable("quiet", Range(0, Param("L")), 0, "passes since the last launch, at most L")
RETURNED_VOID = Variable("returned_void", Bool(), False, "the output received in this pass says void")

launch, digest, stop, void = Var("launch"), Var("digest"), Var("stop"), Var("void")
upstream, will_launch, quiet = Var("upstream"), Var("will_launch"), Var("quiet")
PASS = ThisPass()


class Steps:
    """Collects the rows of a role whose locations follow one another."""

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[str], tuple[Row, ...]]]] = []

    def do(
        self,
        at: str,
        operation: Operation,
        effects: Fields = (),
        *,
        when: Expr = TRUE,
        otherwise: Fields = (),
    ) -> None:
        """At `at`, if `when` holds perform `operation` then `effects`, else `otherwise`; go to the next step."""

        def build(to: str) -> tuple[Row, ...]:
            row = Row(at, at, when, operation, to, effects)
            if when == TRUE:
                return (row,)
            return (row, Row(f"{at}: pass by", at, ~when, None, to, otherwise))

        self._steps.append((at, build))

    def branch(self, at: str, when: Expr, to: str) -> None:
        """At `at`, if `when` holds go to `to`, else to the next step."""
        self._steps.append(
            (
                at,
                lambda after: (
                    Row(f"{at}: yes", at, when, None, to),
                    Row(f"{at}: no", at, ~when, None, after),
                ),
            )
        )

    def rows_of(self, at: str, build: Callable[[str], tuple[Row, ...]]) -> None:
        """Rows of any shape at `at`; `build` is given the next step's location."""
        self._steps.append((at, build))

    def rows(self, end: str) -> tuple[Row, ...]:
        """All rows; the last step leads to `end`."""
        names = [at for at, _ in self._steps]
        return tuple(row for (_, build), to in zip(self._steps, [*names[1:], end], strict=True) for row in build(to))


def take_requests(steps: Steps) -> None:
    """Rank 0 sleeps on the intake when nothing has been launched for L passes, else takes what is there."""
    asleep = quiet.eq(Param("L"))
    idle = Local("wait_for_requests", (), ("requests",), (("stop", Bool()),), nature="idle")
    busy = Local("poll_requests", (), ("requests",))
    steps.rows_of(
        "take requests",
        lambda to: (
            Row("take requests: asleep", "take requests", asleep, idle, to, (("stop", Got("stop")),)),
            Row("take requests: busy", "take requests", ~asleep, busy, to),
        ),
    )


def plan(steps: Steps) -> None:
    """Rank 0 decides what the pass runs."""
    decide = Local("plan", (PASS, Slot()), ("decision", "batch"), (("launch", Bool()), ("digest", Identity())))
    steps.do("plan", decide, (("launch", Got("launch")), ("digest", Got("digest"))))


def honour(steps: Steps) -> None:
    """A rank above 0 takes the decision into its books, or declares that it cannot; then the pass is void."""
    received = Receive("decision", expect=(("pass", PASS),))
    facts = (
        ("launch", Got("launch")),
        ("void", Got("void")),
        ("digest", Got("digest")),
        ("upstream", Got("launch") & ~Got("void")),
    )
    steps.do("receive decision", received, facts)
    own = Local("honour", ("decision", digest), ("decision", "batch"), (("honoured", Bool()),))
    steps.do(
        "honour",
        own,
        (("void", void | (launch & ~Got("honoured"))), ("will_launch", launch & ~void & Got("honoured"))),
    )


def post_decision(steps: Steps, is_void: Expr) -> None:
    """The decision, with what this rank added, to the next rank: irrevocable."""
    steps.do(
        "post decision",
        Post("decision", (("pass", PASS), ("launch", launch), ("void", is_void), ("digest", digest))),
    )


def take_hidden_states(steps: Steps) -> None:
    """Hidden states come iff the previous rank launches; they are dropped here when this rank made the pass void."""
    steps.do("gate hidden states", Gate("proxy"), when=upstream)
    steps.do("receive hidden states", Receive("proxy", expect=(("pass", PASS), ("digest", digest))), when=upstream)


def post_hidden_states(steps: Steps, when: Expr) -> None:
    """After the output exchange: before it, tensor and output channels that are both a rendezvous close a cycle."""
    steps.do("post hidden states", Post("proxy", (("pass", PASS), ("digest", digest))), when=when)


def next_pass(rows: tuple[Row, ...], start: str, effects: Fields = ()) -> tuple[Row, ...]:
    """The rows with those that lead to `start` ending the pass."""
    return tuple(
        Row(r.name, r.at, r.guard, r.operation, r.to, r.effects + effects, r.to == start) if r.to == start else r
        for r in rows
    )


COUNT_QUIET: Fields = (("quiet", ite(launch, 0, ite(quiet.eq(Param("L")), Param("L"), quiet + 1))),)


def first_role() -> Role:
    """Rank 0 of several: takes requests, decides, and receives the outputs that close the ring."""
    steps = Steps()
    take_requests(steps)
    steps.do("learn requests", Local("learn_requests", ("requests",)))
    steps.do("post chain", Post("chain", (("pass", PASS), ("stop", stop))))
    steps.branch("stop here", stop, "settle chain")
    plan(steps)
    post_decision(steps, FALSE)
    steps.do("flush hidden states", Await("proxy"), when=Posted("proxy"))
    steps.do("launch", Local("forward_first", ("batch",), ("hidden",), nature="compute"), when=launch)
    due = Past("launch", OUTPUT_LAG)
    identity = (("pass", PASS - OUTPUT_LAG), ("digest", Past("digest", OUTPUT_LAG)))
    steps.do(
        "receive output",
        Receive("output", expect=identity),
        (("returned_void", Got("void")),),
        when=due,
        otherwise=(("returned_void", FALSE),),
    )
    steps.do("apply output", Local("apply_output", (PASS - OUTPUT_LAG, "output", Var("returned_void"))), when=due)
    post_hidden_states(steps, launch)
    steps.do("flush decision", Await("decision"))
    steps.do("flush chain", Await("chain"))
    rows = next_pass(steps.rows("take requests"), "take requests", COUNT_QUIET)
    settle = Row("settle chain", "settle chain", TRUE, Await("chain"), "end")
    return Role("first", "first", (LAUNCH, DIGEST, STOP, QUIET, RETURNED_VOID), (*rows, settle), "take requests")


def middle_role() -> Role:
    """A rank between the first and the last."""
    steps = Steps()
    steps.do("receive chain", Receive("chain", expect=(("pass", PASS),)), (("stop", Got("stop")),))
    steps.do("learn requests", Local("learn_requests", ("requests",)))
    steps.do("post chain", Post("chain", (("pass", PASS), ("stop", stop))))
    steps.branch("stop here", stop, "settle chain")
    honour(steps)
    post_decision(steps, void)
    take_hidden_states(steps)
    steps.do("flush hidden states", Await("proxy"), when=Posted("proxy"))
    forward = Local("forward_middle", ("batch", "hidden"), ("hidden",), nature="compute")
    steps.do("launch", forward, when=will_launch)
    post_hidden_states(steps, will_launch)
    steps.do("flush decision", Await("decision"))
    steps.do("flush chain", Await("chain"))
    rows = next_pass(steps.rows("receive chain"), "receive chain")
    settle = Row("settle chain", "settle chain", TRUE, Await("chain"), "end")
    return Role("middle", "middle", _FOLLOWER, (*rows, settle), "receive chain")


def last_role() -> Role:
    """The last of several ranks: samples, and posts what came of each launched pass."""
    steps = Steps()
    steps.do("receive chain", Receive("chain", expect=(("pass", PASS),)), (("stop", Got("stop")),))
    steps.do("learn requests", Local("learn_requests", ("requests",)))
    steps.branch("stop here", stop, "settle output")
    honour(steps)
    take_hidden_states(steps)
    forward = Local("forward_last", ("batch", "hidden"), ("output",), nature="compute")
    steps.do("launch", forward, when=will_launch)
    steps.do("report void", Local("void_output", ("decision",), ("output",)), when=launch & ~will_launch)
    steps.do("flush output", Await("output"), when=Posted("output"))
    post = Post("output", (("pass", PASS), ("void", void), ("digest", digest)))
    steps.do("post output", post, when=launch)
    rows = next_pass(steps.rows("receive chain"), "receive chain")
    held = Posted("output")
    settle = (
        Row("settle output", "settle output", held, Await("output"), "end"),
        Row("settle output: pass by", "settle output", ~held, None, "end"),
    )
    return Role("last", "last", _FOLLOWER, (*rows, *settle), "receive chain")


_FOLLOWER = (LAUNCH, DIGEST, STOP, VOID, UPSTREAM, WILL_LAUNCH)


def solo_role(lag: int = 1) -> Role:
    """The only rank. Each pass launches, then collects the output of the pass `lag` before: its one wait for its model.

    With lag 1 it plans and launches pass n + 1 while the device still runs pass n, whose tokens it does not know.
    """
    steps = Steps()
    take_requests(steps)
    steps.do("learn requests", Local("learn_requests", ("requests",)))
    steps.branch("stop here", stop, "end")
    plan(steps)
    steps.do("launch", Local("forward_solo", ("batch",), nature="compute"), when=launch)
    due = Past("launch", Const(lag))
    of_pass = PASS - lag
    steps.do("collect output", Local("collect_output", (), ("output",), nature="compute"), when=due)
    steps.do("apply output", Local("apply_output", (of_pass, "output", Var("returned_void"))), when=due)
    rows = next_pass(steps.rows("take requests"), "take requests", COUNT_QUIET)
    return Role("solo", "solo", (LAUNCH, DIGEST, STOP, QUIET, RETURNED_VOID), rows, "take requests")


def serving_table(overlap: int = 1) -> Protocol:
    """The production table. With `overlap` 0 a single rank waits for each pass before it plans the next."""
    if overlap not in (0, 1):
        raise SpecError(f"overlap is {overlap}; allowed: 0, 1")
    roles = (solo_role(overlap), first_role(), middle_role(), last_role())
    return Protocol("serving" if overlap else "serving-in-step", CHANNELS, REGISTERS, roles, __doc__ or "")


def passes_ahead(protocol: Protocol, ranks: int, slots: int) -> int:
    """How many passes of one slot may be in flight when rank 0 plans that slot again.

    Pass n applies the output of pass n - lag after it has planned, so passes n - lag .. n - 1 are out by then, and
    every `slots`-th of them is of the same slot. Raises `SpecError` when no row applies outputs.
    """
    for row in protocol.role_of(0, ranks).rows:
        if isinstance(row.operation, Local) and row.operation.binding == "apply_output":
            of_pass = row.operation.reads[0]
            if isinstance(of_pass, Expr):
                return -static_value(of_pass, {"P": ranks, "L": slots, "R": 0}) // slots
    raise SpecError(f"table {protocol.name!r}: no row of rank 0 applies an output")
