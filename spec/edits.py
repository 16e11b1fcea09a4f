"""Row edits: small functions from a table to a table, of which incidents, variants and mutants are made.

An edit names a step by its location, which is shared by the roles that have it; `roles` narrows it to some roles.
Each raises `SpecError` when the table has no such step, row, field or channel. `edit` applies several in turn and
checks the result once, because a table may be ill-formed between two edits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from headway.spec.language import (
    TRUE,
    Bool,
    Domain,
    Expr,
    Got,
    Param,
    Posted,
    Range,
    SpecError,
    Var,
    ite,
    show,
    substitute,
    walk,
)
from headway.spec.table import (
    Await,
    Channel,
    Fields,
    Local,
    Operation,
    Post,
    Protocol,
    Receive,
    Role,
    Row,
    Variable,
    row_expressions,
)


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


# --- where an edit applies ---------------------------------------------------------------------------------


def _per_role(text: str, at: str, roles: Iterable[str], change: Callable[[Role], Role]) -> Edit:
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


def _map_rows(role: Role, change: Callable[[Row], Row]) -> Role:
    return replace(role, rows=tuple(change(row) for row in role.rows))


def acting(role: Role, at: str) -> Row:
    """The row of step `at` that performs its operation; raises `SpecError` when there is not exactly one."""
    rows = [row for row in role.rows_at(at) if row.operation is not None] or list(role.rows_at(at)[:1])
    if len(rows) != 1:
        raise SpecError(f"role {role.name!r} has {len(rows)} operations at {at!r}; name a step with one")
    return rows[0]


def _change_acting(role: Role, at: str, change: Callable[[Row], Row]) -> Role:
    target = acting(role, at)
    return _map_rows(role, lambda row: change(row) if row is target else row)


# --- order -------------------------------------------------------------------------------------------------


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
    return _per_role(f"move {at!r} {where}", at, roles, change)


def drop_step(at: str, *, roles: Iterable[str] = ()) -> Edit:
    """Step `at` left out."""
    return _per_role(f"leave out {at!r}", at, roles, lambda role: _unlink(role, at)[0])


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

    return _per_role(f"insert {at!r}", anchor, roles, change)


# --- guards and effects ------------------------------------------------------------------------------------


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
    return _per_role(text, at, roles, change)


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

        return _change_acting(role, at, set_one)

    return _per_role(f"at {at!r} set {variable} to {show(value)}", at, roles, change)


def omit_else(at: str, *, roles: Iterable[str] = ()) -> Edit:
    """Step `at` without what it does where its guard does not hold; an error if it does nothing there."""

    def change(role: Role) -> Role:
        target = acting(role, at)
        if not any(row.effects for row in role.rows_at(at) if row is not target):
            raise SpecError(f"step {at!r} of role {role.name!r} has no else branch with effects")
        return _map_rows(role, lambda row: replace(row, effects=()) if row.at == at and row is not target else row)

    return _per_role(f"leave out the else branch of {at!r}", at, roles, change)


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
        return _map_rows(role, set_one)

    return _per_role(f"at {at!r}, when passed by, set {variable} to {show(value)}", at, roles, change)


def assume(at: str, condition: Expr, *, roles: Iterable[str] = ()) -> Edit:
    """In models, what the local step `at` returns satisfies `condition` too."""

    def change(role: Role) -> Role:
        return _change_acting(
            role, at, lambda row: replace(row, assume=condition if row.assume == TRUE else row.assume & condition)
        )

    return _per_role(f"assume {show(condition)} at {at!r}", at, roles, change)


# --- messages ----------------------------------------------------------------------------------------------


def set_field(at: str, field: str, value: Expr, *, roles: Iterable[str] = ()) -> Edit:
    """The post at step `at` carries `value` as `field`."""

    def set_one(row: Row) -> Row:
        if not isinstance(row.operation, Post):
            raise SpecError(f"step {at!r} does not post")
        if field not in dict(row.operation.fields):
            raise SpecError(f"step {at!r} posts no field {field!r}; it posts: {', '.join(dict(row.operation.fields))}")
        fields = tuple((name, value if name == field else old) for name, old in row.operation.fields)
        return replace(row, operation=replace(row.operation, fields=fields))

    text = f"post {field} = {show(value)} at {at!r}"
    return _per_role(text, at, roles, lambda role: _change_acting(role, at, set_one))


def forget(at: str, field: str, *, roles: Iterable[str] = ()) -> Edit:
    """The receive at step `at` no longer compares `field`."""

    def forget_one(row: Row) -> Row:
        if not isinstance(row.operation, Receive) or field not in dict(row.operation.expect):
            raise SpecError(f"step {at!r} compares no field {field!r}")
        kept = tuple(pair for pair in row.operation.expect if pair[0] != field)
        return replace(row, operation=replace(row.operation, expect=kept))

    text = f"do not compare {field} at {at!r}"
    return _per_role(text, at, roles, lambda role: _change_acting(role, at, forget_one))


def swap_channel(at: str, channel: str, *, roles: Iterable[str] = ()) -> Edit:
    """The operation of step `at` on another channel."""

    def swap_one(row: Row) -> Row:
        if not isinstance(row.operation, Post | Receive | Await):
            raise SpecError(f"step {at!r} uses no channel")
        return replace(row, operation=replace(row.operation, channel=channel))

    text = f"use channel {channel!r} at {at!r}"
    return _per_role(text, at, roles, lambda role: _change_acting(role, at, swap_one))


def set_operation(at: str, operation: Operation, *, roles: Iterable[str] = ()) -> Edit:
    """Another operation at step `at`, with the same guard and effects."""
    return _per_role(
        f"another operation at {at!r}",
        at,
        roles,
        lambda role: _change_acting(role, at, lambda row: replace(row, operation=operation)),
    )


def add_channel(channel: Channel) -> Edit:
    """One more channel."""
    return Edit(
        f"add channel {channel.name!r}",
        lambda protocol: replace(protocol, channels=(*protocol.channels, channel), checked=False),
    )


def change_channel(name: str, change: Callable[[Channel], Channel], text: str) -> Edit:
    """The channel `name` as `change` gives it."""

    def apply(protocol: Protocol) -> Protocol:
        protocol.channel(name)
        channels = tuple(change(c) if c.name == name else c for c in protocol.channels)
        return replace(protocol, channels=channels, checked=False)

    return Edit(text, apply)


def add_field(channel: str, field: str, domain: Domain, value: Expr, variable: str | None = None) -> Edit:
    """Messages of `channel` carry one more field; a receiver stores it in `variable`, if given."""

    def grow(row: Row) -> Row:
        operation = row.operation
        if isinstance(operation, Post) and operation.channel == channel:
            return replace(row, operation=replace(operation, fields=(*operation.fields, (field, value))))
        if isinstance(operation, Receive) and operation.channel == channel and variable is not None:
            return replace(row, effects=(*row.effects, (variable, Got(field))))
        return row

    def apply(protocol: Protocol) -> Protocol:
        if field in dict(protocol.channel(channel).fields):
            raise SpecError(f"channel {channel!r} already has a field {field!r}")
        channels = tuple(
            replace(c, fields=(*c.fields, (field, domain))) if c.name == channel else c for c in protocol.channels
        )
        roles = tuple(_map_rows(role, grow) for role in protocol.roles)
        return replace(protocol, channels=channels, roles=roles, checked=False)

    return Edit(f"add field {field!r} to channel {channel!r}", apply)


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


# --- who decides -------------------------------------------------------------------------------------------


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
    return _per_role(text, at, roles, lambda role: _change_acting(role, at, choose_one))


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


# --- whole patterns ----------------------------------------------------------------------------------------


def drop_handle(channel: str) -> Edit:
    """Posts of `channel` keep no handle, and nothing awaits them."""

    def apply(protocol: Protocol) -> Protocol:
        protocol.channel(channel)
        for role in protocol.roles:
            waits = [r.at for r in role.rows if isinstance(r.operation, Await) and r.operation.channel == channel]
            for at in dict.fromkeys(waits):
                protocol = drop_step(at, roles=(role.name,))(protocol)
        return _handles(protocol, channel, "drop")

    return Edit(f"keep no handle of {channel!r}", apply)


def overwrite_handle(channel: str) -> Edit:
    """A post of `channel` forgets the previous handle; what awaits it awaits the latest."""
    return Edit(f"overwrite the handle of {channel!r}", lambda protocol: _handles(protocol, channel, "overwrite"))


def _handles(protocol: Protocol, channel: str, handle: Literal["drop", "overwrite"]) -> Protocol:
    protocol.channel(channel)

    def change(row: Row) -> Row:
        if not isinstance(row.operation, Post) or row.operation.channel != channel:
            return row
        return replace(row, operation=replace(row.operation, handle=handle))

    return protocol.with_roles([_map_rows(role, change) for role in protocol.roles], checked=False)


def rewrite(text: str, at: str, old: Expr, new: Expr, *, roles: Iterable[str] = ()) -> Edit:
    """`new` for `old` in every expression of the rows at step `at`; an error if it is nowhere there."""

    def change(role: Role) -> Role:
        if not any(old in walk(e) for row in role.rows_at(at) for e in row_expressions(row)):
            raise SpecError(f"step {at!r} of role {role.name!r} does not read {show(old)}")
        return _map_rows(
            role, lambda row: _rewritten(row, lambda e: new if e == old else None) if row.at == at else row
        )

    return _per_role(text, at, roles, change)


def everywhere(text: str, replacement: Callable[[Expr], Expr | None]) -> Edit:
    """Every expression of every row with `replacement` applied (see `language.substitute`)."""

    def apply(protocol: Protocol) -> Protocol:
        roles = [_map_rows(role, lambda row: _rewritten(row, replacement)) for role in protocol.roles]
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


def surplus_post(channel: Channel, fields: Fields, *, after: str, roles: Iterable[str]) -> Edit:
    """A message that no row receives: posted after step `after` in every pass, its handle kept and awaited."""

    def apply(protocol: Protocol) -> Protocol:
        post = insert(f"post {channel.name}", Post(channel.name, fields), after=f"await {channel.name}", roles=roles)
        wait = insert(f"await {channel.name}", Await(channel.name), after=after, when=Posted(channel.name), roles=roles)
        return post(wait(add_channel(channel)(protocol)))

    return Edit(f"a surplus post on {channel.name!r}", apply)
