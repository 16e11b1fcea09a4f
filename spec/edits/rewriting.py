"""Expressions replaced, at one step or everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from headway.spec.edits.base import Edit, map_rows, per_role
from headway.spec.language import Expr, SpecError, show, substitute, walk
from headway.spec.table import Fields, Post, Protocol, Receive, Role, Row, row_expressions


def rewrite(text: str, at: str, old: Expr, new: Expr, *, roles: Iterable[str] = ()) -> Edit:
    """`new` for `old` in every expression of the rows at step `at`; an error if it is nowhere there."""

    def change(role: Role) -> Role:
        if not any(old in walk(e) for row in role.rows_at(at) for e in row_expressions(row)):
            raise SpecError(f"step {at!r} of role {role.name!r} does not read {show(old)}")
        return map_rows(role, lambda row: _rewritten(row, lambda e: new if e == old else None) if row.at == at else row)

    return per_role(text, at, roles, change)


def everywhere(text: str, replacement: Callable[[Expr], Expr | None]) -> Edit:
    """Every expression of every row with `replacement` applied (see `language.substitute`)."""

    def apply(protocol: Protocol) -> Protocol:
        roles = [map_rows(role, lambda row: _rewritten(row, replacement)) for role in protocol.roles]
        return protocol.with_roles(roles, checked=False)

    return Edit(text, apply)


def _rewritten(row: Row, replacement: Callable[[Expr], Expr | None]) -> Row:
    def fields(pairs: Fields) -> Fields:
        return tuple((name, substitute(expr, replacement)) for name, expr in pairs)

    operation = row.operation
    if isinstance(operation, Post):
        operation = replace(operation, fields=fields(operation.fields))
    elif isinstance(operation, Receive):
        operation = replace(operation, expect=fields(operation.expect))
    return replace(
        row,
        guard=substitute(row.guard, replacement),
        assume=substitute(row.assume, replacement),
        effects=fields(row.effects),
        operation=operation,
    )
