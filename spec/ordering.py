"""Who waits for whom: every wait that a table and its transports can cause, between neighbouring ranks of any pipeline.

A wait says that the row at one location of a rank's pass cannot be done before another location was left. Ranks are
named by their roles and passes by their distance, so that one wait stands for all ranks and all passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from headway.spec.language import Const, Expr, Op, Param, Posted, SpecError, show
from headway.spec.table import Await, Channel, Collective, Gate, Post, Protocol, Receive, Role, Row
from headway.spec.transports import Transport

# --- linear expressions over P and L -----------------------------------------------------------------------


@dataclass(frozen=True)
class Linear:
    """`one + ranks * P + slots * L`."""

    one: int = 0
    ranks: int = 0
    slots: int = 0

    def __add__(self, other: Linear) -> Linear:
        return Linear(self.one + other.one, self.ranks + other.ranks, self.slots + other.slots)

    def __neg__(self) -> Linear:
        return Linear(-self.one, -self.ranks, -self.slots)

    def __sub__(self, other: Linear) -> Linear:
        return self + -other

    def at(self, ranks: int, slots: int) -> int:
        """The value for given numbers of ranks and slots."""
        return self.one + self.ranks * ranks + self.slots * slots


def linear(expr: Expr | int) -> Linear:
    """A lag or an offset as a linear expression; raises `SpecError` when it is none."""
    if isinstance(expr, int):
        return Linear(expr)
    if isinstance(expr, Const) and isinstance(expr.value, int):
        return Linear(expr.value)
    if isinstance(expr, Param) and expr.name in ("P", "L"):
        return Linear(ranks=1) if expr.name == "P" else Linear(slots=1)
    if isinstance(expr, Op) and expr.kind in ("add", "sub"):
        left, right = linear(expr.args[0]), linear(expr.args[1])
        return left + right if expr.kind == "add" else left - right
    raise SpecError(f"{show(expr)} is not a sum of literals, P and L")


# --- neighbours --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pipelines:
    """The numbers of ranks for which something exists: `least` and more, or exactly `least`."""

    least: int
    only: bool = False

    def __contains__(self, ranks: object) -> bool:
        return ranks == self.least or (isinstance(ranks, int) and ranks > self.least and not self.only)


@dataclass(frozen=True)
class Neighbours:
    """Two roles whose ranks can be neighbours on a path: the source posts to the sink."""

    source: Role
    sink: Role
    path: str
    pipelines: Pipelines

    @property
    def hop(self) -> Linear:
        """The sink's rank number less the source's."""
        return Linear(1) if self.path == "forward" else Linear(1, -1)


_FORWARD = {
    ("first", "middle"): Pipelines(3),
    ("middle", "middle"): Pipelines(4),
    ("middle", "last"): Pipelines(3),
    ("first", "last"): Pipelines(2, only=True),
}


def pipelines_of(role: Role) -> Pipelines:
    """The numbers of ranks for which a role has ranks."""
    if role.place == "solo":
        return Pipelines(1, only=True)
    if role.place == "middle":
        return Pipelines(4 if role.parity == "even" else 3)
    return Pipelines(3 if role.place == "last" and role.parity == "even" else 2)


def neighbours(protocol: Protocol) -> tuple[Neighbours, ...]:
    """Every pair of roles that can be neighbours, along the pipeline and over the edge that closes the ring."""
    result = []
    for source in protocol.roles:
        for sink in protocol.roles:
            pipelines = _FORWARD.get((source.place, sink.place))
            if pipelines is not None and _parity(source) & {1 - p for p in _parity(sink)}:
                result.append(Neighbours(source, sink, "forward", pipelines))
            if (source.place, sink.place) == ("last", "first"):
                result.append(Neighbours(source, sink, "closing", pipelines_of(source)))
    return tuple(result)


def _parity(role: Role) -> set[int]:
    if role.place == "first":
        return {0}
    return {"any": {0, 1}, "even": {0}, "odd": {1}}[role.parity]


# --- waits -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A location of a role."""

    role: str
    location: str


@dataclass(frozen=True)
class Wait:
    """`later`, in any pass n, is not done before `earlier` in pass n - `passes` of the rank `hop` numbers below.

    `aging`: the same for every older pass of `earlier` in place of this one. `name` says which rows and why.
    """

    earlier: Point
    later: Point
    passes: Linear
    hop: Linear
    pipelines: Pipelines
    name: str
    aging: bool = False


@dataclass(frozen=True)
class Ordering:
    """All waits of a table whose channels have the given transports (every channel of the table must have one)."""

    protocol: Protocol
    transports: tuple[tuple[str, Transport], ...]

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        """Raises `SpecError` for a channel without a transport, or with one of which nothing can be proved."""
        return (*self._programs(), *self._wires())

    def _programs(self) -> Iterator[Wait]:
        for role in self.protocol.roles:
            for row in role.rows:
                if isinstance(row.operation, Collective):
                    raise SpecError(f"row {row.name!r} of role {role.name!r}: a collective is for models only")
                if row.to != role.end or row.advances:
                    passes = Linear(1 if row.advances else 0)
                    earlier, later = Point(role.name, row.at), Point(role.name, row.to)
                    yield Wait(earlier, later, passes, Linear(), pipelines_of(role), f"{role.name}: {row.name}")

    def _wires(self) -> Iterator[Wait]:
        transports = dict(self.transports)
        counted = [name for name, transport in self.transports if transport.kind == "credits"]
        if len(counted) > 1:  # they would share the order of issue of one pair of ranks
            raise SpecError(f"channels {', '.join(counted)}: credits are provable on one channel only")
        for pair in neighbours(self.protocol):
            for channel in self.protocol.channels:
                if channel.path == pair.path:
                    if channel.name not in transports:
                        raise SpecError(f"channel {channel.name!r}: no transport is given for it")
                    yield from _Wire(pair, channel, transports[channel.name]).waits()


WireOperation: TypeAlias = type[Post] | type[Receive] | type[Await] | type[Gate]


def uses(row: Row, kind: WireOperation, channel: str) -> bool:
    """Whether a row performs that kind of operation on the channel."""
    operation = row.operation
    return (
        isinstance(operation, kind)
        and isinstance(operation, Post | Receive | Await | Gate)
        and operation.channel == channel
    )


@dataclass(frozen=True)
class _Wire:
    pair: Neighbours
    channel: Channel
    transport: Transport

    def waits(self) -> Iterator[Wait]:
        """What each end waits for at the other; `spec.transports` defines the contracts."""
        kind, count = self.transport.kind, self.transport.credits
        if kind == "dropped":
            raise SpecError(f"channel {self.channel.name!r}: a dropped handle promises no delivery: nothing is proved")
        meets = kind in ("rendezvous", "lazy") or (kind == "stream_ordered" and count == 0)
        source, sink = self.pair.source, self.pair.sink
        for post in self._rows(source, Post):
            yield from self._downstream_of(post, meets)
            for receive in self._rows(sink, Receive):
                if meets:
                    yield from self._entering(receive, 0, post, "is a rendezvous with")
                elif kind == "stream_ordered":
                    yield from self._entering(receive, count, post, f"leaves at most {count} before", aging=True)
        for await_ in self._rows(source, Await) if kind in ("posted", "lazy", "credits") else ():
            age = youngest_handle(source, await_)
            for receive in self._rows(sink, Receive):
                yield from self._entering(receive, age + count, await_, "awaits", aging=True)

    def _downstream_of(self, post: Row, meets: bool) -> Iterator[Wait]:
        source, sink = self.pair.source, self.pair.sink
        done = [(post.at, 0)]
        reached = [(row.at, int(row.advances)) for row in _leading_to(source, post.at)]
        for receive in self._rows(sink, Receive):
            for earlier, passes in reached if meets else done:
                yield self._downstream(earlier, passes, receive, f"receives what {source.name} posts at {post.name}")
        for gate in self._rows(sink, Gate):
            attempted = isinstance(gate.operation, Gate) and gate.operation.counter == "attempted"
            for earlier, passes in reached if attempted else done:
                yield self._downstream(earlier, passes, gate, f"is gated on {source.name}: {post.name}")

    def _entering(self, receive: Row, age: int, later: Row, why: str, aging: bool = False) -> Iterator[Wait]:
        """The source's row, `age` passes after its post, waits until the sink has left a row before its receive."""
        source, sink = self.pair.source.name, self.pair.sink.name
        for before in _leading_to(self.pair.sink, receive.at):
            yield Wait(
                Point(sink, before.at),
                Point(source, later.at),
                Linear(int(before.advances) + age) - linear(self.channel.lag),
                -self.pair.hop,
                self.pair.pipelines,
                f"{source}: {later.name} {why} {sink}: {receive.name}",
                aging,
            )

    def _rows(self, role: Role, kind: WireOperation) -> list[Row]:
        return [row for row in role.rows if uses(row, kind, self.channel.name)]

    def _downstream(self, earlier: str, passes: int, later: Row, why: str) -> Wait:
        source, sink = self.pair.source.name, self.pair.sink.name
        distance = linear(self.channel.lag) + Linear(passes)
        name = f"{sink}: {later.name} {why}"
        return Wait(Point(source, earlier), Point(sink, later.at), distance, self.pair.hop, self.pair.pipelines, name)


def _leading_to(role: Role, location: str) -> list[Row]:
    return [row for row in role.rows if row.to == location]


def youngest_handle(role: Role, await_: Row) -> int:
    """0 if `await_` may complete a post of its own pass, 1 if only older ones; by following every path of the role."""
    if not isinstance(await_.operation, Await):
        raise SpecError(f"row {await_.name!r} awaits nothing")
    channel = await_.operation.channel
    held: dict[str, frozenset[str]] = {role.start: frozenset({"none"})}
    todo = [role.start]
    while todo:
        location = todo.pop()
        for row in role.rows_at(location):
            after = _handle_after(row, channel, held[location])
            if row.advances:
                after = frozenset("old" if state == "new" else state for state in after)
            if not after <= held.get(row.to, frozenset()):
                held[row.to] = held.get(row.to, frozenset()) | after
                todo.append(row.to)
    return 0 if "new" in held.get(await_.at, frozenset()) else 1


def _handle_after(row: Row, channel: str, before: frozenset[str]) -> frozenset[str]:
    conditions = _conjuncts(row.guard)
    if Posted(channel) in conditions:
        before = before - {"none"}
    if Op("not", (Posted(channel),)) in conditions:
        before = before & {"none"}
    operation = row.operation
    if before and isinstance(operation, Post) and operation.channel == channel:
        return frozenset({"new"})
    if before and isinstance(operation, Await) and operation.channel == channel:
        return frozenset({"none"})
    return before


def _conjuncts(guard: Expr) -> tuple[Expr, ...]:
    if isinstance(guard, Op) and guard.kind == "and":
        return (*_conjuncts(guard.args[0]), *_conjuncts(guard.args[1]))
    return (guard,)


def ordering(protocol: Protocol, transports: Mapping[str, Transport]) -> Ordering:
    """The ordering of a table under one transport for each channel."""
    return Ordering(protocol, tuple(transports.items()))
