"""Simulated wires in one process: every transport contract of `spec.transports`, over a hub's virtual time.

Each wait is a place where the rank parks with the contract's condition. Payloads cross in their encoded form, so that
two ranks never share an object that one of them may change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headway.spec.language import SpecError
from headway.spec.table import Channel, Gate
from headway.spec.table import Protocol as Table
from headway.spec.transports import Transport

Fields = tuple[int, ...]


class Place(Protocol):
    """Where a parked rank stands."""

    kind: str
    channel: str


class Baton(Protocol):
    """Who lets ranks wait (`engine.simulation.Hub`)."""

    now: int

    def wait_until(self, rank: int, kind: str, channel: str, ready: Callable[[], bool], bound: int | None) -> bool:
        """Park a rank until `ready`; False when `bound` nanoseconds passed first."""

    def standing(self, rank: int) -> Place | None:
        """Where a rank stands, once its operation has begun."""

    def wake(self, time: int, rank: int) -> None:
        """Look at a rank again at `time`."""


class Codec(Protocol):
    """How payloads of one channel cross."""

    def encode(self, payload: Any) -> Any:
        """The payload as it lies on the wire."""

    def decode(self, encoded: Any) -> Any:
        """The payload as the receiver gets it."""


@dataclass(slots=True, eq=False)
class Message:
    """One message on a wire or in a stash; a lost one blocks its wire for ever."""

    channel: str
    fields: Fields
    encoded: Any
    arrives: int
    taken: bool = False
    lost: bool = False


class SimulatedWire:
    """One FIFO from `source` to `sink`, shared by some channels of one contract."""

    def __init__(self, baton: Baton, transport: Transport, source: int, sink: int) -> None:
        self.transport, self.source, self.sink = transport, source, sink
        self._baton = baton
        self.channels: list[str] = []
        self.queue: list[Message] = []
        self.stashes: dict[str, list[Message]] = {}
        self.attempted: dict[str, int] = {}
        self.back: SimulatedWire | None = None  # under credits: the wire in the other direction

    def at_receive(self) -> bool:
        """Whether the sink stands at a receive that takes from this wire."""
        place = self._baton.standing(self.sink)
        return (
            place is not None
            and place.kind == "receive"
            and place.channel in self.channels
            and not self.stashes[place.channel]
        )

    def receiving(self) -> bool:
        """Whether the sink's receive has begun: under credits, only after its own earlier sends to that peer."""
        if not self.at_receive():
            return False
        back = self.back
        if back is None or len(back.queue) <= back.transport.credits:
            return True
        return len(back.queue) == 1 and len(self.queue) <= self.transport.credits and back.at_receive()

    def can_take(self, channel: str) -> bool:
        """Whether the sink, standing at its receive on `channel`, can take a message now."""
        if self.stashes[channel]:
            return True
        head = self.queue[0] if self.queue else None
        return head is not None and not head.lost and head.arrives <= self._baton.now and self.receiving()

    def is_done(self, message: Message) -> bool:
        """Whether the handle of `message` is done."""
        if message.taken or self.transport.kind == "stream_ordered":
            return True
        if message.lost:
            return False
        position = self.queue.index(message)
        return position < self.transport.credits or (position == 0 and self.receiving())


class SimulatedNetwork:
    """The wires of `ranks` ranks. `transports` maps channels to contracts.

    `latency(channel, source, ordinal, encoded)` is how long a message is on its way, in nanoseconds. Raises
    `SpecError` when channels that share a wire have different contracts.
    """

    def __init__(
        self,
        table: Table,
        ranks: int,
        baton: Baton,
        transports: Mapping[str, Transport],
        codecs: Mapping[str, Codec],
        latency: Callable[[str, int, int, Any], int] = lambda channel, source, ordinal, encoded: 0,
    ) -> None:
        self.table, self.ranks, self._baton = table, ranks, baton
        self._codecs, self._latency, self._transports = codecs, latency, transports
        self._opened: set[tuple[int, int]] = set()
        self._wires: dict[tuple[str, int, int], SimulatedWire] = {}
        for channel in table.channels if ranks > 1 else ():
            sources = range(ranks - 1) if channel.path == "forward" else (ranks - 1,)
            for source in sources:
                self._lay(channel, source, (source + 1) % ranks)
        self.outgoing: dict[tuple[int, str], SimulatedWire] = {}
        self.incoming: dict[tuple[int, str], SimulatedWire] = {}
        for wire in self._wires.values():
            for name in wire.channels:
                self.outgoing[wire.source, name] = self.incoming[wire.sink, name] = wire

    def _lay(self, channel: Channel, source: int, sink: int) -> None:
        transport = self._transports[channel.name]
        if transport.kind == "credits":
            key = ("credits", source, sink)
        else:
            key = (f"wire {channel.wire}" if channel.wire else f"channel {channel.name}", source, sink)
        wire = self._wires.setdefault(key, SimulatedWire(self._baton, transport, source, sink))
        if wire.transport != transport:
            raise SpecError(f"channels {wire.channels[0]!r} and {channel.name!r} share a wire, but not a transport")
        wire.channels.append(channel.name)
        wire.stashes[channel.name], wire.attempted[channel.name] = [], 0
        other = self._wires.get((key[0], sink, source))
        if transport.kind == "credits" and other is not None:
            wire.back, other.back = other, wire

    @property
    def wires(self) -> tuple[SimulatedWire, ...]:
        """All wires."""
        return tuple(self._wires.values())

    def leftovers(self) -> list[str]:
        """Messages that nobody took, in words."""
        left = [(w, m) for w in self.wires for m in (*w.queue, *(m for s in w.stashes.values() for m in s))]
        return [f"{m.channel}{m.fields} from rank {w.source} to rank {w.sink}" for w, m in left]

    def outgoing_ends(self, rank: int) -> dict[str, SimulatedOutgoing]:
        """The sending ends of a rank, by channel."""
        return {name: SimulatedOutgoing(self, w, name) for (r, name), w in self.outgoing.items() if r == rank}

    def incoming_ends(self, rank: int) -> dict[str, SimulatedIncoming]:
        """The receiving ends of a rank, by channel."""
        operations = [row.operation for row in self.table.role_of(rank, self.ranks).rows]
        gates = {operation.channel: operation for operation in operations if isinstance(operation, Gate)}
        return {
            name: SimulatedIncoming(self, wire, gates.get(name, Gate(name)))
            for (sink, name), wire in self.incoming.items()
            if sink == rank
        }

    def post(self, wire: SimulatedWire, channel: str, fields: Fields, payload: Any) -> Message:
        """Send a message."""
        encoded = self._codecs[channel].encode(payload)
        self._baton.wait_until(wire.source, "post", channel, lambda: self._can_post(wire), None)
        ordinal = wire.attempted[channel]
        wire.attempted[channel] += 1
        arrives = self._baton.now + self._latency(channel, wire.source, ordinal, encoded)
        if wire.queue:
            arrives = max(arrives, wire.queue[-1].arrives)
        message = Message(channel, fields, encoded, arrives)
        wire.queue.append(message)
        if wire.transport.kind == "dropped":
            self.forget(wire, message)
        if wire.transport.kind == "lazy":
            self._opened.add(_pair(wire))
        self._baton.wake(arrives, wire.sink)
        return message

    def forget(self, wire: SimulatedWire, message: Message) -> None:
        """Drop a handle: the message is lost if its receive is not posted; a device stream sends it all the same."""
        if wire.transport.kind in ("posted", "dropped") and not wire.is_done(message):
            message.lost = True

    def _can_post(self, wire: SimulatedWire) -> bool:
        transport = wire.transport
        if transport.kind == "rendezvous" or (transport.kind == "stream_ordered" and not transport.credits):
            return not wire.queue and wire.receiving()
        if transport.kind == "stream_ordered":
            return len(wire.queue) < transport.credits
        if transport.kind == "lazy" and _pair(wire) not in self._opened:
            return self._calls(wire)
        return True

    def _calls(self, wire: SimulatedWire) -> bool:
        """Whether the sink stands at an operation that makes its communicator with the source."""
        place = self._baton.standing(wire.sink)
        if place is None or place.kind not in ("post", "receive"):
            return False
        called = (self.outgoing if place.kind == "post" else self.incoming)[wire.sink, place.channel]
        if place.kind == "receive" and called.stashes[place.channel]:
            return False
        return called.transport.kind == "lazy" and _pair(called) == _pair(wire)

    def receive(self, wire: SimulatedWire, channel: str) -> tuple[Fields, Any]:
        """Take the next message of `channel`, putting other kinds on a shared wire aside."""
        while True:
            self._baton.wait_until(wire.sink, "receive", channel, lambda: wire.can_take(channel), None)
            if wire.stashes[channel]:
                message = wire.stashes[channel].pop(0)
                break
            message = wire.queue.pop(0)
            message.taken = True
            if message.channel == channel:
                break
            shared = self.table.channel(channel).wire
            if not shared or self.table.channel(message.channel).wire != shared:
                raise RuntimeError(f"a message of {message.channel!r} arrived at a receive of {channel!r}")
            wire.stashes[message.channel].append(message)
        return message.fields, self._codecs[channel].decode(message.encoded)

    def evidence(self, wire: SimulatedWire, gate: Gate) -> bool:
        """Whether the gate's counter shows a message that the receiver has not taken yet."""
        channels = (gate.channel,) if gate.scope == "channel" else tuple(wire.channels)
        if wire.stashes[gate.channel] or any(m.channel in channels for m in wire.queue):
            return True
        place = self._baton.standing(wire.source)
        at_post = place is not None and place.kind == "post" and place.channel in channels
        return gate.counter == "attempted" and at_post

    def gate(self, wire: SimulatedWire, gate: Gate, bound: int | None) -> bool:
        """Wait for the evidence; False when `bound` nanoseconds passed first."""
        return self._baton.wait_until(wire.sink, "gate", gate.channel, lambda: self.evidence(wire, gate), bound)

    def wait(self, wire: SimulatedWire, channel: str, message: Message | None) -> None:
        """Wait until the handle of `message` is done; there is nothing to wait for when it was dropped."""
        self._baton.wait_until(wire.source, "wait", channel, lambda: message is None or wire.is_done(message), None)


class SimulatedOutgoing:
    """The sending end of one channel."""

    def __init__(self, network: SimulatedNetwork, wire: SimulatedWire, channel: str) -> None:
        self._network, self._wire, self._channel = network, wire, channel
        self.transport = wire.transport
        self._handle: Message | None = None

    def post(self, fields: Fields, payload: Any) -> None:
        """Start sending."""
        message = self._network.post(self._wire, self._channel, fields, payload)
        self._handle = None if self.transport.kind == "dropped" else message

    def forget(self) -> None:
        """Drop the handle."""
        if self._handle is not None:
            self._network.forget(self._wire, self._handle)
        self._handle = None

    def wait(self) -> None:
        """Until the contract says that the message last posted is done; at once when its handle was dropped."""
        self._network.wait(self._wire, self._channel, self._handle)
        self._handle = None


class SimulatedIncoming:
    """The receiving end of one channel."""

    def __init__(self, network: SimulatedNetwork, wire: SimulatedWire, gate: Gate) -> None:
        self._network, self._wire, self._gate = network, wire, gate
        self.transport = wire.transport

    def gate(self, bound: float) -> bool:
        """Until the sender has attempted the next message; False after `bound` seconds of virtual time."""
        return self._network.gate(self._wire, self._gate, int(bound * 1e9))

    def receive(self) -> tuple[Fields, Any]:
        """The next message."""
        return self._network.receive(self._wire, self._gate.channel)


def _pair(wire: SimulatedWire) -> tuple[int, int]:
    return min(wire.source, wire.sink), max(wire.source, wire.sink)
