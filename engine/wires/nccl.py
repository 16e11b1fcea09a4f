"""Tensor wires between ranks on different GPUs: payloads over a communicator of two ranks, headers over pipes.

Contract: `posted`. A post queues a copy and a send on device streams and returns; its wait is for the receiver's
arrival at the matching receive, and touches no stream. This holds because the communicator and its connections are made
at boot (`Pair.connect`): made by the first send, they would be a rendezvous. The header goes first, so that a send that
blocked all the same would meet its receiver.

Reuse of buffers: before a slot is filled again the stream waits for the send that read it last; before it is received
into again, for the work that read what lay in it. Either send or receive has been issued by then (see `cuda_ipc`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from headway.engine.wires.codec import TensorCodec
from headway.engine.wires.gates import FifoGate, GateKeeper
from headway.engine.wires.gloo import NO_BOUND
from headway.engine.wires.pipes import HeaderReceiver, HeaderSender
from headway.engine.wires.rings import SLOTS, Event, check_rows
from headway.spec.transports import POSTED, RENDEZVOUS, Transport


class Pair:
    """The communicator of two neighbouring ranks, `source` and `sink`; this process is one of them."""

    def __init__(self, source: int, sink: int, device: torch.device, backend: str = "nccl") -> None:
        self._source, self._sink, self._device, self._backend = source, sink, device, backend
        self._group: dist.ProcessGroup | None = None

    def connect(self) -> None:
        """Make it and open its connections, by one message; returns once the peer does the same."""
        self._group = dist.new_group(
            [self._source, self._sink],
            timeout=NO_BOUND,
            backend=self._backend,
            use_local_synchronization=True,
            device_id=self._device if self._device.type == "cuda" else None,
        )
        first = torch.zeros(1, device=self._device)
        (self.send(first) if dist.get_rank() == self._source else self.receive(first)).wait()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def send(self, tensor: torch.Tensor) -> dist.Work:
        """Start sending to the sink, after what the current stream was given so far."""
        return _started(dist.isend(tensor, self._sink, group=self._group))

    def receive(self, tensor: torch.Tensor) -> dist.Work:
        """Start receiving from the source, after what the current stream was given so far."""
        return _started(dist.irecv(tensor, self._source, group=self._group))


def _started(work: dist.Work | None) -> dist.Work:
    if work is None:
        raise RuntimeError("this process is not a member of the pair")
    return work


class NcclOutgoing:
    """The sending end of a channel. `staging` is [SLOTS, rows, width] on the device."""

    transport: Transport = POSTED

    def __init__(
        self,
        headers: HeaderSender,
        pair: Pair,
        staging: torch.Tensor,
        codec: TensorCodec,
        gate: GateKeeper | None = None,
    ) -> None:
        self._headers, self._pair, self._staging, self._codec, self._gate = headers, pair, staging, codec, gate
        self._posted = self._waited = 0
        self._sends: list[dist.Work | None] = [None] * SLOTS

    def post(self, fields: tuple[int, ...], payload: torch.Tensor) -> None:
        """Start sending; returns at once. Raises `RuntimeError` when the last message is not waited for."""
        if self._posted > self._waited:
            raise RuntimeError("the last message is not waited for, so its buffer may not be free")
        body = self._codec.encode(payload)
        rows, slot = body.shape[0], self._posted % SLOTS
        check_rows(rows, self._staging)
        if self._gate is not None:
            self._gate.attempt()
        if (last := self._sends[slot]) is not None:
            last.wait()  # fences the current stream, not this thread
        staged = self._staging[slot, :rows]
        staged.copy_(body)
        self._posted += 1
        self._headers.send((rows, *fields))
        self._sends[slot] = self._pair.send(staged) if rows else None

    def wait(self) -> None:
        """Until the peer is at the matching receive. Raises `ConnectionError` when it is gone."""
        self._headers.wait()
        self._waited += 1


class NcclIncoming:
    """The receiving end. What it returns may be read by the current stream until the next receive.

    `buffers` is [SLOTS, rows, width] on the device; `freed` has an event a slot. `aside` enters a stream of the wire's
    own, so that a receive can begin before the work ahead of it on the current stream is done.
    """

    transport: Transport = POSTED

    def __init__(
        self,
        headers: HeaderReceiver,
        pair: Pair,
        buffers: torch.Tensor,
        freed: Sequence[Event],
        aside: Callable[[], contextlib.AbstractContextManager[Any]],
        gate: FifoGate | None = None,
    ) -> None:
        self._headers, self._pair, self._buffers, self._freed = headers, pair, buffers, freed
        self._aside, self._gate = aside, gate
        self._received = 0

    def gate(self, bound: float) -> bool:
        """Until the peer has attempted the next message; False after `bound` seconds."""
        if self._gate is None:
            raise RuntimeError("this channel has no readiness gate")
        return self._gate.wait(bound)

    def receive(self) -> tuple[tuple[int, ...], torch.Tensor]:
        """Block until the next message's header is here. Raises `ConnectionError` when the peer is gone."""
        if self._received:
            self._freed[(self._received - 1) % SLOTS].record()
        rows, *fields = self._headers.receive()
        slot = self._received % SLOTS
        payload = self._buffers[slot, :rows]
        if rows:
            with self._aside():
                if self._received >= SLOTS:
                    self._freed[slot].wait()
                work = self._pair.receive(payload)
            work.wait()  # fences the current stream, not this thread
        self._received += 1
        return tuple(fields), payload


class ConnectOutgoing:
    """At boot, the lower rank's end of a pair: making the communicator, then a message over `control`."""

    transport: Transport = RENDEZVOUS

    def __init__(self, connect: Callable[[], None], control: Any) -> None:
        self._connect, self._control = connect, control

    def post(self, fields: tuple[int, ...], payload: Any) -> None:
        """Returns once the peer is at its receive."""
        self._connect()
        self._control.post(fields, payload)

    def wait(self) -> None:
        """Until the message is received."""
        self._control.wait()


class ConnectIncoming:
    """At boot, the higher rank's end of a pair."""

    transport: Transport = RENDEZVOUS

    def __init__(self, connect: Callable[[], None], control: Any) -> None:
        self._connect, self._control = connect, control

    def gate(self, bound: float) -> bool:
        """There is none."""
        return bool(self._control.gate(bound))

    def receive(self) -> tuple[tuple[int, ...], Any]:
        """Make the communicator with the peer, then take its message."""
        self._connect()
        message: tuple[tuple[int, ...], Any] = self._control.receive()
        return message
