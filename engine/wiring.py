"""The wires of one rank: which kind joins it to each neighbour, what the two exchange at boot, and the ends themselves.

Between CPU ranks all channels are gloo. Between GPU ranks control channels are named pipes, which take a fraction of
gloo's time, and tensor channels are CUDA IPC on one GPU, NCCL between GPUs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from headway.engine.loop import Endpoints, Program, compile_program, run
from headway.engine.placement import Link, link_between
from headway.engine.recorder import RingRecorder
from headway.engine.wires import (
    SLOTS,
    ConnectIncoming,
    ConnectOutgoing,
    ControlCodec,
    CudaIpcIncoming,
    CudaIpcOutgoing,
    Event,
    FifoGate,
    GateKeeper,
    GlooIncoming,
    GlooOutgoing,
    HeaderReceiver,
    HeaderSender,
    IncomingTrial,
    NcclIncoming,
    NcclOutgoing,
    OutgoingTrial,
    Pair,
    PipeIncoming,
    PipeOutgoing,
    PipeReader,
    PipeWriter,
    Ring,
    RingOffer,
    TensorCodec,
    gate_path,
    make_ring,
    map_ring,
    pipe_path,
    probe,
    stream_event,
)
from headway.spec.boot import boot_table
from headway.spec.table import Channel, Protocol, gated_channels, record_width
from headway.spec.trace import trace_path
from headway.spec.transports import POSTED, Transport

Codec = ControlCodec | TensorCodec
Aside = Callable[[], contextlib.AbstractContextManager[Any]]
_HEADERS, _ARRIVALS, _GO, _SPILL = "headers", "arrivals", "go", "spill"
_SPIN = 500  # looks at a pipe before a rank on a GPU sleeps


def own_stream(device: torch.device) -> Aside:
    """What enters a new stream of `device`."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return lambda: torch.cuda.stream(stream)


class Offer(msgspec.Struct, frozen=True):
    """What a rank tells the next one at boot: the least capacity so far, and the rings to map, by channel."""

    capacity: int
    rings: dict[str, RingOffer]


_BOOT_PAYLOADS: Mapping[str, Any] = {"offer": Offer, "capacity": int}


@dataclass(frozen=True)
class Tools:
    """Whatever of the wires touches a device; tests on machines without one put stand-ins here."""

    device: Callable[[str], torch.device] = torch.device
    make_ring: Callable[[torch.Tensor], tuple[Ring, RingOffer]] = make_ring
    map_ring: Callable[[RingOffer, torch.device], Ring] = map_ring
    pair: Callable[[int, int, torch.device], Pair] = Pair
    event: Callable[[torch.device], Event] = stream_event
    aside: Callable[[torch.device], Aside] = own_stream


CUDA = Tools()


def boot_directory(directory: Path) -> Path:
    """Where the traces of the boot table lie."""
    return directory / "boot"


def edges(channel: Channel, ranks: int) -> list[tuple[int, int]]:
    """The ordered pairs of ranks that a channel joins."""
    if ranks == 1:
        return []
    return [(rank, rank + 1) for rank in range(ranks - 1)] if channel.path == "forward" else [(ranks - 1, 0)]


def link_of(channel: Channel, devices: Sequence[str], source: int, sink: int) -> Link:
    """What carries a channel. Raises `ValueError` for a tensor channel between GPUs on the closing edge."""
    link = link_between(devices[source], devices[sink])
    if link != "gloo" and channel.kind == "control":
        return "pipe"
    if link != "gloo" and channel.path == "closing":
        raise ValueError(f"channel {channel.name!r}: a tensor channel on the closing edge; allowed on GPUs: forward")
    return link


_CONTRACTS: Mapping[Link, Transport] = {
    "gloo": GlooOutgoing.transport,
    "pipe": PipeOutgoing.transport,
    "cuda_ipc": CudaIpcOutgoing.transport,
    "nccl": NcclOutgoing.transport,
}


def transports(protocol: Protocol, devices: Sequence[str]) -> dict[str, Transport]:
    """The contract of each channel's wires when ranks run on `devices`; a launch asks for a proof under these.

    Raises `ValueError` when a channel would have wires of several contracts.
    """
    found = {}
    for channel in protocol.channels:
        contracts = {_CONTRACTS[link_of(channel, devices, *edge)] for edge in edges(channel, len(devices))}
        if len(contracts) > 1:
            names = ", ".join(sorted(contract.name for contract in contracts))
            raise ValueError(f"channel {channel.name!r}: its wires have the contracts {names}; allowed: one")
        found[channel.name] = contracts.pop() if contracts else POSTED
    return found


def make_pipes(protocol: Protocol, devices: Sequence[str], directory: Path) -> None:
    """Make the named pipes that the ranks of a pipeline open; the launcher does so before it starts them."""
    boot_directory(directory).mkdir()
    gated = gated_channels(protocol)
    for channel in protocol.channels:
        for source, sink in edges(channel, len(devices)):
            os.mkfifo(pipe_path(directory, _GO, channel.name, source, sink))
            if channel.name in gated:
                os.mkfifo(gate_path(directory, channel.name, source, sink))
            if link_of(channel, devices, source, sink) != "gloo":
                os.mkfifo(pipe_path(directory, _HEADERS, channel.name, source, sink))
                os.mkfifo(pipe_path(directory, _ARRIVALS, channel.name, source, sink))


class Wiring:
    """Lays one rank's wires in two steps: `connect` with the neighbours, then `endpoints`.

    `codecs` has one for each channel; no tensor has more than `rows` rows.
    """

    def __init__(
        self,
        program: Program,
        codecs: Mapping[str, Codec],
        devices: Sequence[str],
        directory: Path,
        rows: int,
        tools: Tools = CUDA,
    ) -> None:
        self._program, self._codecs, self._devices = program, codecs, devices
        self._directory, self._rows, self._tools = directory, rows, tools
        self._rank, self._ranks = program.rank, program.ranks
        self._device = tools.device(devices[self._rank])
        self._gated = gated_channels(program.protocol)
        self._out = {name: self._edge(name, outgoing=True) for name in program.posts}
        self._in = {name: self._edge(name, outgoing=False) for name in program.receives}
        self._pairs: dict[tuple[int, int], Pair] = {}
        for link, source, sink in (*self._out.values(), *self._in.values()):
            if link == "nccl":
                self._pairs[source, sink] = tools.pair(source, sink, self._device)
        self._capacity = 0
        self._own: dict[str, Ring] = {}  # rings that this rank fills
        self._mapped: dict[str, Ring] = {}  # rings that it reads

    def _edge(self, name: str, *, outgoing: bool) -> tuple[Link, int, int]:
        channel = self._program.protocol.channel(name)
        for source, sink in edges(channel, self._ranks):
            if self._rank == (source if outgoing else sink):
                return link_of(channel, self._devices, source, sink), source, sink
        raise ValueError(f"channel {name!r} does not reach rank {self._rank}")

    # --- boot ------------------------------------------------------------------------------------------------

    def connect(self, capacity: int) -> int:
        """Run the boot table: this rank's tensor wires are connected to its neighbours' when it returns.

        `capacity` is what this rank has (KV pages). Returns the least of all ranks at rank 0, which plans with it, and
        of the ranks up to this one elsewhere.
        """
        program = compile_program(boot_table(), self._rank, self._ranks, self._ranks)
        recorder = RingRecorder(
            trace_path(boot_directory(self._directory), self._rank),
            program.protocol.fingerprint,
            self._rank,
            self._ranks,
            self._ranks,
            record_width(program.protocol),
            os.getpid(),
        )
        self._capacity = capacity
        after, before = (self._rank + 1) % self._ranks, (self._rank - 1) % self._ranks
        outgoing = {name: self._boot_wire(program.protocol, name, self._rank, after) for name in program.posts}
        incoming = {name: self._boot_wire(program.protocol, name, before, self._rank) for name in program.receives}
        bindings: dict[str, Callable[..., Any]] = {
            "offer": self._offer,
            "accept": self._accept,
            "sum_up": lambda: self._capacity,
            "adopt": self._adopt,
        }
        run(program, bindings, Endpoints(outgoing, incoming), recorder)
        recorder.close()
        return self._capacity

    def _boot_wire(self, table: Protocol, name: str, source: int, sink: int) -> Any:
        """This rank's end of a channel of the boot table."""
        channel, sends = table.channel(name), self._rank == source
        tag = 1 + len(self._program.protocol.channels) + table.channels.index(channel)
        codec = ControlCodec(_BOOT_PAYLOADS[channel.payload])
        if channel.kind == "control" or (source, sink) not in self._pairs:
            return GlooOutgoing(sink, tag, 0, codec) if sends else GlooIncoming(source, tag, 0, codec)
        connect = self._pairs[source, sink].connect
        if sends:
            return ConnectOutgoing(connect, GlooOutgoing(sink, tag, 0, codec))
        return ConnectIncoming(connect, GlooIncoming(source, tag, 0, codec))

    def _offer(self) -> Offer:
        """Make the rings that this rank fills."""
        rings = {}
        for name, (link, _, _) in self._out.items():
            if link == "cuda_ipc":
                self._own[name], rings[name] = self._tools.make_ring(self._memory(name))
        return Offer(self._capacity, rings)

    def _accept(self, offer: Offer) -> None:
        """Map the rings that the rank before fills."""
        self._adopt(offer.capacity)
        for name, ring in offer.rings.items():
            self._mapped[name] = self._tools.map_ring(ring, self._device)

    def _adopt(self, capacity: int) -> None:
        """Have no more than other ranks have."""
        self._capacity = min(self._capacity, capacity)

    def _memory(self, name: str) -> torch.Tensor:
        return self._tensor_codec(name).slots(SLOTS, self._rows, self._device)

    def _tensor_codec(self, name: str) -> TensorCodec:
        codec = self._codecs[name]
        if not isinstance(codec, TensorCodec):
            raise ValueError(f"channel {name!r} is a tensor channel; its codec is {type(codec).__name__}")
        return codec

    def _control_codec(self, name: str) -> ControlCodec:
        codec = self._codecs[name]
        if not isinstance(codec, ControlCodec):
            raise ValueError(f"channel {name!r} is a control channel; its codec is {type(codec).__name__}")
        return codec

    # --- ends ------------------------------------------------------------------------------------------------

    def endpoints(self, gate_bound: float) -> Endpoints:
        """Open the ends of all wires, and probe them. Raises `ContractError` when one breaks its contract."""
        readers: dict[tuple[str, str], PipeReader] = {}
        for name, (link, source, sink) in self._in.items():
            readers[_GO, name] = PipeReader(self._pipe(_GO, name, source, sink))
            if link != "gloo":
                readers[_HEADERS, name] = PipeReader(self._pipe(_HEADERS, name, source, sink), _SPIN)
        for name, (link, source, sink) in self._out.items():
            if link != "gloo":
                readers[_ARRIVALS, name] = PipeReader(self._pipe(_ARRIVALS, name, source, sink), _SPIN)
        gates = {
            name: FifoGate(gate_path(self._directory, name, source, sink), _SPIN if link != "gloo" else 0)
            for name, (link, source, sink) in self._in.items()
            if name in self._gated
        }
        incoming = {name: self._incoming(name, readers, gates.get(name)) for name in self._in}
        outgoing = {name: self._outgoing(name, readers) for name in self._out}
        self._probe(incoming, outgoing, readers)
        return Endpoints(outgoing, incoming, gate_bound)

    def _pipe(self, purpose: str, name: str, source: int, sink: int) -> Path:
        return pipe_path(self._directory, purpose, name, source, sink)

    def _spill(self, name: str, source: int, sink: int) -> Path:
        return self._pipe(_SPILL, name, source, sink)

    def _tag(self, name: str) -> int:
        return 1 + [channel.name for channel in self._program.protocol.channels].index(name)

    def _fields(self, name: str) -> int:
        return len(self._program.protocol.channel(name).fields)

    def _incoming(self, name: str, readers: Mapping[tuple[str, str], PipeReader], gate: FifoGate | None) -> Any:
        link, source, sink = self._in[name]
        if link == "gloo":
            return GlooIncoming(source, self._tag(name), self._fields(name), self._codecs[name], gate)
        arrivals = PipeWriter(self._pipe(_ARRIVALS, name, source, sink))
        headers = HeaderReceiver(readers[_HEADERS, name], arrivals, 1 + self._fields(name))
        if link == "pipe":
            return PipeIncoming(headers, self._fields(name), self._control_codec(name), self._spill(name, source, sink))
        if link == "cuda_ipc":
            return CudaIpcIncoming(headers, self._mapped[name], gate)
        freed = [self._tools.event(self._device) for _ in range(SLOTS)]
        pair, aside = self._pairs[source, sink], self._tools.aside(self._device)
        return NcclIncoming(headers, pair, self._memory(name), freed, aside, gate)

    def _outgoing(self, name: str, readers: Mapping[tuple[str, str], PipeReader]) -> Any:
        link, source, sink = self._out[name]
        keeper = GateKeeper(gate_path(self._directory, name, source, sink)) if name in self._gated else None
        if link == "gloo":
            return GlooOutgoing(sink, self._tag(name), self._fields(name), self._codecs[name], keeper)
        writer = PipeWriter(self._pipe(_HEADERS, name, source, sink))
        headers = HeaderSender(writer, readers[_ARRIVALS, name], 1 + self._fields(name))
        if link == "pipe":
            return PipeOutgoing(headers, self._fields(name), self._control_codec(name), self._spill(name, source, sink))
        codec = self._tensor_codec(name)
        if link == "cuda_ipc":
            return CudaIpcOutgoing(headers, self._own[name], codec, keeper)
        return NcclOutgoing(headers, self._pairs[source, sink], self._memory(name), codec, keeper)

    def _probe(
        self,
        incoming: Mapping[str, Any],
        outgoing: Mapping[str, Any],
        readers: Mapping[tuple[str, str], PipeReader],
    ) -> None:
        out, into = [], []
        for name, wire in outgoing.items():
            codec = self._codecs[name]
            blank = codec.blank(self._device) if isinstance(codec, TensorCodec) else codec.blank()
            _, source, sink = self._out[name]
            go = PipeWriter(self._pipe(_GO, name, source, sink))
            out.append(OutgoingTrial(self._words(name, source, sink), wire, self._fields(name), blank, go))
        for name, wire in incoming.items():
            _, source, sink = self._in[name]
            words = self._words(name, source, sink)
            into.append(IncomingTrial(words, wire, name in self._gated, readers[_GO, name]))
        probe(out, into)

    def _words(self, name: str, source: int, sink: int) -> str:
        return f"the wire of {name!r} from rank {source} to rank {sink}"
