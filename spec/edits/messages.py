"""What is posted, received and kept: fields, identities, channels, handles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal

from headway.spec.edits.base import Edit, change_acting, map_rows, per_role
from headway.spec.edits.order import drop_step, insert
from headway.spec.language import Domain, Expr, Got, Posted, SpecError, show
from headway.spec.table import Await, Channel, Fields, Operation, Post, Protocol, Receive, Row


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
    return per_role(text, at, roles, lambda role: change_acting(role, at, set_one))


def forget(at: str, field: str, *, roles: Iterable[str] = ()) -> Edit:
    """The receive at step `at` no longer compares `field`."""

    def forget_one(row: Row) -> Row:
        if not isinstance(row.operation, Receive) or field not in dict(row.operation.expect):
            raise SpecError(f"step {at!r} compares no field {field!r}")
        kept = tuple(pair for pair in row.operation.expect if pair[0] != field)
        return replace(row, operation=replace(row.operation, expect=kept))

    text = f"do not compare {field} at {at!r}"
    return per_role(text, at, roles, lambda role: change_acting(role, at, forget_one))


def swap_channel(at: str, channel: str, *, roles: Iterable[str] = ()) -> Edit:
    """The operation of step `at` on another channel."""

    def swap_one(row: Row) -> Row:
        if not isinstance(row.operation, Post | Receive | Await):
            raise SpecError(f"step {at!r} uses no channel")
        return replace(row, operation=replace(row.operation, channel=channel))

    text = f"use channel {channel!r} at {at!r}"
    return per_role(text, at, roles, lambda role: change_acting(role, at, swap_one))


def set_operation(at: str, operation: Operation, *, roles: Iterable[str] = ()) -> Edit:
    """Another operation at step `at`, with the same guard and effects."""
    return per_role(
        f"another operation at {at!r}",
        at,
        roles,
        lambda role: change_acting(role, at, lambda row: replace(row, operation=operation)),
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
        roles = tuple(map_rows(role, grow) for role in protocol.roles)
        return replace(protocol, channels=channels, roles=roles, checked=False)

    return Edit(f"add field {field!r} to channel {channel!r}", apply)


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

    return protocol.with_roles([map_rows(role, change) for role in protocol.roles], checked=False)


def surplus_post(channel: Channel, fields: Fields, *, after: str, roles: Iterable[str]) -> Edit:
    """A message that no row receives: posted after step `after` in every pass, its handle kept and awaited."""

    def apply(protocol: Protocol) -> Protocol:
        post = insert(f"post {channel.name}", Post(channel.name, fields), after=f"await {channel.name}", roles=roles)
        wait = insert(f"await {channel.name}", Await(channel.name), after=after, when=Posted(channel.name), roles=roles)
        return post(wait(add_channel(channel)(protocol)))

    return Edit(f"a surplus post on {channel.name!r}", apply)
