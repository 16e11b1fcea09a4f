"""Third obligation: no ranks wait in a ring, shown by a potential that Z3 finds (`spec.potential` says what it is)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

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
    """A potential that grows along all waits, or the names of waits along which none of this template can.

    The question is put as text, which Z3 reads several times faster than Python can build its terms.
    """
    points = list(dict.fromkeys(point for wait in waits for point in (wait.earlier, wait.later)))
    per_pass, per_rank = _unknown("a", width), _unknown("b", width)
    steps = {point: _unknown(f"c{number}", width) for number, point in enumerate(points)}
    text = [
        f"(declare-const {name} Real)" for weights in (per_pass, per_rank, *steps.values()) for name in weights if name
    ]
    for number, wait in enumerate(waits):
        demands = [
            _at_least(terms, 1 if monomial == "1" else 0)
            for monomial, terms in growth(per_pass, per_rank, steps[wait.later], steps[wait.earlier], wait).items()
        ]
        if wait.aging:
            demands += [_at_least(terms, 0) for terms in expand(per_pass, wait.pipelines).values()]
        text.append(f"(declare-const w{number} Bool)(assert (=> w{number} (and {' '.join(demands)})))")
    solver = z3.SolverFor("QF_LRA")
    solver.set("core.minimize", True)
    solver.from_string("\n".join(text))
    found = solver.check(*(z3.Bool(f"w{number}") for number in range(len(waits))))
    if found == z3.unsat:
        return None, tuple(waits[int(str(name)[1:])].name for name in solver.unsat_core())
    if found != z3.sat:
        raise ArithmeticError(f"Z3 gave no answer: {solver.reason_unknown()}")
    return _whole(solver.model(), per_pass, per_rank, steps), ()


def _unknown(name: str, width: int) -> Weights:
    one, ranks, slots = (f"{name}.{i}" if i < width else "" for i in range(3))
    return one, ranks, slots


def _at_least(terms: list[tuple[int, str]], least: int) -> str:
    """That a sum of unknowns (those of the template) is at least `least`, as text."""
    factors: dict[str, int] = {}
    for factor, name in terms:
        if name:
            factors[name] = factors.get(name, 0) + factor
    parts = [
        name if factor == 1 else f"(* {factor if factor > 0 else f'(- {-factor})'} {name})"
        for name, factor in factors.items()
        if factor
    ]
    return f"(>= (+ {' '.join(parts)}) {least})" if parts else ("true" if least <= 0 else "false")


def _whole(model: z3.ModelRef, per_pass: Weights, per_rank: Weights, steps: Mapping[Point, Weights]) -> Potential:
    """The solution in integers: a multiple of a potential is one."""

    values = {declared.name(): model[declared] for declared in model.decls()}

    def fraction(name: str) -> Fraction:
        value = values.get(name)  # absent: any value will do
        return Fraction(0) if value is None else Fraction(value.numerator_as_long(), value.denominator_as_long())

    solution = {key: [fraction(term) for term in weights] for key, weights in steps.items()}
    a, b = [fraction(term) for term in per_pass], [fraction(term) for term in per_rank]
    scale = lcm(*(value.denominator for weights in (a, b, *solution.values()) for value in weights))

    def scaled(weights: list[Fraction]) -> Linear:
        return Linear(*(int(value * scale) for value in weights))

    return Potential(scaled(a), scaled(b), {point: scaled(weights) for point, weights in solution.items()})
