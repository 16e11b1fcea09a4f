"""What the ranks of the tests in this folder do, each in a process of its own. Not collected: `conftest` runs them."""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import relay
import torch

from headway.engine.loop import compile_program
from headway.engine.wires import (
    SLOTS,
    ControlCodec,
    CudaIpcIncoming,
    CudaIpcOutgoing,
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
    join_group,
    leave_group,
    probe,
)
from headway.engine.wiring import CUDA, Tools, Wiring, make_pipes
from headway.spec.serving import serving_table

WIDTH = 8


class NoEvent:
    """An event where work is done when it is called."""

    def record(self) -> None:
        pass

    def wait(self) -> None:
        pass


def made(path: Path) -> Path:
    """The path of a named pipe that either rank may come to first."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path)
    return path


def payloads(seed: int, count: int) -> list[torch.Tensor]:
    """Matrices of random rows, empty ones among them."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 40, (count,), generator=draw).tolist()
    return [torch.rand((size, WIDTH), generator=draw) for size in sizes]


# --- gloo ----------------------------------------------------------------------------------------------------


def posted_contract(rank: int, ranks: int, directory: Path, sizes: list[int]) -> Any:
    """Probe one wire with payloads of each size: what returned while the receiver had not come."""
    join_group(directory, rank, ranks)
    go = made(directory / "go")
    codec = ControlCodec(bytes)
    seen = []
    reader, writer = (PipeReader(go), None) if rank else (None, PipeWriter(go))
    for tag, size in enumerate(sizes, start=1):
        if rank:
            probe([], [IncomingTrial("wire", GlooIncoming(0, tag, 2, codec), False, reader)])
        else:
            trial = OutgoingTrial("wire", GlooOutgoing(1, tag, 2, codec), 2, b"x" * size, writer)
            seen.append(probe([trial], [])["wire"])
    leave_group()
    return seen


def many_channels(rank: int, ranks: int, directory: Path, channels: int, rounds: int) -> Any:
    """Rank 0 posts on all channels, then awaits all; rank 1 receives them in the opposite order."""
    join_group(directory, rank, ranks)
    sizes = [0, 1, 1 << 20]
    texts = {(c, r): bytes([c, r]) * sizes[(c + r) % 3] for c in range(channels) for r in range(rounds)}
    matrices = {(c, r): m for c in range(channels) for r, m in enumerate(payloads(c, rounds))}
    control, tensor = ControlCodec(bytes), TensorCodec(WIDTH, torch.float32)
    ends = GlooIncoming if rank else GlooOutgoing
    wires = [ends(1 - rank, 1 + c, 2, control) for c in range(channels)]
    wires += [ends(1 - rank, 1 + channels + c, 1, tensor) for c in range(channels)]
    wrong = []
    for r in range(rounds):
        if rank == 0:
            for c in range(channels):
                wires[c].post((c, r), texts[c, r])
                wires[channels + c].post((c - r,), matrices[c, r])
            for wire in wires:
                wire.wait()
            continue
        for c in reversed(range(channels)):
            fields, matrix = wires[channels + c].receive()
            if fields != (c - r,) or not torch.equal(matrix, matrices[c, r]):
                wrong.append(("tensor", c, r))
            if wires[c].receive() != ((c, r), texts[c, r]):
                wrong.append(("control", c, r))
    leave_group()
    return wrong


def dead_peer(rank: int, ranks: int, directory: Path) -> Any:
    """Rank 1 dies; what rank 0's receive, wait and gate say."""
    join_group(directory, rank, ranks)
    codec = ControlCodec(bytes)
    gate_pipe = made(directory / "gate")
    if rank == 1:
        GateKeeper(gate_pipe)
        os._exit(1)
    gate = FifoGate(gate_pipe)
    incoming, outgoing = GlooIncoming(1, 1, 0, codec, gate), GlooOutgoing(1, 2, 0, codec)
    said = []
    for attempt in (partial(incoming.gate, 30.0), incoming.receive, partial(sent, outgoing)):
        try:
            attempt()
            said.append("nothing")
        except (RuntimeError, ConnectionError) as error:
            said.append(type(error).__name__)
    return said


def sent(outgoing: Any) -> None:
    """Post and wait."""
    outgoing.post((), b"")
    outgoing.wait()


# --- pipes -----------------------------------------------------------------------------------------------------


def pipe_messages(rank: int, ranks: int, directory: Path, sizes: list[int]) -> Any:
    """Probe a pipe with a body of each size, then send all of them while the receiver lags one message behind."""
    ends, go, codec, spill = (
        header_ends(rank, directory, 2),
        made(directory / "go"),
        ControlCodec(bytes),
        directory / "s",
    )
    bodies = [bytes([number % 251]) * size for number, size in enumerate(sizes * 5)]
    if rank == 0:
        outgoing, writer = PipeOutgoing(ends, 1, codec, spill), PipeWriter(go)
        seen = [probe([OutgoingTrial("wire", outgoing, 1, b"x" * size, writer)], [])["wire"] for size in sizes]
        for number, body in enumerate(bodies):
            outgoing.post((number,), body)
            outgoing.wait()
        return seen
    incoming, reader = PipeIncoming(ends, 1, codec, spill), PipeReader(go)
    for _ in sizes:
        probe([], [IncomingTrial("wire", incoming, False, reader)])
    return [number for number, body in enumerate(bodies) if incoming.receive() != ((number,), body)]


def dead_pipe(rank: int, ranks: int, directory: Path) -> Any:
    """Rank 1 dies after one message; how often rank 0's wait and next message say so."""
    ends = header_ends(rank, directory, 1)
    if rank == 1:
        ends.receive()
        os._exit(1)
    outgoing = PipeOutgoing(ends, 0, ControlCodec(bytes), directory / "s")
    sent(outgoing)
    errors = 0
    for attempt in (outgoing.wait, partial(sent, outgoing)):
        try:
            attempt()
        except ConnectionError:
            errors += 1
    return errors


# --- device wires on memory that two processes share -----------------------------------------------------------


def shared_ring(directory: Path, rows: int) -> Ring:
    """A ring in a file that both processes map, as CUDA IPC maps device memory."""
    memory = torch.from_file(str(directory / "memory"), shared=True, size=SLOTS * rows * WIDTH, dtype=torch.float32)
    events = [NoEvent() for _ in range(SLOTS)]
    return Ring(memory.view(SLOTS, rows, WIDTH), events, events)


def header_ends(rank: int, directory: Path, integers: int) -> Any:
    """The sending end at rank 0, the receiving end at rank 1."""
    headers, arrivals = made(directory / "headers"), made(directory / "arrivals")
    if rank == 0:
        reader = PipeReader(arrivals)
        return HeaderSender(PipeWriter(headers), reader, integers)
    reader = PipeReader(headers)
    return HeaderReceiver(reader, PipeWriter(arrivals), integers)


def slots_are_not_reused_early(rank: int, ranks: int, directory: Path, count: int) -> Any:
    """Rank 1 keeps each payload until the next message is posted, and compares it only then."""
    ring, ends = shared_ring(directory, 64), header_ends(rank, directory, 2)
    gate_pipe = made(directory / "gate")
    expected = payloads(3, count)
    if rank == 0:
        outgoing = CudaIpcOutgoing(ends, ring, TensorCodec(WIDTH, torch.float32), GateKeeper(gate_pipe))
        for number, payload in enumerate(expected):
            outgoing.post((number,), payload)
            outgoing.wait()
        return None
    incoming = CudaIpcIncoming(ends, ring, FifoGate(gate_pipe))
    wrong = []
    incoming.gate(30.0)
    for number in range(count):
        fields, payload = incoming.receive()
        if number + 1 < count:
            incoming.gate(30.0)
            time.sleep(0.002)  # the sender writes right after it has attempted
        if fields != (number,) or not torch.equal(payload, expected[number]):
            wrong.append(number)
    return wrong


def pair_over_gloo(rank: int, ranks: int, directory: Path, count: int) -> Any:
    """The NCCL wire, with a gloo group as its communicator: what the probe measures, and which payloads are wrong."""
    join_group(directory, rank, ranks)
    pair = Pair(0, 1, torch.device("cpu"), backend="gloo")
    pair.connect()
    ends, go = header_ends(rank, directory, 2), made(directory / "go")
    memory, expected = torch.empty((SLOTS, 64, WIDTH)), payloads(4, count)
    if rank == 0:
        outgoing = NcclOutgoing(ends, pair, memory, TensorCodec(WIDTH, torch.float32))
        seen = probe([OutgoingTrial("wire", outgoing, 1, expected[0], PipeWriter(go))], [])
        for number, payload in enumerate(expected):
            outgoing.post((number,), payload)
            outgoing.wait()
        leave_group()
        return seen["wire"]
    incoming = NcclIncoming(ends, pair, memory, [NoEvent()] * SLOTS, contextlib.nullcontext)
    probe([], [IncomingTrial("wire", incoming, False, PipeReader(go))])
    wrong = []
    for number in range(count):
        fields, payload = incoming.receive()
        if fields != (number,) or not torch.equal(payload, expected[number]):
            wrong.append(number)
    leave_group()
    return wrong


def file_ring(memory: torch.Tensor, directory: Path) -> tuple[Ring, RingOffer]:
    """Stands in for `make_ring`: the offer names a file."""
    path = directory / f"ring-{os.getpid()}"
    shape = torch.tensor(memory.shape).numpy().tobytes()
    return _mapped(path, memory.shape), RingOffer(str(path).encode(), [shape], [])


def mapped_file(offer: RingOffer, device: torch.device) -> Ring:
    """Stands in for `map_ring`."""
    shape = torch.frombuffer(bytearray(offer.filled[0]), dtype=torch.int64).tolist()
    return _mapped(Path(offer.memory.decode()), shape)


def _mapped(path: Path, shape: Any) -> Ring:
    slots, rows, width = shape
    memory = torch.from_file(str(path), shared=True, size=slots * rows * width, dtype=torch.float32)
    events = [NoEvent() for _ in range(SLOTS)]
    return Ring(memory.view(slots, rows, width), events, events)


def stand_ins(directory: Path) -> Tools:
    """All that the wiring takes of a GPU, on a CPU."""
    return Tools(
        device=lambda name: torch.device("cpu"),
        make_ring=partial(file_ring, directory=directory),
        map_ring=mapped_file,
        pair=partial(Pair, backend="gloo"),
        event=lambda device: NoEvent(),
        aside=lambda device: contextlib.nullcontext,
    )


def await_pipes(rank: int, directory: Path, devices: list[str]) -> None:
    """Rank 0 makes what the launcher of a pipeline makes; the others wait for it."""
    made_all = directory / "pipes"
    if rank == 0:
        make_pipes(serving_table(), devices, directory)
        made_all.touch()
    while not made_all.exists():
        time.sleep(0.001)


def connected(rank: int, ranks: int, directory: Path, devices: list[str], capacities: list[int]) -> Any:
    """The boot table alone: the capacity that each rank goes on with."""
    await_pipes(rank, directory, devices)
    program = compile_program(serving_table(), rank, ranks, ranks)
    codecs = {"proxy": TensorCodec(WIDTH, torch.float32)}
    join_group(directory, rank, ranks)
    found = Wiring(program, codecs, devices, directory, 8, stand_ins(directory)).connect(capacities[rank])
    leave_group()
    return found


def production_table(rank: int, ranks: int, directory: Path, devices: list[str], passes: int) -> Any:
    """The production table over the wires that `devices` ask for; numbers that were wrong, and outputs."""
    await_pipes(rank, directory, devices)
    tools = CUDA if devices[0] == "cpu" else stand_ins(directory)
    result = relay.run_rank(rank, devices, directory, relay.Load(passes=passes, rows=32, width=WIDTH), tools)
    return result.wrong, result.outputs
