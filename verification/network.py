"""The wires of an instance and the reference meaning of their transport contracts (`spec.transports` defines them).

Every predicate reads the state only through what is on the wires and the rows that the two ends stand at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from headway.spec.language import SpecError
from headway.spec.table import Gate, Post, Probe, Protocol, Receive, Row
from headway.spec.transports import Transport
from headway.verification.states import Edge, Message, State, Wire

Standing = Callable[[int], Row | None]


class Network:
    """All edges and wires between `ranks` ranks, each channel under its transport."""

    def __init__(self, protocol: Protocol, ranks: int, default: Transport, transports: Mapping[str, Transport]) -> None:
        for name in transports:
            protocol.channel(name)
        self._protocol = protocol
        self.transports = {c.name: transports.get(c.name, default) for c in protocol.channels}
        self.edges: tuple[Edge, ...] = tuple(
            Edge(channel.name, source, (source + 1) % ranks)
            for channel in (protocol.channels if ranks > 1 else ())
            for source in (range(ranks - 1) if channel.path == "forward" else (ranks - 1,))
        )
        self.outgoing = {(edge.source, edge.channel): i for i, edge in enumerate(self.edges)}
        self.incoming = {(edge.sink, edge.channel): i for i, edge in enumerate(self.edges)}
        self.wires, self.wire_of = self._lay_wires()
        self.pairs: tuple[tuple[int, int], ...] = tuple(
            dict.fromkeys(_pair(e) for e in self.edges if self.transports[e.channel].kind == "lazy")
        )

    def _lay_wires(self) -> tuple[tuple[Wire, ...], tuple[int, ...]]:
        groups: dict[tuple[str, str, int, int], list[str]] = {}
        keys = []
        for channel, source, sink in self.edges:
            shared = self._protocol.channel(channel).wire
            if self.transports[channel].kind == "credits":
                key = ("pair", "", source, sink)
            elif shared:
                key = ("shared", shared, source, sink)
            else:
                key = ("own", channel, source, sink)
            groups.setdefault(key, []).append(channel)
            keys.append(key)
        for channels in groups.values():
            kinds = {"posted" if t.kind == "dropped" else t.name for t in (self.transports[c] for c in channels)}
            if len(kinds) > 1:
                raise SpecError(f"channels {', '.join(channels)} share a wire, but not a transport: {sorted(kinds)}")
        order = list(groups)
        wires = tuple(Wire(tuple(groups[key]), key[2], key[3]) for key in order)
        return wires, tuple(order.index(key) for key in keys)

    @cached_property
    def back_wires(self) -> dict[int, int]:
        """For a wire of credits, the one in the other direction."""
        of = {(w.source, w.sink): i for i, w in enumerate(self.wires) if self._contract(i).kind == "credits"}
        return {i: of[source, sink] for (sink, source), i in of.items() if (source, sink) in of}

    def _contract(self, wire: int) -> Transport:
        return self.transports[self.wires[wire].channels[0]]

    def transport(self, edge: int) -> Transport:
        """The contract of an edge."""
        return self.transports[self.edges[edge].channel]

    # --- what the receiver offers ----------------------------------------------------------------------------

    def at_receive(self, state: State, standing: Standing, wire: int) -> bool:
        """Whether the sink stands at a receive that takes from this wire."""
        row = standing(self.wires[wire].sink)
        if row is None or not isinstance(row.operation, Receive):
            return False
        edge = self.incoming[self.wires[wire].sink, row.operation.channel]
        return self.wire_of[edge] == wire and not state.stashes[edge]

    def receiving(self, state: State, standing: Standing, wire: int) -> bool:
        """Whether the sink's receive has begun: under credits, only after its own earlier sends to that peer."""
        if not self.at_receive(state, standing, wire):
            return False
        back = self.back_wires.get(wire)
        if back is None:
            return True
        sent = len(state.queues[back])
        if sent <= self._contract(back).credits:
            return True
        peer_has_begun = len(state.queues[wire]) <= self._contract(wire).credits
        return sent == 1 and peer_has_begun and self.at_receive(state, standing, back)

    def can_take(self, state: State, standing: Standing, edge: int) -> bool:
        """Whether the receiver, standing at its receive on this edge, can take a message from its stash or wire."""
        if state.stashes[edge]:
            return True
        wire = self.wire_of[edge]
        queue = state.queues[wire]
        return bool(queue) and queue[0].values is not None and self.receiving(state, standing, wire)

    def evidence(self, state: State, standing: Standing, edge: int, gate: Gate | Probe) -> bool:
        """Whether the gate's counter shows a message that this receiver has not taken yet."""
        wire = self.wires[self.wire_of[edge]]
        channels = (gate.channel,) if gate.scope == "channel" else wire.channels
        if state.stashes[edge] or any(m.channel in channels for m in state.queues[self.wire_of[edge]]):
            return True
        row = standing(wire.source)
        at_post = row is not None and isinstance(row.operation, Post) and row.operation.channel in channels
        return gate.counter == "attempted" and at_post

    # --- what the sender may do ------------------------------------------------------------------------------

    def can_post(self, state: State, standing: Standing, edge: int) -> bool:
        """Whether a post on this edge returns now."""
        transport, wire = self.transport(edge), self.wire_of[edge]
        if transport.kind == "rendezvous" or (transport.kind == "stream_ordered" and transport.credits == 0):
            return not state.queues[wire] and self.receiving(state, standing, wire)
        if transport.kind == "stream_ordered":
            return len(state.queues[wire]) < transport.credits
        if transport.kind == "lazy" and not state.opened[self.pairs.index(_pair(self.edges[edge]))]:
            return self._calls(state, standing, edge)
        return True

    def _calls(self, state: State, standing: Standing, edge: int) -> bool:
        """Whether the sink of `edge` stands at an operation that makes its communicator with the source."""
        peer, pair = self.edges[edge].sink, _pair(self.edges[edge])
        row = standing(peer)
        operation = None if row is None else row.operation
        if isinstance(operation, Receive):
            called = self.incoming[peer, operation.channel]
            if state.stashes[called]:
                return False
        elif isinstance(operation, Post):
            called = self.outgoing[peer, operation.channel]
        else:
            return False
        return self.transport(called).kind == "lazy" and _pair(self.edges[called]) == pair

    def is_done(self, state: State, standing: Standing, edge: int) -> bool:
        """Whether the last send on this edge is complete."""
        transport, wire, channel = self.transport(edge), self.wire_of[edge], self.edges[edge].channel
        queue = state.queues[wire]
        position = max((i for i, message in enumerate(queue) if message.channel == channel), default=None)
        if transport.kind == "stream_ordered" or position is None:
            return True
        if queue[position].values is None:
            return False
        return position < transport.credits or (position == 0 and self.receiving(state, standing, wire))

    def forgets(self, edge: int, post: Post) -> bool:
        """Whether this post keeps no handle."""
        return post.handle == "drop" or self.transport(edge).kind == "dropped"

    def cancels(self, edge: int) -> bool:
        """Whether a send without a handle is lost. A device stream performs it all the same."""
        return self.transport(edge).kind in ("posted", "dropped")

    def after_post(
        self, state: State, standing: Standing, edge: int, post: Post, message: Message, held: bool
    ) -> tuple[Message, ...]:
        """What is on the wire after a post, with the messages that it loses marked so."""
        wire = self.wire_of[edge]
        queue = (*state.queues[wire], message)
        lost_from = next((i for i, m in enumerate(queue) if m.values is None), len(queue))
        if self.cancels(edge):
            if post.handle == "overwrite" and held and not self.is_done(state, standing, edge):
                lost_from = min(lost_from, max(i for i, m in enumerate(queue[:-1]) if m.channel == message.channel))
            if self.forgets(edge, post) and (len(queue) > 1 or not self.receiving(state, standing, wire)):
                lost_from = min(lost_from, len(queue) - 1)
        lost = sorted({m.channel for m in queue[lost_from:]})  # they are never delivered: which they were is no matter
        return (*queue[:lost_from], *(Message(channel, None) for channel in lost))

    def opened_by(self, state: State, edge: int) -> tuple[bool, ...]:
        """Which pairs have their communicator after a post on this edge."""
        if self.transport(edge).kind != "lazy":
            return state.opened
        pair = _pair(self.edges[edge])
        return tuple(was or pair == this for was, this in zip(state.opened, self.pairs, strict=True))


def _pair(edge: Edge) -> tuple[int, int]:
    return min(edge.source, edge.sink), max(edge.source, edge.sink)
