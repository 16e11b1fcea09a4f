"""What keeps requests going, as far as the table sees to it: outputs are in time, and no void goes unreported.

A void makes rank 0 run the same rows again, so it must learn of every one, and of no other; the admission policy
bounds how often (`max_retries`). A table without these variables has nothing to show here.
"""

from __future__ import annotations

import z3

from headway.spec.ordering import Neighbours, linear, neighbours
from headway.spec.serving import LAUNCH, RETURNED_VOID, VOID, WILL_LAUNCH
from headway.spec.table import Local, Post, Protocol, Receive, Role
from headway.verification.prove.matched import FromFirst, Matched
from headway.verification.prove.meeting import Facts, Link, Meeting, amount
from headway.verification.prove.obligation import Finding, Obligation, refute
from headway.verification.prove.translate import RANKS, SLOTS, conj, negate
from headway.verification.prove.walk import Pass, Rank, walk_pass


def prove_progress(protocol: Protocol, facts: Facts, matched: Matched) -> Obligation:
    """One obligation for the whole table."""
    obligation = Obligation("progress", apart=True)
    with obligation.timed():
        _in_time(protocol, obligation)
        for pair in neighbours(protocol):
            if pair.path == "forward":
                _void_spreads(pair, matched.meetings[pair], obligation)
            else:
                _void_returns(protocol, pair, facts, matched.from_first, obligation)
        obligation.proved = list(dict.fromkeys(obligation.proved))
    return obligation


def _declares(role: Role, *names: str) -> bool:
    declared = {variable.name for variable in role.variables}
    return all(name in declared for name in names)


def _in_time(protocol: Protocol, obligation: Obligation) -> None:
    """What comes back over the closing edge is there before its slot is planned again."""
    for channel in protocol.channels:
        if channel.path == "closing":
            solver = z3.Solver()
            solver.add(RANKS >= 2, SLOTS >= RANKS)
            if refute(solver, amount(linear(channel.lag)) >= SLOTS) is None:
                obligation.proved.append(f"{channel.name} is back before its slot is planned again")
            else:
                text = f"{channel.name} comes back only after its slot was planned again"
                obligation.findings.append(Finding("outputs in time", (channel.name,), text))


def _void_spreads(pair: Neighbours, meeting: Meeting, obligation: Obligation) -> None:
    """A rank that says void makes all ranks after it say so, and a launched pass is either run or void."""
    if not _declares(pair.sink, LAUNCH.name, VOID.name, WILL_LAUNCH.name):
        return
    left, right = meeting.passes
    solver = meeting.solver()
    solver.add(left.advances, right.advances)
    after = right.after
    claims = [
        (
            conj(after[LAUNCH.name], after[VOID.name] == after[WILL_LAUNCH.name]),
            "a launched pass is neither run nor void here, or both",
        )
    ]
    if _declares(pair.source, VOID.name):
        claims.append((conj(left.after[VOID.name], negate(after[VOID.name])), "the void of the rank before is lost"))
    unbroken = [z3.Not(left.after[VOID.name])] if _declares(pair.source, VOID.name) else []
    for firing in right.firings.values():  # what a follower answers is whether it can do what was decided
        if isinstance(firing.row.operation, Local):
            unbroken += [term for term in firing.read.got.values() if z3.is_bool(term)]
    claims.append((conj(*unbroken, after[VOID.name]), "void though every rank can do what was decided"))
    for bad, what in claims:
        model = refute(solver, bad)
        if model is not None:
            rows = _touching(right, VOID.name)
            obligation.findings.append(Finding("no void unreported", rows, f"{what}: {meeting.situation(model)}"))
    obligation.proved.append(f"{pair.sink.name}: a launched pass is run or void; a void stays one")


def _void_returns(
    protocol: Protocol, pair: Neighbours, facts: Facts, from_first: FromFirst, obligation: Obligation
) -> None:
    """Rank 0 stores that a pass was void iff the last rank said so."""
    if not _declares(pair.source, VOID.name) or not _declares(pair.sink, RETURNED_VOID.name):
        return
    posting, receiving = z3.Int("m"), z3.Int("n")
    left = walk_pass(Rank(protocol, pair.source, "a"), posting)
    closing = [channel for channel in protocol.channels if channel.path == "closing" and left.of(Post, channel.name)]
    messages = {channel.name: left.message(channel.name) for channel in closing}
    right = walk_pass(Rank(protocol, pair.sink, "b"), receiving, messages)
    carried = frozenset((b, a) for a, b in from_first.get(pair.sink.name, {}).get(pair.source.name, frozenset()))
    meeting = Meeting((left, right), facts, (Link(0, 1, carried, pair.hop),))
    solver = meeting.solver()
    for channel in closing:
        if VOID.name in dict(channel.fields):
            said = conj(right.when(Receive, channel.name), left.after[VOID.name])
            solver.add(posting == receiving - amount(linear(channel.lag)), left.advances, right.advances)
            model = refute(solver, right.after[RETURNED_VOID.name] != said)
            if model is not None:
                text = f"rank 0 takes a pass for void that was not, or not for void: {meeting.situation(model)}"
                obligation.findings.append(Finding("no void unreported", _touching(right, RETURNED_VOID.name), text))
            obligation.proved.append(f"{pair.sink.name}: learns of every void")


def _touching(walked: Pass, variable: str) -> tuple[str, ...]:
    role = walked.rank.role
    return tuple(f"{role.name}: {row.name}" for row in role.rows if variable in dict(row.effects))
