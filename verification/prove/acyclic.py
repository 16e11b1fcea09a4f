"""Third obligation: no ranks wait in a ring, shown by a potential that Z3 finds (`spec.potential` says what it is)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import z3

from headway.spec.language import SpecError
from headway.spec.ordering import Linear, Ordering, Point, Wait, ordering
from headway.spec.potential import Potential, Weights, expand, growth
from headway.spec.table import Protocol
from headway.spec.transports import Transport
from headway.verification.prove.obligation import Finding, Obligation

LADDER = (("constants", 1), ("affine in P", 2), ("affine in P and L", 3))
"""Templates: how many of the coefficients of 1, P and L the solver may use."""


@dataclass(frozen=True)
class Acyclic:
    """What was found for a table under its transports: the potential and its template, or waits that exclude one.

    `core` is not always a cycle of ranks: the templates are not all the potentials there are.
    """

    obligation: Obligation
    ordering: Ordering | None
    potential: Potential | None
    template: str
    core: tuple[str, ...]


def prove_acyclic(protocol: Protocol, transports: Mapping[str, Transport], ladder: int = len(LADDER)) -> Acyclic:
    """Look for a potential, simplest template first. `ladder` limits how many templates are tried."""
    contract = ", ".join(f"{name} {transport.name}" for name, transport in transports.items())
    obligation = Obligation(f"acyclic: {contract}" if contract else "acyclic")
    core: tuple[str, ...] = ()
    with obligation.timed():
        try:
            order = ordering(protocol, transports)
            waits = order.waits
        except SpecError as error:
            obligation.findings.append(Finding("no certificate", (), str(error)))
            return Acyclic(obligation, None, None, "", ())
        for template, width in LADDER[:ladder]:
            potential, core = solve(waits, width)
            if potential is not None:
                obligation.proved.append(f"a potential with {template} grows along all {len(waits)} waits")
                return Acyclic(obligation, order, potential, template, ())
    rows = tuple(dict.fromkeys(core))
    obligation.findings.append(Finding("no certificate", rows, f"no potential grows along these {len(rows)} waits"))
    return Acyclic(obligation, order, None, "", rows)


def solve(waits: tuple[Wait, ...], width: int) -> tuple[Potential | None, tuple[str, ...]]:
    """A potential that grows along all waits, or the names of waits along which none of this template can."""
    solver = z3.SolverFor("QF_LRA")
    solver.set("core.minimize", True)
    points = dict.fromkeys(point for wait in waits for point in (wait.earlier, wait.later))
    per_pass, per_rank = _unknown("a", width), _unknown("b", width)
    steps = {point: _unknown(f"c[{point.role}, {point.location}]", width) for point in points}
    names: dict[str, str] = {}
    for number, wait in enumerate(waits):
        demands = []
        for monomial, terms in growth(per_pass, per_rank, steps[wait.later], steps[wait.earlier], wait).items():
            demands += _at_least(terms, 1 if monomial == "1" else 0)
        if wait.aging:
            for terms in expand(per_pass, wait.pipelines).values():
                demands += _at_least(terms, 0)
        name = f"w{number}"
        names[name] = wait.name
        solver.assert_and_track(z3.And(demands), name)
    found = solver.check()
    if found == z3.unsat:
        return None, tuple(names[str(name)] for name in solver.unsat_core())
    if found != z3.sat:
        raise ArithmeticError(f"Z3 gave no answer: {solver.reason_unknown()}")
    return _whole(solver.model(), per_pass, per_rank, steps), ()


def _unknown(name: str, width: int) -> Weights:
    one, ranks, slots = (z3.Real(f"{name}.{i}") if i < width else 0 for i in range(3))
    return one, ranks, slots


def _at_least(terms: list[tuple[int, Any]], least: int) -> list[z3.BoolRef]:
    """That a sum is at least `least`; raises nothing for a sum of numbers, which is true or false."""
    number = sum(factor * weight for factor, weight in terms if isinstance(weight, int))
    unknown = [factor * weight for factor, weight in terms if not isinstance(weight, int) and factor]
    if not unknown:
        return [z3.BoolVal(number >= least)]
    return [z3.Sum(unknown) + number >= least]


def _whole(model: z3.ModelRef, per_pass: Weights, per_rank: Weights, steps: Mapping[Point, Weights]) -> Potential:
    """The solution in integers: a multiple of a potential is one."""

    def fraction(term: Any) -> Fraction:
        if isinstance(term, int):
            return Fraction(term)
        value = model.eval(term, model_completion=True)
        return Fraction(value.numerator_as_long(), value.denominator_as_long())

    solution = {key: [fraction(term) for term in weights] for key, weights in steps.items()}
    a, b = [fraction(term) for term in per_pass], [fraction(term) for term in per_rank]
    scale = lcm(*(value.denominator for weights in (a, b, *solution.values()) for value in weights))

    def scaled(weights: list[Fraction]) -> Linear:
        return Linear(*(int(value * scale) for value in weights))

    return Potential(scaled(a), scaled(b), {point: scaled(weights) for point, weights in solution.items()})
