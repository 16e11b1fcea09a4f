"""First obligation: at every location exactly one guard holds, values stay in their domains, handles have custody.

All variable values, P and L are unbounded here; `spec.wellformed` checks the same on small instances by enumeration.
"""

from __future__ import annotations

import z3

from headway.spec.language import SpecError, show
from headway.spec.table import Protocol, Role
from headway.verification.prove.facts import Fact, end_of, inductive
from headway.verification.prove.obligation import Finding, Obligation, in_words, refute
from headway.verification.prove.translate import RANKS, SLOTS, Reading, Term, conj, disj, negate, translate
from headway.verification.prove.walk import Fault, Pass, Rank, walk_pass


def known_at_start(rank: Rank, this_pass: Term, facts: tuple[Fact, ...], about: list[Term]) -> list[Term]:
    """The facts at the end of the pass before; those about many passes for each pass in `about`."""
    moment = end_of(rank, this_pass - 1)
    known = []
    for fact in facts:
        for index in about if fact.kind == "none_since" else [this_pass]:
            known.append(fact.at(rank.role, moment, index))
    return known


def prove_wellformed(protocol: Protocol, role: Role) -> tuple[Obligation, tuple[Fact, ...], Pass | None]:
    """The obligation for one role, the facts found on the way, and the pass that was walked (None without one)."""
    obligation = Obligation(f"well-formed: {role.name}")
    with obligation.timed():
        _guards(protocol, role, obligation)
        if not obligation.holds:
            return obligation, (), None
        try:
            walked = walk_pass(Rank(protocol, role, "a"), z3.Int("n"))
        except SpecError as error:
            obligation.findings.append(Finding("finite pass", (role.name,), str(error)))
            return obligation, (), None
        facts = inductive(walked)
        refute_faults(walked, walked.faults, facts, obligation)
    return obligation, facts, walked


def _guards(protocol: Protocol, role: Role, obligation: Obligation) -> None:
    """Any values within the domains, any handles, any pass: one guard at each location, never two, never none."""
    rank = Rank(protocol, role, "g")
    this_pass = z3.Int("n")
    read = Reading(
        {v.name: rank.at_end_of(this_pass, v.name) for v in role.variables},
        rank.number,
        this_pass,
        {},
        lambda name, lag: rank.at_end_of(this_pass - lag, name),
        lambda channel: z3.Bool(f"posted({channel})"),
    )
    guards = {row.name: translate(row.guard, read) for row in role.rows}
    solver = z3.SolverFor("QF_UFLIA")
    solver.add(this_pass >= 0, *rank.facts)
    for location in role.locations:
        rows = role.rows_at(location)
        if not rows:
            continue
        held = [guards[row.name] for row in rows]
        if len(rows) == 2 and held[0].eq(negate(held[1])):
            continue  # g and not g
        overlap = disj(*(conj(a, b) for i, a in enumerate(held) for b in held[i + 1 :]))
        for bad, what in ((conj(*map(negate, held)), "no guard holds"), (overlap, "overlapping guards")):
            model = refute(solver, bad)
            if model is not None:
                values = {v.name: read.variables[v.name] for v in role.variables} | {"P": RANKS, "L": SLOTS}
                texts = "; ".join(show(row.guard) for row in rows)
                finding = f"{what} of: {texts}; when {in_words(model, values)}"
                names = tuple(f"{role.name}: {row.name}" for row in rows)
                obligation.findings.append(Finding("one guard at a location", names, finding))
    obligation.proved.append(f"exactly one guard holds at each of {len(role.locations) - 1} locations")


def refute_faults(walked: Pass, faults: list[Fault], facts: tuple[Fact, ...], obligation: Obligation) -> None:
    """Show that none of the faults can happen, or find those that can."""
    rank, role = walked.rank, walked.rank.role
    solver = z3.SolverFor("QF_UFLIA")
    solver.add(walked.this_pass >= 0, *known_at_start(rank, walked.this_pass, facts, []), *rank.facts)
    if refute(solver, disj(*(fault.when for fault in faults))) is None:
        laws = dict.fromkeys(fault.law for fault in faults)
        obligation.proved += [f"{law}: {sum(f.law == law for f in faults)} conditions" for law in laws]
        return
    for fault in faults:
        model = refute(solver, fault.when)
        if model is not None:
            values = {v.name: rank.at_end_of(walked.this_pass - 1, v.name) for v in role.variables}
            values |= {"P": RANKS, "L": SLOTS, "n": walked.this_pass}
            finding = f"{fault.finding}, from {in_words(model, values)} at the start of the pass"
            obligation.findings.append(Finding(fault.law, (f"{role.name}: {fault.row}",), finding))
