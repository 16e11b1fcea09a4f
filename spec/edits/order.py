"""Where a step stands in a pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headway.spec.edits.base import Edit, per_role
from headway.spec.language import TRUE, Expr, SpecError
from headway.spec.table import Fields, Local, Operation, Receive, Role, Row


def _unlink(role: Role, at: str) -> tuple[Role, tuple[Row, ...]]:
    """The role without step `at`, and the rows of that step; what ends a pass stays at the end of the pass."""
    rows = role.rows_at(at)
    onward = {(row.to, row.advances) for row in rows}
    if len(onward) != 1:
        raise SpecError(f"step {at!r} of role {role.name!r} branches; it cannot be moved or removed")
    if at == role.start:
        raise SpecError(f"step {at!r} is where role {role.name!r} starts; it cannot be moved or removed")
    to, advances = onward.pop()
    ending = _ending(role, at)

    def relink(row: Row) -> Row:
        if row.to != at:
            return row
        return replace(row, to=to, advances=advances, effects=row.effects + ending)

    kept = tuple(relink(row) for row in role.rows if row.at != at)
    return replace(role, rows=kept), tuple(_without(row, ending) for row in rows)


def _ending(role: Role, at: str) -> Fields:
    """What a step that ends the pass does because it ends the pass: the effects that all its rows share."""
    rows = role.rows_at(at)
    if not all(row.advances for row in rows):
        return ()
    shared = tuple(pair for pair in rows[0].effects if all(pair in row.effects for row in rows))
    if shared and len(rows) == 1 and isinstance(rows[0].operation, Receive | Local):
        raise SpecError(f"step {at!r} of role {role.name!r} ends the pass with effects that may be its own")
    return shared


def _without(row: Row, ending: Fields) -> Row:
    return replace(row, advances=False, effects=tuple(pair for pair in row.effects if pair not in ending))


def _link(role: Role, rows: tuple[Row, ...], before: str | None, after: str | None) -> Role:
    """The role with the rows of one step put before or after another step."""
    at = rows[0].at
    if before is not None:
        if not role.rows_at(before):
            raise SpecError(f"role {role.name!r} has no step {before!r}")
        if before == role.start:
            raise SpecError(f"step {before!r} is where role {role.name!r} starts; nothing can be put before it")
        placed = tuple(replace(row, to=before) for row in rows)
        kept = tuple(replace(row, to=at) if row.to == before else row for row in role.rows)
        return replace(role, rows=(*kept, *placed))
    if after is None:
        raise SpecError("say where: before or after a step")
    anchors = role.rows_at(after)
    if not anchors:
        raise SpecError(f"role {role.name!r} has no step {after!r}")
    if len({(row.to, row.advances) for row in anchors}) != 1:
        raise SpecError(f"step {after!r} of role {role.name!r} branches; say which step to put it before")
    to, advances, ending = anchors[0].to, anchors[0].advances, _ending(role, after)
    placed = tuple(replace(row, to=to, advances=advances, effects=row.effects + ending) for row in rows)

    def relink(row: Row) -> Row:
        return replace(_without(row, ending), to=at) if row.at == after else row

    return replace(role, rows=(*(relink(row) for row in role.rows), *placed))


def move(at: str, *, before: str | None = None, after: str | None = None, roles: Iterable[str] = ()) -> Edit:
    """Step `at` put before or after another step of the same role."""

    def change(role: Role) -> Role:
        rest, rows = _unlink(role, at)
        return _link(rest, rows, before, after)

    where = f"before {before!r}" if before is not None else f"after {after!r}"
    return per_role(f"move {at!r} {where}", at, roles, change)


def drop_step(at: str, *, roles: Iterable[str] = ()) -> Edit:
    """Step `at` left out."""
    return per_role(f"leave out {at!r}", at, roles, lambda role: _unlink(role, at)[0])


def insert(
    at: str,
    operation: Operation,
    effects: Fields = (),
    *,
    before: str | None = None,
    after: str | None = None,
    when: Expr = TRUE,
    otherwise: Fields = (),
    roles: Iterable[str] = (),
) -> Edit:
    """A new step `at`: where `when` holds `operation` and `effects`, else `otherwise`."""
    anchor = before if before is not None else after
    if anchor is None:
        raise SpecError(f"insert {at!r}: say where: before or after a step")

    def change(role: Role) -> Role:
        if role.rows_at(at):
            raise SpecError(f"role {role.name!r} already has a step {at!r}")
        rows: tuple[Row, ...] = (Row(at, at, when, operation, at, effects),)
        if when != TRUE:
            rows = (*rows, Row(f"{at}: pass by", at, ~when, None, at, otherwise))
        return _link(role, rows, before, after)

    return per_role(f"insert {at!r}", anchor, roles, change)
