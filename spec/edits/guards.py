"""When a step is done, and what it does to variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from headway.spec.edits.base import Edit, acting, change_acting, map_rows, per_role
from headway.spec.language import TRUE, Expr, SpecError, show
from headway.spec.table import Protocol, Role, Row, Variable


def guard(at: str, when: Expr | Callable[[Expr], Expr], *, roles: Iterable[str] = ()) -> Edit:
    """Step `at` done only where `when` holds (an expression, or a function of the present guard), else passed by."""

    def change(role: Role) -> Role:
        target = acting(role, at)
        others = [row for row in role.rows_at(at) if row is not target]
        if len(others) > 1 or any(row.operation is not None or row.to != target.to for row in others):
            raise SpecError(f"step {at!r} of role {role.name!r} branches; it has no condition to change")
        new = when if isinstance(when, Expr) else when(target.guard)
        ending = target.effects if target.advances else ()
        passed = others[0] if others else Row(f"{at}: pass by", at, ~new, None, target.to, ending, target.advances)
        result: list[Row] = []
        for row in role.rows:
            if row is target:
                result.append(replace(row, guard=new))
                if new != TRUE:
                    result.append(replace(passed, guard=~new))
            elif row not in others:
                result.append(row)
        return replace(role, rows=tuple(result))

    text = f"do {at!r} when {show(when)}" if isinstance(when, Expr) else f"change the condition of {at!r}"
    return per_role(text, at, roles, change)


def weaken(at: str, also: Expr, *, roles: Iterable[str] = ()) -> Edit:
    """Step `at` done where its guard or `also` holds."""
    inner = guard(at, lambda present: present | also, roles=roles)
    return Edit(f"do {at!r} also when {show(also)}", inner.change)


def strengthen(at: str, only: Expr, *, roles: Iterable[str] = ()) -> Edit:
    """Step `at` done only where its guard and `only` hold."""
    inner = guard(at, lambda present: only if present == TRUE else present & only, roles=roles)
    return Edit(f"do {at!r} only when {show(only)}", inner.change)


def negate(at: str, *, roles: Iterable[str] = ()) -> Edit:
    """Step `at` done where its guard does not hold."""
    return Edit(f"negate the condition of {at!r}", guard(at, lambda present: ~present, roles=roles).change)


def set_effect(at: str, variable: str, value: Expr, *, roles: Iterable[str] = ()) -> Edit:
    """The acting row of step `at` gives `variable` the value `value`, whatever it gave it before."""

    def change(role: Role) -> Role:
        role.variable(variable)

        def set_one(row: Row) -> Row:
            kept = tuple(pair for pair in row.effects if pair[0] != variable)
            return replace(row, effects=(*kept, (variable, value)))

        return change_acting(role, at, set_one)

    return per_role(f"at {at!r} set {variable} to {show(value)}", at, roles, change)


def omit_else(at: str, *, roles: Iterable[str] = ()) -> Edit:
    """Step `at` without what it does where its guard does not hold; an error if it does nothing there."""

    def change(role: Role) -> Role:
        target = acting(role, at)
        if not any(row.effects for row in role.rows_at(at) if row is not target):
            raise SpecError(f"step {at!r} of role {role.name!r} has no else branch with effects")
        return map_rows(role, lambda row: replace(row, effects=()) if row.at == at and row is not target else row)

    return per_role(f"leave out the else branch of {at!r}", at, roles, change)


def set_otherwise(at: str, variable: str, value: Expr, *, roles: Iterable[str] = ()) -> Edit:
    """Where the guard of step `at` does not hold, `variable` gets the value `value`."""

    def change(role: Role) -> Role:
        role.variable(variable)
        target = acting(role, at)

        def set_one(row: Row) -> Row:
            if row.at != at or row is target:
                return row
            kept = tuple(pair for pair in row.effects if pair[0] != variable)
            return replace(row, effects=(*kept, (variable, value)))

        if len(role.rows_at(at)) != 2:
            raise SpecError(f"step {at!r} of role {role.name!r} has no else branch")
        return map_rows(role, set_one)

    return per_role(f"at {at!r}, when passed by, set {variable} to {show(value)}", at, roles, change)


def assume(at: str, condition: Expr, *, roles: Iterable[str] = ()) -> Edit:
    """In models, what the local step `at` returns satisfies `condition` too."""

    def change(role: Role) -> Role:
        return change_acting(
            role, at, lambda row: replace(row, assume=condition if row.assume == TRUE else row.assume & condition)
        )

    return per_role(f"assume {show(condition)} at {at!r}", at, roles, change)


def add_variable(variable: Variable, *, roles: Iterable[str] = ()) -> Edit:
    """One more variable of every role (of those named)."""
    wanted = tuple(roles)

    def apply(protocol: Protocol) -> Protocol:
        for name in wanted:
            protocol.role(name)
        grown = [
            replace(r, variables=(*r.variables, variable)) if not wanted or r.name in wanted else r
            for r in protocol.roles
        ]
        return protocol.with_roles(grown, checked=False)

    return Edit(f"add variable {variable.name!r}", apply)
