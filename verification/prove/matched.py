"""Second obligation: both ends of every channel use one fact, for any number of ranks and passes.

The induction is over the receives of a run: every message taken so far was the one that its channel's lag names. Two
neighbouring ranks are walked through one pass each, the messages of the source going into the sink. What the variables
of one rank have to do with those of another (the carried facts) is found the same way as the facts of a single rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import z3

from headway.spec.language import show
from headway.spec.ordering import Linear, Neighbours, linear, neighbours
from headway.spec.table import Channel, Gate, Local, Post, Protocol, Receive, Role
from headway.verification.prove.meeting import (
    Carried,
    Facts,
    Link,
    Meeting,
    amount,
    carried_between,
    carried_from_first,
)
from headway.verification.prove.obligation import Finding, Obligation, in_words, refute
from headway.verification.prove.translate import Term, conj, disj, negate, same
from headway.verification.prove.walk import Pass, Rank, walk_pass

FromFirst = Mapping[str, Mapping[str, Carried]]  # by the first rank's role, then the other rank's


@dataclass
class Matched:
    """One obligation for each pair of neighbours and one for each role's end; what is carried from rank 0; and how
    neighbours along the pipeline meet."""

    obligations: list[Obligation]
    from_first: FromFirst
    meetings: Mapping[Neighbours, Meeting]


Known: TypeAlias = dict[tuple[tuple[Channel, ...], Neighbours], tuple[Obligation, Meeting]]
"""What was found of pairs of neighbours, for tables that share some of them."""


def prove_matched(protocol: Protocol, facts: Facts, known: Known | None = None) -> Matched:
    """The obligation, given the facts that hold at the end of each role's passes."""
    known = {} if known is None else known
    obligations = {
        pair: Obligation(f"matched: {pair.source.name} to {pair.sink.name}") for pair in neighbours(protocol)
    }
    meetings: dict[Neighbours, Meeting] = {}
    for pair, obligation in obligations.items():
        if pair.path == "forward":
            with obligation.timed():
                if (protocol.channels, pair) not in known:
                    found = Obligation(obligation.name)
                    known[protocol.channels, pair] = (found, _prove_direct(protocol, pair, facts, found))
                direct, meetings[pair] = known[protocol.channels, pair]
                obligation.proved += direct.proved
                obligation.findings += direct.findings
    between = {pair: meeting.links[0].carried for pair, meeting in meetings.items()}
    from_first = carried_from_first(list(between.items()))
    for pair, obligation in obligations.items():
        with obligation.timed():
            for channel in protocol.channels:
                if channel.path == pair.path and channel not in _direct(protocol):
                    _prove_lagged(protocol, pair, channel, facts, between, from_first, obligation)
    ends = []
    for first, others in from_first.items():
        for name, carried in others.items():
            ends.append(Obligation(f"settled: {name}"))
            with ends[-1].timed():
                _prove_settled(protocol, protocol.role(first), protocol.role(name), carried, facts, ends[-1])
    return Matched([*obligations.values(), *ends], from_first, meetings)


def _direct(protocol: Protocol) -> list[Channel]:
    """The channels whose messages are received in the pass in which they are posted."""
    return [c for c in protocol.channels if c.path == "forward" and linear(c.lag) == Linear()]


def _prove_direct(protocol: Protocol, pair: Neighbours, facts: Facts, obligation: Obligation) -> Meeting:
    """One pass of two neighbours, in which the sink takes what the source posts."""
    this_pass = z3.Int("n")
    left = walk_pass(Rank(protocol, pair.source, "a"), this_pass)
    messages = {c.name: left.message(c.name) for c in _direct(protocol) if left.of(Post, c.name)}
    right = walk_pass(Rank(protocol, pair.sink, "b"), this_pass, messages)
    carried = carried_between(pair, left, right, facts)
    meeting = Meeting((left, right), facts, (Link(0, 1, carried, pair.hop),))
    solver = meeting.solver()
    model = refute(solver, z3.Xor(left.ends, right.ends))
    if model is not None:
        text = f"one rank ends in a pass in which its neighbour does not: {meeting.situation(model)}"
        obligation.findings.append(Finding("one end", _endings(pair.source, pair.sink), text))
    obligation.proved.append("both end in the same pass")
    for channel in _direct(protocol):
        _both_ends(meeting, left, right, channel, solver, [], obligation)
    if carried:
        names = (mine if mine == theirs else f"{mine} = {theirs}" for mine, theirs in sorted(carried))
        obligation.proved.append(f"carried: {', '.join(names)}")
    return meeting


def _both_ends(
    meeting: Meeting,
    left: Pass,
    right: Pass,
    channel: Channel,
    solver: z3.Solver,
    when: list[Term],
    obligation: Obligation,
) -> None:
    """The sink receives iff the source posts, and what it expects of the message is what was posted."""
    posts, receives = left.when(Post, channel.name), right.when(Receive, channel.name)
    rows = _rows(left, right, channel)
    for bad, what in (
        (conj(posts, negate(receives)), "is posted and never received"),
        (conj(receives, negate(posts)), "is received though nobody posts it"),
    ):
        model = refute(solver, conj(*when, bad))
        if model is not None:
            guards = "; ".join(
                f"{f.row.name} when {show(f.row.guard)}"
                for f in (*left.of(Post, channel.name), *right.of(Receive, channel.name))
            )
            text = f"{channel.name} {what}: {guards}; {meeting.situation(model)}"
            obligation.findings.append(Finding("matched traffic", rows, text))
    obligation.proved.append(f"{channel.name}: received iff posted")
    if left.of(Post, channel.name):
        message = left.message(channel.name)
        for receive in right.of(Receive, channel.name):
            for name, expected in receive.fields.items():
                model = refute(solver, conj(*when, receive.when, posts, negate(same(expected, message[name]))))
                if model is not None:
                    values = in_words(model, {"expected": expected, "posted": message[name]})
                    text = f"{name} of {channel.name} differs: {values}; {meeting.situation(model)}"
                    obligation.findings.append(Finding("message identity", rows, text))
            if receive.fields:
                obligation.proved.append(f"{channel.name}: {', '.join(receive.fields)} as expected")
    for gate in right.of(Gate, channel.name):
        model = refute(solver, conj(*when, gate.when, negate(conj(posts, receives))))
        if model is not None:
            text = f"gates a {channel.name} that is not received in this pass; {meeting.situation(model)}"
            obligation.findings.append(Finding("gate", (f"{right.rank.role.name}: {gate.row.name}",), text))


def _prove_lagged(
    protocol: Protocol,
    pair: Neighbours,
    channel: Channel,
    facts: Facts,
    between: Mapping[Neighbours, Carried],
    from_first: FromFirst,
    obligation: Obligation,
) -> None:
    """A channel whose receiver's pass n takes what was posted in pass n - lag, at any time before and after.

    Where the ranks end, rank 0 is there too: only it knows why the pipeline ends.
    """
    posting, receiving = z3.Int("m"), z3.Int("n")
    left = walk_pass(Rank(protocol, pair.source, "a"), posting)
    right = walk_pass(Rank(protocol, pair.sink, "b"), receiving)
    lag = amount(linear(channel.lag))
    if pair.path == "closing":
        backwards = from_first.get(pair.sink.name, {}).get(pair.source.name, frozenset())
        carried = frozenset((theirs, mine) for mine, theirs in backwards)
    else:
        carried = between[pair]
    meeting = Meeting((left, right), facts, (Link(0, 1, carried, pair.hop),))
    solver = meeting.solver()
    posts, receives = left.when(Post, channel.name), right.when(Receive, channel.name)
    forward = solver.check(lag <= 0) == z3.unsat
    if not forward and solver.check(lag > 0) == z3.sat:
        text = f"the lag {show(channel.lag)} is positive for some numbers of ranks and slots only"
        obligation.findings.append(Finding("matched traffic", (channel.name,), text))
        return
    if pair.path == "forward" and pair.source.place != "first":
        first = next(role for role in protocol.roles if role.place == "first")
        zero = walk_pass(Rank(protocol, first, "z"), receiving if forward else posting)
        known = from_first[first.name]
        links = (Link(2, 0, known[pair.source.name]), Link(2, 1, known[pair.sink.name]))
        meeting = Meeting((left, right, zero), facts, (*meeting.links, *links))
        solver = meeting.solver()
        solver.add(zero.ends == (right if forward else left).ends)
    over = left.advances if forward else right.advances
    _both_ends(meeting, left, right, channel, solver, [posting == receiving - lag, over], obligation)
    if forward:  # a post in pass m is received in pass m + lag, in which the source may not have arrived yet
        outside: list[tuple[Term, str]] = [
            (conj(receiving < lag, receives), "is received before any can have been posted"),
            (
                conj(posting < receiving, receiving < posting + lag, left.advances, right.ends, posts),
                "is still to be received when the receiver ends",
            ),
            (conj(left.ends, posts), "is posted in the pass in which the sender ends"),
            (
                conj(posting < receiving, receiving <= posting + lag, left.advances, _sleeps(right), posts),
                "is still to be received when the receiver sleeps until something arrives from outside",
            ),
        ]
    else:
        outside = [
            (conj(posting < -lag, posts), "is posted for a pass before the first"),
            (
                conj(left.ends, receiving <= posting, receiving - lag > posting, receives),
                "is still to be posted when the sender ends",
            ),
        ]
    for bad, what in outside:
        model = refute(solver, bad)
        if model is not None:
            text = f"{channel.name} {what}: {meeting.situation(model)}"
            obligation.findings.append(Finding("matched traffic", _rows(left, right, channel), text))
    obligation.proved.append(f"{channel.name}: none before the first pass, none left over at the end")


def _sleeps(walked: Pass) -> Term:
    """When the pass comes to a step that waits for the outside world."""
    return disj(
        *(
            firing.when
            for firing in walked.firings.values()
            if isinstance(firing.row.operation, Local) and firing.row.operation.nature == "idle"
        )
    )


def _prove_settled(
    protocol: Protocol, first: Role, role: Role, carried: Carried, facts: Facts, obligation: Obligation
) -> None:
    """Where a rank ends no handle is held; that rank 0 ends in the same pass may be needed to see it."""
    this_pass = z3.Int("n")
    left = walk_pass(Rank(protocol, first, "a"), this_pass)
    right = walk_pass(Rank(protocol, role, "b"), this_pass)
    meeting = Meeting((left, right), facts, (Link(0, 1, carried),))
    solver = meeting.solver()
    solver.add(left.ends, right.ends)
    for walked in (left, right):
        for fault in walked.unsettled:
            model = refute(solver, fault.when)
            if model is not None:
                text = f"{fault.finding}; {meeting.situation(model)}"
                obligation.findings.append(Finding(fault.law, _endings(walked.rank.role), text))
    obligation.proved.append("no handle is held at the end")


def _endings(*roles: Role) -> tuple[str, ...]:
    return tuple(f"{role.name}: {row.name}" for role in roles for row in role.rows if row.to == role.end)


def _rows(left: Pass, right: Pass, channel: Channel) -> tuple[str, ...]:
    return tuple(
        f"{walked.rank.role.name}: {firing.row.name}"
        for walked, kind in ((left, Post), (right, Receive))
        for firing in walked.of(kind, channel.name)
    )
