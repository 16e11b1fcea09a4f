"""Z3 means by an expression what `spec.language.evaluate` means: random expressions, random values."""

from __future__ import annotations

import random

import pytest
import z3

from headway.spec.language import (
    Bool,
    Const,
    Domain,
    Enum,
    Environment,
    Expr,
    Got,
    Identity,
    Op,
    Param,
    Past,
    Posted,
    Range,
    ThisPass,
    Value,
    Var,
    evaluate,
    ite,
    show,
)
from headway.verification.prove.translate import RANKS, SLOTS, Reading, literal, sort_of, translate

COLORS = Enum(("red", "green", "blue"))
VARIABLES: dict[str, Domain] = {"on": Bool(), "up": Bool(), "count": Range(-2, 3), "color": COLORS, "who": Identity(3)}
LAGS = (Const(0), Const(1), Param("P") - 1, Param("L"))


def some_value(rng: random.Random, domain: Domain) -> Value:
    if isinstance(domain, Bool):
        return rng.random() < 0.5
    return rng.choice(domain.names) if isinstance(domain, Enum) else rng.randint(-2, 3)


def some_expression(rng: random.Random, domain: Domain, depth: int) -> Expr:
    names = [name for name, of in VARIABLES.items() if of.kind == domain.kind]
    if depth == 0:
        leaves: list[Expr] = [Var(name) for name in names] + [Past(name, rng.choice(LAGS)) for name in names]
        if domain.kind == "bool":
            leaves += [Got("answer"), Posted("wire"), Const(True)]
        elif domain.kind == "int":
            leaves += [Param(rng.choice("PLR")), Const(rng.randint(-2, 3))]
        return rng.choice(leaves)

    def part(of: Domain) -> Expr:
        return some_expression(rng, of, depth - 1)

    if domain.kind == "int" and rng.random() < 0.6:
        return Op(rng.choice(("add", "sub")), (part(domain), part(domain)))
    if domain.kind != "bool":
        return ite(part(Bool()), part(domain), part(domain))
    kind = rng.choice(("not", "and", "or", "eq", "lt", "le", "ite", "pass"))
    if kind == "not":
        return ~part(domain)
    if kind == "eq":
        of = rng.choice(list(VARIABLES.values()))
        return part(of).eq(part(of))
    if kind == "pass":
        return (ThisPass() - rng.randint(0, 1)).eq(ThisPass() - (Param("P") - rng.randint(1, 3)))
    if kind == "ite":
        return ite(part(Bool()), part(Bool()), part(Bool()))
    of = domain if kind in ("and", "or") else Range(-2, 3)
    return Op(kind, (part(of), part(of)))


@pytest.mark.parametrize("seed", range(6))
def test_random_expressions_mean_the_same(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        domain = rng.choice(list(VARIABLES.values()))
        expr = some_expression(rng, domain, rng.randint(0, 4))
        ranks = rng.randint(2, 5)
        parameters = {"P": ranks, "L": ranks + rng.randint(0, 2), "R": rng.randrange(ranks)}
        variables = {name: some_value(rng, of) for name, of in VARIABLES.items()}
        history = {(name, lag): some_value(rng, of) for name, of in VARIABLES.items() for lag in range(1, 8)}
        answer, held, this_pass = rng.random() < 0.5, rng.random() < 0.5, rng.randint(0, 9)
        expected = evaluate(
            expr,
            Environment(
                variables,
                parameters,
                {"answer": answer},
                lambda name, lag, history=history: history[name, lag],  # type: ignore[misc]
                lambda channel, held=held: held,  # type: ignore[misc]
                this_pass,
            ),
        )
        symbols = {name: z3.Const(name, sort_of(of)) for name, of in VARIABLES.items()}
        past = {name: z3.Function(f"past {name}", z3.IntSort(), sort_of(of)) for name, of in VARIABLES.items()}
        read = Reading(
            symbols,
            z3.Int("R"),
            z3.Int("n"),
            {"answer": z3.Bool("answer")},
            lambda name, lag, past=past: past[name](lag),  # type: ignore[misc]
            lambda channel: z3.Bool("held"),
        )
        solver = z3.Solver()
        solver.add(parameters["P"] == RANKS, parameters["L"] == SLOTS, z3.Int("R") == parameters["R"])
        solver.add(z3.Int("n") == this_pass, z3.Bool("answer") == answer, z3.Bool("held") == held)
        solver.add(*(symbols[name] == literal(value) for name, value in variables.items()))
        solver.add(*(past[name](lag) == literal(value) for (name, lag), value in history.items()))
        solver.add(translate(expr, read) != literal(expected))
        assert solver.check() == z3.unsat, f"seed {seed}: {show(expr)} is {expected}"
