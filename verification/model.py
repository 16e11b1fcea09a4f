"""The reference meaning of a table for P ranks under a transport: states, enabled rows, successors, broken laws.

Written for clarity: expressions go through `spec.language.evaluate`. Faster engines must agree with it state by state.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from headway.spec.language import Environment, SpecError, Value, evaluate, static_value
from headway.spec.table import (
    Await,
    Channel,
    Gate,
    Local,
    Post,
    Protocol,
    Receive,
    Role,
    Row,
    domain_values,
    history_depths,
    pass_window,
)
from headway.spec.transports import POSTED, Transport


class RankState(NamedTuple):
    """Where one rank is and what it knows. `history[v]` holds a variable's values at the end of earlier passes, latest first."""

    location: str
    this_pass: int
    variables: tuple[Value, ...]
    history: tuple[tuple[Value, ...], ...]
    held: tuple[str, ...]  # channels whose handle this rank has posted and not awaited


Message = tuple[Value, ...]


class State(NamedTuple):
    """One state of the whole pipeline; `queues[i]` holds the messages of `Model.edges[i]`, oldest first."""

    ranks: tuple[RankState, ...]
    queues: tuple[tuple[Message, ...], ...]


class Edge(NamedTuple):
    """A channel between two particular ranks."""

    channel: str
    source: int
    sink: int


class Step(NamedTuple):
    """One executed row: by which rank, in which pass, and what it sent, took or returned."""

    rank: int
    row: str
    this_pass: int
    slot: int
    detail: str


class Broken(NamedTuple):
    """A broken law: its name, the rank and row that broke it, and what was found."""

    law: str
    rank: int
    row: str
    finding: str


@dataclass(frozen=True)
class Model:
    """A table instantiated for `ranks` ranks and `slots` slots under one transport contract."""

    protocol: Protocol
    ranks: int
    slots: int
    transport: Transport = POSTED

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise SpecError(f"ranks = {self.ranks}; allowed: 1 or more")
        if self.slots < self.ranks:
            raise SpecError(f"slots = {self.slots} is below ranks = {self.ranks}; allowed: {self.ranks} or more")
        if self.transport != POSTED:
            raise SpecError(f"transport {self.transport.name!r}: the reference model knows posted sends only")

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """The role of each rank."""
        return tuple(self.protocol.role_of(rank, self.ranks) for rank in range(self.ranks))

    @cached_property
    def parameters(self) -> tuple[dict[str, int], ...]:
        """The parameters of each rank."""
        return tuple({"P": self.ranks, "L": self.slots, "R": rank} for rank in range(self.ranks))

    @cached_property
    def window(self) -> int:
        """The modulus of pass numbers."""
        return pass_window(self.protocol, self.ranks, self.slots)

    @cached_property
    def depths(self) -> tuple[dict[str, int], ...]:
        """How far back each rank's variables are read."""
        return tuple(history_depths(self.roles[r], self.parameters[r]) for r in range(self.ranks))

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All channels between particular ranks."""
        if self.ranks == 1:
            return ()
        result = []
        for channel in self.protocol.channels:
            if channel.path == "forward":
                result += [Edge(channel.name, rank, rank + 1) for rank in range(self.ranks - 1)]
            else:
                result.append(Edge(channel.name, self.ranks - 1, 0))
        return tuple(result)

    @cached_property
    def outgoing(self) -> Mapping[tuple[int, str], int]:
        """Index of the edge on which a rank posts."""
        return {(edge.source, edge.channel): i for i, edge in enumerate(self.edges)}

    @cached_property
    def incoming(self) -> Mapping[tuple[int, str], int]:
        """Index of the edge from which a rank receives."""
        return {(edge.sink, edge.channel): i for i, edge in enumerate(self.edges)}

    def initial(self) -> State:
        """All ranks at their start, nothing on any wire."""
        ranks = []
        for role, depths in zip(self.roles, self.depths, strict=True):
            history = tuple((role.variable(name).initial,) * depth for name, depth in depths.items())
            ranks.append(RankState(role.start, 0, tuple(v.initial for v in role.variables), history, ()))
        return State(tuple(ranks), ((),) * len(self.edges))

    def environment(self, state: State, rank: int, got: Mapping[str, Value]) -> Environment:
        """What expressions of `rank` read in `state`."""
        mine, role = state.ranks[rank], self.roles[rank]
        names = list(self.depths[rank])
        return Environment(
            dict(zip((v.name for v in role.variables), mine.variables, strict=True)),
            self.parameters[rank],
            got,
            lambda name, lag: mine.history[names.index(name)][lag - 1],
            lambda channel: channel in mine.held,
            mine.this_pass,
            self.window,
        )

    def row_at(self, state: State, rank: int) -> Row | None:
        """The one row whose guard holds; None at the end of the role."""
        role, location = self.roles[rank], state.ranks[rank].location
        if location == role.end:
            return None
        env = self.environment(state, rank, {})
        held = [row for row in role.rows_at(location) if evaluate(row.guard, env)]
        if len(held) != 1:
            raise SpecError(f"rank {rank} at {location!r}: {len(held)} guards hold in {env.variables}")
        return held[0]

    def waits_for(self, state: State, rank: int) -> int | None:
        """The rank that `rank` cannot go on without, or None when its row is enabled or it is done."""
        row = self.row_at(state, rank)
        if row is None or self.enabled(state, rank, row):
            return None
        operation = row.operation
        if isinstance(operation, Await):
            return self.edges[self.outgoing[rank, operation.channel]].sink
        if isinstance(operation, Receive | Gate):
            return self.edges[self.incoming[rank, operation.channel]].source
        return None

    def enabled(self, state: State, rank: int, row: Row) -> bool:
        """Whether the row's operation can be done now. Once it can, it can until this rank does it."""
        operation = row.operation
        if isinstance(operation, Receive | Gate):
            return bool(state.queues[self.incoming[rank, operation.channel]])
        if isinstance(operation, Await):
            edge = self.outgoing[rank, operation.channel]
            left = len(state.queues[edge])
            return left == 0 or (left == 1 and self._receiving(state, edge))
        return True

    def _receiving(self, state: State, edge: int) -> bool:
        row = self.row_at(state, self.edges[edge].sink)
        operation = None if row is None else row.operation
        return isinstance(operation, Receive) and operation.channel == self.edges[edge].channel

    def successors(self, state: State, rank: int) -> Iterator[tuple[Step, State | Broken]]:
        """Every way in which `rank` can take its next step; a broken law stands for the state it would lead to."""
        row = self.row_at(state, rank)
        if row is None or not self.enabled(state, rank, row):
            return
        operation = row.operation
        if isinstance(operation, Local):
            yield from self._local(state, rank, row, operation)
        elif isinstance(operation, Receive):
            yield self._receive(state, rank, row, operation)
        elif isinstance(operation, Post):
            yield self._post(state, rank, row, operation)
        elif isinstance(operation, Await):
            yield self._await(state, rank, row, operation)
        else:
            yield self._move(state, rank, row, {}, state.queues, state.ranks[rank].held, "")

    def _local(self, state: State, rank: int, row: Row, operation: Local) -> Iterator[tuple[Step, State | Broken]]:
        names = [name for name, _ in operation.returns]
        domains = [domain_values(domain, self.parameters[rank], self.window) for _, domain in operation.returns]
        for values in itertools.product(*domains):
            got = dict(zip(names, values, strict=True))
            if evaluate(row.assume, self.environment(state, rank, got)):
                detail = ", ".join(f"{name} = {show_value(value)}" for name, value in got.items())
                yield self._move(state, rank, row, got, state.queues, state.ranks[rank].held, detail)

    def _receive(self, state: State, rank: int, row: Row, operation: Receive) -> tuple[Step, State | Broken]:
        edge = self.incoming[rank, operation.channel]
        message = state.queues[edge][0]
        got = dict(zip((name for name, _ in self.protocol.channel(operation.channel).fields), message, strict=True))
        detail = f"takes {self.describe(operation.channel, message)}"
        step = self._step(state, rank, row, detail)
        env = self.environment(state, rank, got)
        for name, expected in operation.expect:
            if evaluate(expected, env) != got[name]:
                finding = f"{name} is {show_value(got[name])}, expected {show_value(evaluate(expected, env))}"
                return step, Broken("message identity", rank, row.name, f"{detail}: {finding}")
        queues = _with(state.queues, edge, state.queues[edge][1:])
        return self._move(state, rank, row, got, queues, state.ranks[rank].held, detail)

    def _post(self, state: State, rank: int, row: Row, operation: Post) -> tuple[Step, State | Broken]:
        channel, edge = self.protocol.channel(operation.channel), self.outgoing[rank, operation.channel]
        env = self.environment(state, rank, {})
        values = {name: evaluate(expr, env) for name, expr in operation.fields}
        message = tuple(values[name] for name, _ in channel.fields)
        detail = f"posts {self.describe(operation.channel, message)}"
        step, held = self._step(state, rank, row, detail), state.ranks[rank].held
        if operation.channel in held:
            return step, Broken("handle custody", rank, row.name, f"{detail} while the last handle is not awaited")
        queue = (*state.queues[edge], message)
        if len(queue) > static_value(channel.capacity, self.parameters[rank]):
            return step, Broken("bounded channel", rank, row.name, f"{detail}: {len(queue)} messages in flight")
        held = tuple(sorted((*held, operation.channel)))
        return self._move(state, rank, row, {}, _with(state.queues, edge, queue), held, detail)

    def _await(self, state: State, rank: int, row: Row, operation: Await) -> tuple[Step, State | Broken]:
        held = state.ranks[rank].held
        if operation.channel not in held:
            finding = f"awaits {operation.channel!r}, where no handle is held"
            return self._step(state, rank, row, ""), Broken("handle custody", rank, row.name, finding)
        left = tuple(channel for channel in held if channel != operation.channel)
        return self._move(state, rank, row, {}, state.queues, left, "")

    def _step(self, state: State, rank: int, row: Row, detail: str) -> Step:
        this_pass = state.ranks[rank].this_pass
        return Step(rank, row.name, this_pass, this_pass % self.slots, detail)

    def _move(
        self,
        state: State,
        rank: int,
        row: Row,
        got: Mapping[str, Value],
        queues: tuple[tuple[Message, ...], ...],
        held: tuple[str, ...],
        detail: str,
    ) -> tuple[Step, State | Broken]:
        mine, role = state.ranks[rank], self.roles[rank]
        env = self.environment(state, rank, got)
        effects = {name: evaluate(expr, env) for name, expr in row.effects}
        for name, value in effects.items():
            allowed = domain_values(role.variable(name).domain, self.parameters[rank], self.window)
            if value not in allowed:
                finding = f"{name} becomes {show_value(value)}; allowed: {', '.join(map(show_value, allowed))}"
                return self._step(state, rank, row, detail), Broken("domains", rank, row.name, finding)
        names = [variable.name for variable in role.variables]
        variables = tuple(effects.get(name, old) for name, old in zip(names, mine.variables, strict=True))
        this_pass, history = mine.this_pass, mine.history
        if row.advances:
            this_pass = (this_pass + 1) % self.window
            history = tuple(
                (variables[names.index(name)], *old[:-1])
                for name, old in zip(self.depths[rank], mine.history, strict=True)
            )
            for other, theirs in enumerate(state.ranks):
                if (this_pass - theirs.this_pass) % self.window == self.window // 2:
                    finding = f"rank {rank} is {self.window // 2} passes from rank {other}"
                    return self._step(state, rank, row, detail), Broken("bounded lead", rank, row.name, finding)
        new = RankState(row.to, this_pass, variables, history, held)
        return self._step(state, rank, row, detail), State(_with(state.ranks, rank, new), queues)

    def ended(self, state: State) -> bool:
        """Whether every rank is at its end."""
        return all(mine.location == role.end for mine, role in zip(state.ranks, self.roles, strict=True))

    def quiescence(self, state: State) -> Broken | None:
        """What is wrong when every rank is at its end: a message that nobody took, a handle that nobody awaited."""
        for edge, queue in zip(self.edges, state.queues, strict=True):
            if queue:
                finding = f"{self.describe(edge.channel, queue[0])} to rank {edge.sink} is never received"
                return Broken("matched traffic", edge.source, "end", finding)
        for rank, mine in enumerate(state.ranks):
            if mine.held:
                return Broken("handle custody", rank, "end", f"the handle on {mine.held[0]!r} is never awaited")
        return None

    def describe(self, channel: str, message: Message) -> str:
        """A message in words."""
        return _describe(self.protocol.channel(channel), message)


def _describe(channel: Channel, message: Message) -> str:
    fields = ", ".join(f"{n} {show_value(v)}" for (n, _), v in zip(channel.fields, message, strict=True))
    return f"{channel.name}({fields})"


def show_value(value: Value) -> str:
    """A value as the table writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


T = TypeVar("T")


def _with(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
