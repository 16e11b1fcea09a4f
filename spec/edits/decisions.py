"""Who decides: free choices, and ranks that answer for themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headway.spec.edits.base import Edit, acting, change_acting, per_role
from headway.spec.edits.guards import add_variable
from headway.spec.language import TRUE, Bool, Expr, Got, Param, Range, SpecError, Var, ite, show
from headway.spec.table import Fields, Local, Protocol, Row, Variable


def choose(at: str, field: str, may: Expr, effects: Fields = (), *, roles: Iterable[str] = ()) -> Edit:
    """The local step `at` returns one more free Boolean, restricted by `may`; `effects` are added or replaced."""

    def choose_one(row: Row) -> Row:
        if not isinstance(row.operation, Local):
            raise SpecError(f"step {at!r} calls no binding")
        operation = replace(row.operation, returns=(*row.operation.returns, (field, Bool())))
        changed = dict(effects)
        kept = tuple(pair for pair in row.effects if pair[0] not in changed)
        both = may if row.assume == TRUE else row.assume & may
        return replace(row, operation=operation, assume=both, effects=(*kept, *effects))

    text = f"at {at!r} choose {field}"
    return per_role(text, at, roles, lambda role: change_acting(role, at, choose_one))


def diverge(at: str, field: str, effects: Fields, *, rank: Expr, only: Expr = TRUE, times: int = 1) -> Edit:
    """At the ranks where `rank` holds, local step `at` may answer differently, at most `times` times.

    Where it does, `effects` replace those of the step (written with the field's value `Got(field)` understood true).
    """
    budget = Variable(f"{field}_budget", Range(0, times), times, "divergences still to come", ghost=True)
    left, differs = Var(budget.name), Got(field)

    def apply(protocol: Protocol) -> Protocol:
        names = [role.name for role in protocol.roles if role.rows_at(at)]
        if not names:
            raise SpecError(f"table {protocol.name!r} has no step {at!r}")
        for name in names:
            own = dict(acting(protocol.role(name), at).effects)
            changed = tuple((v, ite(differs, new, own[v] if v in own else Var(v))) for v, new in effects)
            spent = (budget.name, ite(differs, left - 1, left))
            protocol = choose(at, field, ~differs | (rank & only & ~left.eq(0)), (*changed, spent), roles=(name,))(
                add_variable(budget, roles=(name,))(protocol)
            )
        return protocol

    return Edit(f"{field}: a rank where {show(rank)} answers differently at {at!r}", apply)


def at_rank(rank: int) -> Expr:
    """True at that rank."""
    return Param("R").eq(rank)
