"""Tensor wires between ranks that share one GPU. Payloads never leave the device; headers go over pipes.

Contract: `posted`. A post queues a copy on the sender's stream and returns; its wait is for the receiver's arrival at
the matching receive, and touches no stream. Device work is ordered by events alone.

Reuse of buffers: the receiver frees message n - 1 before it says that it has come for message n. A sender that has
waited for message n - 1 thus knows that message n - 2 is freed, and two slots are enough.
"""

from __future__ import annotations

from typing import Any

import torch

from headway.engine.wires.codec import TensorCodec
from headway.engine.wires.gates import FifoGate, GateKeeper
from headway.engine.wires.pipes import HeaderReceiver, HeaderSender
from headway.engine.wires.rings import Ring
from headway.spec.transports import POSTED, Transport


class CudaIpcOutgoing:
    """The sending end of a channel."""

    transport: Transport = POSTED

    def __init__(self, headers: HeaderSender, ring: Ring, codec: TensorCodec, gate: GateKeeper | None = None) -> None:
        self._headers, self._ring, self._codec, self._gate = headers, ring, codec, gate
        self._posted = self._waited = 0

    def post(self, fields: tuple[int, ...], payload: torch.Tensor) -> None:
        """Start sending; returns at once. Raises `RuntimeError` when the last message is not waited for."""
        if self._posted > self._waited:
            raise RuntimeError("the last message is not waited for, so its buffer may not be free")
        body = self._codec.encode(payload)
        if self._gate is not None:
            self._gate.attempt()
        self._ring.fill(self._posted, body)
        self._posted += 1
        self._headers.send((body.shape[0], *fields))

    def wait(self) -> None:
        """Until the peer is at the matching receive. Raises `ConnectionError` when it is gone."""
        self._headers.wait()
        self._waited += 1


class CudaIpcIncoming:
    """The receiving end. What it returns lies in the ring: the current stream may read it until the next receive."""

    transport: Transport = POSTED

    def __init__(self, headers: HeaderReceiver, ring: Ring, gate: FifoGate | None = None) -> None:
        self._headers, self._ring, self._gate = headers, ring, gate
        self._received = 0

    def gate(self, bound: float) -> bool:
        """Until the peer has attempted the next message; False after `bound` seconds."""
        if self._gate is None:
            raise RuntimeError("this channel has no readiness gate")
        return self._gate.wait(bound)

    def receive(self) -> tuple[tuple[int, ...], Any]:
        """Block until the next message is here. Raises `ConnectionError` when the peer is gone."""
        if self._received:
            self._ring.free(self._received - 1)
        rows, *fields = self._headers.receive()
        payload = self._ring.read(self._received, rows)
        self._received += 1
        return tuple(fields), payload
