"""Guards and effects as Z3 terms over unbounded integers: the prover's reading of the expression language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import z3

from headway.spec.language import (
    Bool,
    Const,
    Domain,
    Enum,
    Expr,
    Got,
    Op,
    Param,
    Past,
    Posted,
    Range,
    Slot,
    SpecError,
    ThisPass,
    Value,
    Var,
)

Term: TypeAlias = Any  # a z3.ExprRef; z3 publishes no types

TRUE, FALSE = z3.BoolVal(True), z3.BoolVal(False)
RANKS, SLOTS = z3.Int("P"), z3.Int("L")
_SLOT = z3.Function("slot", z3.IntSort(), z3.IntSort())
_names: dict[str, int] = {}


def literal(value: Value) -> Term:
    """A value as a constant; a name of an enumeration becomes a number of its own."""
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return z3.IntVal(value if isinstance(value, int) else _names.setdefault(value, len(_names)))


def value_of(term: Term) -> bool | int:
    """The value of a constant term of a model, for reports."""
    return term.as_long() if z3.is_int_value(term) else bool(z3.is_true(term))


def is_bool(domain: Domain) -> bool:
    """Whether values of `domain` are Z3 booleans (all others are integers)."""
    return isinstance(domain, Bool)


def sort_of(domain: Domain) -> Term:
    """The Z3 sort of a domain's values."""
    return z3.BoolSort() if is_bool(domain) else z3.IntSort()


def within(term: Term, domain: Domain, read: Reading) -> Term:
    """That `term` is a value of `domain`; a pass number may be anything, since only equality is used."""
    if isinstance(domain, Range):
        low, high = (literal(b) if isinstance(b, int) else translate(b, read) for b in (domain.low, domain.high))
        return z3.And(low <= term, term <= high)
    if isinstance(domain, Enum):
        return z3.Or([term == literal(name) for name in domain.names])
    return TRUE


@dataclass(frozen=True)
class Reading:
    """What the names of an expression stand for, as terms. `past` gets the variable and its lag (not 0) as a term."""

    variables: Mapping[str, Term]
    rank: Term
    this_pass: Term
    got: Mapping[str, Term]
    past: Callable[[str, Term], Term]
    posted: Callable[[str], Term]


def slot_facts(this_pass: Term) -> Term:
    """What is known of the slot of a pass: only its range, which keeps every query linear."""
    return z3.And(_SLOT(this_pass) >= 0, _SLOT(this_pass) < SLOTS)


def translate(expr: Expr, read: Reading) -> Term:
    """The Z3 term that means the same as a well-typed expression."""
    if isinstance(expr, Const):
        return literal(expr.value)
    if isinstance(expr, Var):
        return read.variables[expr.name]
    if isinstance(expr, Param):
        return {"P": RANKS, "L": SLOTS, "R": read.rank}[expr.name]
    if isinstance(expr, Got):
        if expr.field not in read.got:
            raise SpecError(f"unknown field {expr.field!r}; known: {', '.join(read.got) or 'none'}")
        return read.got[expr.field]
    if isinstance(expr, Past):
        lag = z3.simplify(translate(expr.lag, read))
        if z3.is_int_value(lag) and lag.as_long() == 0:
            return read.variables[expr.name]
        return read.past(expr.name, lag)
    if isinstance(expr, Posted):
        return read.posted(expr.channel)
    if isinstance(expr, ThisPass):
        return read.this_pass
    if isinstance(expr, Slot):
        return _SLOT(read.this_pass)
    if isinstance(expr, Op):
        return _operator(expr.kind, [translate(arg, read) for arg in expr.args])
    raise SpecError(f"not an expression: {expr!r}")


def _operator(kind: str, args: list[Term]) -> Term:
    if kind == "not":
        return negate(args[0])
    if kind == "and":
        return conj(*args)
    if kind == "or":
        return disj(*args)
    if kind == "ite":
        return choose(args[0], args[1], args[2])
    left, right = args
    if kind == "eq":
        return same(left, right)
    if kind == "lt":
        return left < right
    if kind == "le":
        return left <= right
    return left + right if kind == "add" else left - right


# The constants TRUE and FALSE are told by identity: asking Z3 each time costs more than all its answers.


def same(left: Term, right: Term) -> Term:
    """That two terms are equal."""
    return TRUE if left is right or left.eq(right) else left == right


def negate(term: Term) -> Term:
    """Not, without double negation."""
    if term is TRUE or term is FALSE:
        return FALSE if term is TRUE else TRUE
    return term.arg(0) if z3.is_not(term) else z3.Not(term)


def conj(*terms: Term) -> Term:
    """And, without trivial parts."""
    parts = [term for term in terms if term is not TRUE]
    if any(term is FALSE for term in parts):
        return FALSE
    return TRUE if not parts else parts[0] if len(parts) == 1 else z3.And(parts)


def disj(*terms: Term) -> Term:
    """Or, without trivial parts."""
    parts = [term for term in terms if term is not FALSE]
    if any(term is TRUE for term in parts):
        return TRUE
    return FALSE if not parts else parts[0] if len(parts) == 1 else z3.Or(parts)


def choose(condition: Term, then: Term, otherwise: Term) -> Term:
    """If-then-else, without trivial choices."""
    if then is otherwise or condition is TRUE:
        return then
    return otherwise if condition is FALSE else z3.If(condition, then, otherwise)
