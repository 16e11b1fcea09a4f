"""The reference meaning of a table for P ranks under transports: states, enabled rows, successors, broken laws.

Written for clarity: expressions go through `spec.language.evaluate`. Faster engines must agree with it state by state.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from headway.spec.language import Environment, Slot, SpecError, ThisPass, Value, evaluate, static_value, walk
from headway.spec.table import (
    Await,
    Channel,
    Collective,
    Gate,
    Local,
    Post,
    Probe,
    Protocol,
    Receive,
    Role,
    Row,
    domain_values,
    history_depths,
    pass_window,
    row_expressions,
)
from headway.spec.transports import POSTED, Transport
from headway.verification.network import Network
from headway.verification.states import STOPPED, Broken, Message, RankState, State, Step, show_value


@dataclass(frozen=True)
class Model:
    """A table instantiated for `ranks` ranks and `slots` slots.

    `transport` is the contract of every channel that `transports` does not name. With `gate_timeouts` a closed gate may
    at any time give up, which stops the whole group (a fail-stop, no violation).
    """

    protocol: Protocol
    ranks: int
    slots: int
    transport: Transport = POSTED
    transports: Mapping[str, Transport] = field(default_factory=dict)
    gate_timeouts: bool = False

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise SpecError(f"ranks = {self.ranks}; allowed: 1 or more")
        if self.slots < 1:
            raise SpecError(f"slots = {self.slots}; allowed: 1 or more")

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
        """The modulus of pass numbers; 1 when no row reads them: then they are no part of the state."""
        reads = (
            node for role in self.roles for row in role.rows for expr in row_expressions(row) for node in walk(expr)
        )
        if not any(isinstance(node, ThisPass | Slot) for node in reads):
            return 1
        return pass_window(self.protocol, self.ranks, self.slots)

    @cached_property
    def depths(self) -> tuple[dict[str, int], ...]:
        """How far back each rank's variables are read."""
        return tuple(history_depths(self.roles[r], self.parameters[r]) for r in range(self.ranks))

    @cached_property
    def network(self) -> Network:
        """The wires and their contracts."""
        return Network(self.protocol, self.ranks, self.transport, self.transports)

    def initial(self) -> State:
        """All ranks at their start, nothing on any wire."""
        ranks = []
        for role, depths in zip(self.roles, self.depths, strict=True):
            history = tuple((role.variable(name).initial,) * depth for name, depth in depths.items())
            ranks.append(RankState(role.start, 0, tuple(v.initial for v in role.variables), history, ()))
        network = self.network
        empty: tuple[Message, ...] = ()
        return State(
            tuple(ranks), (empty,) * len(network.wires), (empty,) * len(network.edges), (False,) * len(network.pairs)
        )

    # --- one rank alone --------------------------------------------------------------------------------------

    def environment(self, mine: RankState, rank: int, got: Mapping[str, Value]) -> Environment:
        """What expressions of `rank` read when it is in the state `mine`."""
        role = self.roles[rank]
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

    def row_of(self, mine: RankState, rank: int) -> Row | None:
        """The one row whose guard holds; None at the end of the role."""
        role, location = self.roles[rank], mine.location
        if location == role.end:
            return None
        env = self.environment(mine, rank, {})
        held = [row for row in role.rows_at(location) if evaluate(row.guard, env)]
        if len(held) != 1:
            raise SpecError(f"rank {rank} at {location!r}: {len(held)} guards hold in {env.variables}")
        return held[0]

    def outcomes(self, mine: RankState, rank: int, row: Row) -> Iterator[dict[str, Value]]:
        """What a local step may return in this state."""
        operation = row.operation
        returns = operation.returns if isinstance(operation, Local) else ()
        domains = [domain_values(domain, self.parameters[rank], self.window) for _, domain in returns]
        for values in itertools.product(*domains):
            got = dict(zip((name for name, _ in returns), values, strict=True))
            if evaluate(row.assume, self.environment(mine, rank, got)):
                yield got

    def posted_message(self, mine: RankState, rank: int, post: Post) -> Message:
        """The message that a post sends in this state."""
        env = self.environment(mine, rank, {})
        values = {name: evaluate(expr, env) for name, expr in post.fields}
        return Message(post.channel, tuple(values[name] for name, _ in self.protocol.channel(post.channel).fields))

    def mismatch(self, mine: RankState, rank: int, receive: Receive, got: Mapping[str, Value]) -> str | None:
        """What is wrong with the identity of a message that this rank would take in this state, if anything."""
        env = self.environment(mine, rank, got)
        for name, expected in receive.expect:
            if evaluate(expected, env) != got[name]:
                return f"{name} is {show_value(got[name])}, expected {show_value(evaluate(expected, env))}"
        return None

    def moved(self, mine: RankState, rank: int, row: Row, got: Mapping[str, Value]) -> RankState | str:
        """The rank after the effects of a row, its handles untouched; or which value leaves its domain."""
        role = self.roles[rank]
        env = self.environment(mine, rank, got)
        effects = {name: evaluate(expr, env) for name, expr in row.effects}
        for name, value in effects.items():
            allowed = domain_values(role.variable(name).domain, self.parameters[rank], self.window)
            if value not in allowed:
                return f"{name} becomes {show_value(value)}; allowed: {', '.join(map(show_value, allowed))}"
        names = [variable.name for variable in role.variables]
        variables = tuple(effects.get(name, old) for name, old in zip(names, mine.variables, strict=True))
        this_pass, history = mine.this_pass, mine.history
        if row.advances:
            this_pass = (this_pass + 1) % self.window
            history = tuple(
                (variables[names.index(name)], *old[:-1])
                for name, old in zip(self.depths[rank], mine.history, strict=True)
            )
        return mine._replace(location=row.to, this_pass=this_pass, variables=variables, history=history)

    # --- all ranks -------------------------------------------------------------------------------------------

    def row_at(self, state: State, rank: int) -> Row | None:
        """The row that `rank` stands at; None at the end of its role or when the group has stopped."""
        return None if state == STOPPED else self.row_of(state.ranks[rank], rank)

    def enabled(self, state: State, rank: int, row: Row) -> bool:
        """Whether the row's operation can be done now."""
        operation, network = row.operation, self.network

        def standing(other: int) -> Row | None:
            return self.row_at(state, other)

        if isinstance(operation, Receive):
            return network.can_take(state, standing, network.incoming[rank, operation.channel])
        if isinstance(operation, Gate):
            return network.evidence(state, standing, network.incoming[rank, operation.channel], operation)
        if isinstance(operation, Post):
            return network.can_post(state, standing, network.outgoing[rank, operation.channel])
        if isinstance(operation, Await):
            held = operation.channel in state.ranks[rank].held
            return not held or network.is_done(state, standing, network.outgoing[rank, operation.channel])
        if isinstance(operation, Collective):
            return self._missing(state, rank, operation.name) is None
        return True

    def _missing(self, state: State, rank: int, name: str) -> int | None:
        """The first rank that has not entered the collective that `rank` stands at; None when all have."""
        turn = name in state.ranks[rank].turns
        for other, theirs in enumerate(state.ranks):
            row = self.row_at(state, other)
            inside = row is not None and row.operation == Collective(name)
            if (name in theirs.turns) == turn and not inside:
                return other
        return None

    def waits_for(self, state: State, rank: int) -> int | None:
        """The rank that `rank` cannot go on without, or None when its row is enabled or it is done."""
        row = self.row_at(state, rank)
        if row is None or self.enabled(state, rank, row):
            return None
        operation, network = row.operation, self.network
        if isinstance(operation, Await | Post):
            return network.edges[network.outgoing[rank, operation.channel]].sink
        if isinstance(operation, Receive | Gate):
            return network.edges[network.incoming[rank, operation.channel]].source
        return self._missing(state, rank, operation.name) if isinstance(operation, Collective) else None

    def successors(self, state: State, rank: int) -> Iterator[tuple[Step, State | Broken]]:
        """Every way in which `rank` can take its next step; a broken law stands for the state it would lead to."""
        row = self.row_at(state, rank)
        if row is None:
            return
        operation, mine = row.operation, state.ranks[rank]
        if not self.enabled(state, rank, row):
            if self.gate_timeouts and isinstance(operation, Gate):
                yield self._step(state, rank, row, "gives up after its bound: the group stops"), STOPPED
            return
        if isinstance(operation, Local):
            for got in self.outcomes(mine, rank, row):
                detail = ", ".join(f"{name} = {show_value(value)}" for name, value in got.items())
                yield self._move(state, rank, row, mine, got, detail)
        elif isinstance(operation, Receive):
            yield self._receive(state, rank, row, operation)
        elif isinstance(operation, Post):
            yield self._post(state, rank, row, operation)
        elif isinstance(operation, Await):
            yield self._await(state, rank, row, operation)
        elif isinstance(operation, Probe):
            edge = self.network.incoming[rank, operation.channel]
            ready = self.network.evidence(state, lambda other: self.row_at(state, other), edge, operation)
            yield self._move(state, rank, row, mine, {"ready": ready}, f"ready = {show_value(ready)}")
        elif isinstance(operation, Collective):
            turns = tuple(sorted(set(mine.turns) ^ {operation.name}))
            yield self._move(state, rank, row, mine._replace(turns=turns), {}, "")
        else:
            yield self._move(state, rank, row, mine, {}, "")

    def _receive(self, state: State, rank: int, row: Row, operation: Receive) -> tuple[Step, State | Broken]:
        network, mine = self.network, state.ranks[rank]
        edge = network.incoming[rank, operation.channel]
        wire = network.wire_of[edge]
        if state.stashes[edge]:
            message = state.stashes[edge][0]
            state = state._replace(stashes=_with(state.stashes, edge, state.stashes[edge][1:]))
            detail = f"takes {self.describe(message)} from its stash"
        else:
            message = state.queues[wire][0]
            after = state._replace(queues=_with(state.queues, wire, state.queues[wire][1:]))
            detail = f"takes {self.describe(message)}"
            if message.channel != operation.channel:
                step = self._step(state, rank, row, f"puts {self.describe(message)} aside")
                shared = self.protocol.channel(operation.channel).wire
                if not shared or self.protocol.channel(message.channel).wire != shared:
                    return step, Broken("message identity", rank, row.name, f"{detail}, not {operation.channel}")
                other = network.incoming[rank, message.channel]
                return step, after._replace(stashes=_with(after.stashes, other, (*after.stashes[other], message)))
            state = after
        names = (name for name, _ in self.protocol.channel(operation.channel).fields)
        got = dict(zip(names, message.values or (), strict=True))
        wrong = self.mismatch(mine, rank, operation, got)
        if wrong is not None:
            finding = f"{detail}: {wrong}"
            return self._step(state, rank, row, detail), Broken("message identity", rank, row.name, finding)
        return self._move(state, rank, row, mine, got, detail)

    def _post(self, state: State, rank: int, row: Row, operation: Post) -> tuple[Step, State | Broken]:
        network, mine, channel = self.network, state.ranks[rank], operation.channel
        edge = network.outgoing[rank, channel]
        wire = network.wire_of[edge]
        message = self.posted_message(mine, rank, operation)
        detail = f"posts {self.describe(message)}"
        step, held = self._step(state, rank, row, detail), channel in mine.held
        if held and operation.handle != "overwrite":
            return step, Broken("handle custody", rank, row.name, f"{detail} while the last handle is not awaited")
        queue = network.after_post(state, lambda other: self.row_at(state, other), edge, operation, message, held)
        live = sum(m.channel == channel and m.values is not None for m in (*queue, *state.stashes[edge]))
        if live > static_value(self.protocol.channel(channel).capacity, self.parameters[rank]):
            return step, Broken("bounded channel", rank, row.name, f"{detail}: {live} messages in flight")
        if queue[-1].values is None:
            detail += ", which is lost"
        if not network.forgets(edge, operation):
            mine = mine._replace(held=tuple(sorted({*mine.held, channel})))
        state = state._replace(queues=_with(state.queues, wire, queue), opened=network.opened_by(state, edge))
        return self._move(state, rank, row, mine, {}, detail)

    def _await(self, state: State, rank: int, row: Row, operation: Await) -> tuple[Step, State | Broken]:
        mine, channel = state.ranks[rank], operation.channel
        if channel not in mine.held and not self.forgetful(rank, channel):
            finding = f"awaits {channel!r}, where no handle is held"
            return self._step(state, rank, row, ""), Broken("handle custody", rank, row.name, finding)
        left = tuple(held for held in mine.held if held != channel)
        return self._move(state, rank, row, mine._replace(held=left), {}, "")

    def forgetful(self, rank: int, channel: str) -> bool:
        """Whether some post of `rank` on `channel` keeps no handle: an await then finds an empty list."""
        edge = self.network.outgoing[rank, channel]
        return any(
            isinstance(row.operation, Post)
            and row.operation.channel == channel
            and self.network.forgets(edge, row.operation)
            for row in self.roles[rank].rows
        )

    def _step(self, state: State, rank: int, row: Row, detail: str) -> Step:
        this_pass = state.ranks[rank].this_pass
        return Step(rank, row.name, this_pass, this_pass % self.slots, detail)

    def _move(
        self, state: State, rank: int, row: Row, mine: RankState, got: Mapping[str, Value], detail: str
    ) -> tuple[Step, State | Broken]:
        step, new = self._step(state, rank, row, detail), self.moved(mine, rank, row, got)
        if isinstance(new, str):
            return step, Broken("domains", rank, row.name, new)
        if row.advances and self.window > 1:
            for other, theirs in enumerate(state.ranks):
                if (new.this_pass - theirs.this_pass) % self.window == self.window // 2:
                    finding = f"rank {rank} is {self.window // 2} passes from rank {other}"
                    return step, Broken("bounded lead", rank, row.name, finding)
        return step, state._replace(ranks=_with(state.ranks, rank, new))

    def ended(self, state: State) -> bool:
        """Whether every rank is at its end, or the group has been stopped."""
        return all(mine.location == role.end for mine, role in zip(state.ranks, self.roles, strict=False))

    def quiescence(self, state: State) -> Broken | None:
        """What is wrong when every rank is at its end: a message that nobody took, a handle that nobody awaited."""
        for edge, stash in enumerate(state.stashes):
            if stash:
                source, sink = self.network.edges[edge].source, self.network.edges[edge].sink
                finding = f"{self.describe(stash[0])} stays in the stash of rank {sink}"
                return Broken("matched traffic", source, "end", finding)
        for wire, queue in zip(self.network.wires, state.queues, strict=False):
            if queue:
                finding = f"{self.describe(queue[0])} to rank {wire.sink} is never received"
                return Broken("matched traffic", wire.source, "end", finding)
        for rank, mine in enumerate(state.ranks):
            if mine.held:
                return Broken("handle custody", rank, "end", f"the handle on {mine.held[0]!r} is never awaited")
        return None

    def with_transports(self, **transports: Transport) -> Model:
        """The same instance with other contracts for some channels."""
        return replace(self, transports={**self.transports, **transports})

    def describe(self, message: Message) -> str:
        """A message in words."""
        if message.values is None:
            return f"{message.channel} (lost)"
        return _describe(self.protocol.channel(message.channel), message.values)


def _describe(channel: Channel, values: tuple[Value, ...]) -> str:
    fields = ", ".join(f"{n} {show_value(v)}" for (n, _), v in zip(channel.fields, values, strict=True))
    return f"{channel.name}({fields})"


T = TypeVar("T")


def _with(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
