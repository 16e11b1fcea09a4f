"""What is true at the end of every pass of a role: candidates from templates, those kept that are inductive.

Houdini's method: assume all candidates at the end of pass n-1, drop those that fail at the end of pass n, repeat.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import z3

from headway.spec.language import Bool, Const, Expr, Past, Range, show, walk
from headway.spec.table import Role, row_expressions
from headway.verification.prove.translate import FALSE, Reading, Term, conj, disj, literal, negate, same, translate
from headway.verification.prove.walk import Pass, Rank

ZERO = Const(0)


@dataclass(frozen=True)
class Moment:
    """The values at the end of one pass. `past` gives a variable at the end of any pass up to this one."""

    this_pass: Term
    value: Callable[[str], Term]
    held: Callable[[str], Term]
    past: Callable[[str, Term], Term]


@dataclass(frozen=True)
class Fact:
    """A statement about the end of every pass, of one of six kinds.

    initial: `left` has its initial value; loose: no handle on channel `left`; held_iff: the handle on channel `left`
    is held iff `right`; implies: `left` implies `right`; delayed: `left` is what `right` was `lag` passes before;
    none_since: `right` was false in the last `left` passes.
    """

    kind: str
    left: str
    right: str = ""
    lag: Expr = ZERO

    def __str__(self) -> str:
        return {
            "initial": f"{self.left} is as at the start",
            "loose": f"no handle on {self.left}",
            "held_iff": f"a handle on {self.left} iff {self.right}",
            "implies": f"{self.left} implies {self.right}",
            "delayed": f"{self.left} is {self.right} of {show(self.lag)} passes before",
            "none_since": f"not {self.right} in the last {self.left} passes",
        }[self.kind]

    def at(self, role: Role, moment: Moment, some_pass: Term) -> Term:
        """The statement as a term; `some_pass` is the pass for which a statement about many passes is used."""
        if self.kind == "initial":
            return same(moment.value(self.left), literal(role.variable(self.left).initial))
        if self.kind == "loose":
            return negate(moment.held(self.left))
        if self.kind == "held_iff":
            return same(moment.held(self.left), moment.value(self.right))
        if self.kind == "implies":
            return disj(negate(moment.value(self.left)), moment.value(self.right))
        if self.kind == "delayed":
            read = Reading({}, z3.Int("R"), moment.this_pass, {}, lambda _, lag: lag, lambda _: FALSE)
            return same(moment.value(self.left), moment.past(self.right, moment.this_pass - translate(self.lag, read)))
        recent = z3.And(moment.this_pass - moment.value(self.left) < some_pass, some_pass <= moment.this_pass)
        return z3.Implies(recent, negate(moment.past(self.right, some_pass)))


def candidates(role: Role, channels: tuple[str, ...]) -> Iterator[Fact]:
    """All facts of the templates that hold before the first pass."""
    initially = {v.name: v.initial for v in role.variables if isinstance(v.domain, Bool)}
    for variable in role.variables:
        yield Fact("initial", variable.name)
    for channel in channels:
        yield Fact("loose", channel)
        yield from (Fact("held_iff", channel, name) for name, value in initially.items() if not value)
    read_later = dict.fromkeys(
        node for row in role.rows for expr in row_expressions(row) for node in walk(expr) if isinstance(node, Past)
    )
    for past, variable in itertools.product(read_later, role.variables):
        source = role.variable(past.name)
        if past.lag != ZERO and (variable.domain, variable.initial) == (source.domain, source.initial):
            yield Fact("delayed", variable.name, past.name, past.lag)
    for left, right in itertools.permutations(initially, 2):
        if not initially[left] or initially[right]:
            yield Fact("implies", left, right)
    for variable in role.variables:
        if isinstance(variable.domain, Range) and variable.initial == 0:
            yield from (Fact("none_since", variable.name, name) for name, value in initially.items() if not value)


def end_of(rank: Rank, this_pass: Term) -> Moment:
    """The end of a pass that is over, read from the history."""
    return Moment(
        this_pass,
        lambda name: rank.at_end_of(this_pass, name),
        lambda channel: rank.held_at_end_of(this_pass, channel),
        lambda name, index: rank.at_end_of(index, name),
    )


def end_of_walk(walked: Pass) -> Moment:
    """The end of the pass that was walked."""

    def past(name: str, index: Term) -> Term:
        return z3.If(index == walked.this_pass, walked.after[name], walked.rank.at_end_of(index, name))

    return Moment(walked.this_pass, walked.after.__getitem__, walked.held_after.__getitem__, past)


def inductive(walked: Pass) -> tuple[Fact, ...]:
    """The largest set of candidate facts that every pass preserves, from one walk with any messages."""
    rank, role = walked.rank, walked.rank.role
    some_pass = z3.Int(f"{rank.tag}.some pass")
    alive = list(candidates(role, rank.channels))
    before, after = end_of(rank, walked.this_pass - 1), end_of_walk(walked)
    goals = {fact: fact.at(role, after, some_pass) for fact in alive}
    assumed = {fact: z3.Bool(f"assume {fact}") for fact in alive}
    solver = z3.SolverFor("QF_UFLIA")
    for fact, name in assumed.items():
        solver.add(z3.Implies(name, fact.at(role, before, some_pass)))
    solver.add(walked.this_pass >= 0, walked.advances)
    solver.add(*rank.facts)
    kept = houdini(solver, alive, assumed, goals)
    constant = {fact.left for fact in kept if fact.kind == "initial"}
    return tuple(fact for fact in kept if fact.kind == "initial" or not constant & {fact.left, fact.right})


def houdini(solver: z3.Solver, alive: list[Fact], assumed: dict[Fact, Term], goals: dict[Fact, Term]) -> list[Fact]:
    """The facts that survive: assuming all that are left, all that are left hold."""
    while alive:
        solver.push()
        solver.add(z3.Not(conj(*(goals[fact] for fact in alive))))
        found = solver.check(*(assumed[fact] for fact in alive))
        if found == z3.unsat:
            solver.pop()
            return alive
        if found != z3.sat:
            solver.pop()
            raise ArithmeticError(f"Z3 gave no answer: {solver.reason_unknown()}")
        model = solver.model()
        alive = [fact for fact in alive if not z3.is_false(model.eval(goals[fact], model_completion=True))]
        solver.pop()
    return []
