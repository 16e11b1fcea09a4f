"""What an edit is, and where in a table it applies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from headway.spec.language import SpecError
from headway.spec.table import Protocol, Role, Row


@dataclass(frozen=True)
class Edit:
    """A change of a table, with the words for it."""

    text: str
    change: Callable[[Protocol], Protocol]

    def __call__(self, protocol: Protocol) -> Protocol:
        """The changed table, not yet checked."""
        return self.change(protocol)


def edit(protocol: Protocol, *edits: Edit, name: str | None = None, checked: bool = True) -> Protocol:
    """The table after all edits; checked once at the end, unless `checked` is False."""
    for change in edits:
        try:
            protocol = change(protocol)
        except SpecError as error:
            raise SpecError(f"{change.text}: {error}") from error
    return replace(protocol, name=name or protocol.name, checked=checked)


def per_role(text: str, at: str, roles: Iterable[str], change: Callable[[Role], Role]) -> Edit:
    """An edit of every role (of those named) that has a step `at`."""
    wanted = tuple(roles)

    def apply(protocol: Protocol) -> Protocol:
        for name in wanted:
            if not protocol.role(name).rows_at(at):
                raise SpecError(f"role {name!r} has no step {at!r}")
        chosen = [r.name for r in protocol.roles if r.rows_at(at) and (not wanted or r.name in wanted)]
        if not chosen:
            raise SpecError(f"table {protocol.name!r} has no step {at!r}")
        return protocol.with_roles([change(r) if r.name in chosen else r for r in protocol.roles], checked=False)

    return Edit(f"{text} ({', '.join(wanted)})" if wanted else text, apply)


def map_rows(role: Role, change: Callable[[Row], Row]) -> Role:
    """The role with every row changed."""
    return replace(role, rows=tuple(change(row) for row in role.rows))


def acting(role: Role, at: str) -> Row:
    """The row of step `at` that performs its operation; raises `SpecError` when there is not exactly one."""
    rows = [row for row in role.rows_at(at) if row.operation is not None] or list(role.rows_at(at)[:1])
    if len(rows) != 1:
        raise SpecError(f"role {role.name!r} has {len(rows)} operations at {at!r}; name a step with one")
    return rows[0]


def change_acting(role: Role, at: str, change: Callable[[Row], Row]) -> Role:
    """The role with the acting row of step `at` changed."""
    target = acting(role, at)
    return map_rows(role, lambda row: change(row) if row is target else row)
