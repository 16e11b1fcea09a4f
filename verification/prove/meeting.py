"""What ranks know of one another: two or three of them, each in one pass, and the facts carried between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import z3

from headway.spec.language import domain_type
from headway.spec.ordering import Linear, Neighbours
from headway.spec.table import Local
from headway.verification.prove.facts import Fact, houdini
from headway.verification.prove.obligation import in_words
from headway.verification.prove.translate import RANKS, SLOTS, Term, same
from headway.verification.prove.walk import Pass
from headway.verification.prove.wellformed import known_at_start

Facts = Mapping[str, tuple[Fact, ...]]  # by role
Carried = frozenset[tuple[str, str]]  # (variable of one rank, variable of another) that are equal at the end of a pass


def amount(expression: Linear) -> Term:
    """A linear expression over P and L as a term."""
    return expression.one + expression.ranks * RANKS + expression.slots * SLOTS


@dataclass(frozen=True)
class Link:
    """What is known of two ranks of a meeting, named by their place in it.

    `hop` is the second's rank number less the first's; None when any distance is possible.
    """

    left: int
    right: int
    carried: Carried
    hop: Linear | None = None


@dataclass(frozen=True)
class Meeting:
    """Some ranks, each in one pass, and what is known of them by induction."""

    passes: tuple[Pass, ...]
    facts: Facts
    links: tuple[Link, ...]

    def known(self) -> list[Term]:
        """All that is known: places, facts of each rank, what the passes make of the variables, carried facts."""
        known: list[Term] = []
        for walked in self.passes:
            known.append(walked.this_pass >= 0)
            known += [
                z3.Implies(walked.advances, walked.rank.at_end_of(walked.this_pass, name) == value)
                for name, value in walked.after.items()
            ]
        indices = self.indices()
        for walked in self.passes:
            known += known_at_start(walked.rank, walked.this_pass, self.facts[walked.rank.role.name], indices)
        for link in self.links:
            left, right = self.passes[link.left], self.passes[link.right]
            if link.hop is not None:
                known.append(right.rank.number == left.rank.number + amount(link.hop))
            for index in indices if link.carried else ():
                both = [
                    left.rank.at_end_of(index, mine) == right.rank.at_end_of(index, theirs)
                    for mine, theirs in sorted(link.carried)
                ]
                known.append(z3.Implies(z3.And(index <= left.this_pass, index <= right.this_pass), z3.And(both)))
        for walked in self.passes:
            known += walked.rank.facts
        return known

    def indices(self) -> list[Term]:
        """The passes at which a history was read."""
        found = {term.get_id(): term for walked in self.passes for terms in walked.rank.used.values() for term in terms}
        return list(found.values())

    def solver(self) -> z3.Solver:
        """A solver that knows all this."""
        solver = z3.SolverFor("QF_UFLIA")
        solver.add(*self.known())
        return solver

    def situation(self, model: z3.ModelRef) -> str:
        """Who is in which pass, with which variables there."""
        parts = [in_words(model, {"P": RANKS, "L": SLOTS})]
        for walked in self.passes:
            rank = walked.rank
            values = {"pass": walked.this_pass}
            values |= {v.name: rank.at_end_of(walked.this_pass - 1, v.name) for v in rank.role.variables}
            for firing in walked.firings.values():
                fires = z3.is_true(model.eval(firing.when, model_completion=True))
                if fires and isinstance(firing.row.operation, Local):
                    values |= {f"{firing.row.name} returns {name}": term for name, term in firing.read.got.items()}
            parts.append(f"{rank.role.name} (before the pass): {in_words(model, values)}")
        return "; ".join(parts)


def carried_between(pair: Neighbours, left: Pass, right: Pass, facts: Facts) -> Carried:
    """Pairs of variables that are equal at the end of every pass of the two neighbours."""
    alive = [
        Fact("carried", mine.name, theirs.name)
        for mine in pair.source.variables
        for theirs in pair.sink.variables
        if domain_type(mine.domain) == domain_type(theirs.domain) and mine.initial == theirs.initial
    ]
    meeting = Meeting((left, right), facts, (Link(0, 1, frozenset(), pair.hop),))
    solver = meeting.solver()
    assumed = {fact: z3.Bool(f"assume {fact.left} = {fact.right}") for fact in alive}
    goals = {fact: same(left.after[fact.left], right.after[fact.right]) for fact in alive}
    for index in meeting.indices():
        for fact, name in assumed.items():
            equal = left.rank.at_end_of(index, fact.left) == right.rank.at_end_of(index, fact.right)
            solver.add(z3.Implies(z3.And(name, index < left.this_pass), equal))
    solver.add(left.advances, right.advances)
    return frozenset((fact.left, fact.right) for fact in houdini(solver, alive, assumed, goals))


def carried_from_first(steps: list[tuple[Neighbours, Carried]]) -> dict[str, dict[str, Carried]]:
    """What every rank's variables have to do with rank 0's, by composing what neighbours carry: a greatest fixpoint."""
    result: dict[str, dict[str, Carried]] = {}
    for first in dict.fromkeys(pair.source.name for pair, _ in steps if pair.source.place == "first"):
        known: dict[str, Carried] = {}
        changed = True
        while changed:
            changed = False
            for pair, carried in steps:
                source, sink = pair.source.name, pair.sink.name
                if source == first:
                    new = carried
                elif source in known:
                    new = frozenset((a, d) for a, b in known[source] for c, d in carried if b == c)
                else:
                    continue
                new = new & known[sink] if sink in known else new
                if known.get(sink) != new:
                    known[sink], changed = new, True
        result[first] = known
    return result
