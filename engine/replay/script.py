"""An interleaving to replay, and the table as ranks can run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from headway.spec.language import TRUE, Value
from headway.spec.table import Local, Post, Protocol, Role, Row
from headway.spec.transports import Transport


class ScriptStep(msgspec.Struct, frozen=True):
    """Rank `rank` performs row `row` in its pass `this_pass`; a local row returns `outcome`.

    `aside`: the row took a message of another kind off a shared wire and stays where it is.
    """

    rank: int
    row: str
    this_pass: int
    outcome: dict[str, Value] = {}
    aside: bool = False


class Script(msgspec.Struct, frozen=True):
    """The steps of a counterexample in order, and where each rank stands at the end (a row, or "end")."""

    ranks: int
    slots: int
    steps: list[ScriptStep]
    rows: list[str]
    law: str


class ReplayError(RuntimeError):
    """The ranks did not go the way of the script; the message says where."""


def executable(protocol: Protocol, transports: Mapping[str, Transport] | None = None) -> Protocol:
    """The table without what exists in models only: ghost variables and restrictions of what local steps return.

    Where the transport drops handles, so do the posts.
    """
    dropped = [name for name, transport in (transports or {}).items() if transport.kind == "dropped"]

    def role(old: Role) -> Role:
        ghosts = {variable.name for variable in old.variables if variable.ghost}

        def row(r: Row) -> Row:
            operation = r.operation
            if isinstance(operation, Post) and operation.channel in dropped:
                operation = replace(operation, handle="drop")
            effects = tuple(pair for pair in r.effects if pair[0] not in ghosts)
            return replace(r, assume=TRUE, operation=operation, effects=effects)

        kept = tuple(variable for variable in old.variables if not variable.ghost)
        return replace(old, variables=kept, rows=tuple(map(row, old.rows)))

    return protocol.with_roles([role(old) for old in protocol.roles], checked=False)


def scripted_bindings(role: Role, standing: Callable[[], int], outcome: Callable[[], Mapping[str, Value]]) -> Any:
    """Bindings that return what the script says: `standing` is the index of the row, `outcome` what it returns."""

    def call(*_: Any) -> Any:
        operation = role.rows[standing()].operation
        if not isinstance(operation, Local):
            raise ReplayError(f"row {role.rows[standing()].name!r} calls no binding")
        given = outcome()
        results = [None] * len(operation.writes) + [given[name] for name, _ in operation.returns]
        return results[0] if len(results) == 1 else tuple(results) if results else None

    names = [row.operation.binding for row in role.rows if isinstance(row.operation, Local)]
    return dict.fromkeys(names, call)
