"""Control and tensor wires over `torch.distributed` gloo, for ranks on CPUs.

A message is a header of 64-bit integers (payload elements, then the channel's fields) and, unless empty, the payload.
Both halves are posted at once and waited for together. Contract: `posted` (a post returns at once; its wait returns
when the peer has posted the matching receive). A gloo wait that expires would close the pair, so none has a bound.
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headway.engine.wires.codec import ControlCodec, TensorCodec
from headway.engine.wires.gates import FifoGate, GateKeeper
from headway.spec.transports import POSTED, Transport

NO_BOUND = datetime.timedelta(days=3650)


def join_group(directory: Path, rank: int, ranks: int) -> None:
    """Join the gloo group of one host, meeting in `directory`; blocks until all `ranks` have joined."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{directory / 'group'}", rank=rank, world_size=ranks, timeout=NO_BOUND
    )


def leave_group() -> None:
    """Close the group's connections; call it only when nothing is in flight."""
    dist.destroy_process_group()


class GlooOutgoing:
    """The sending end of a channel. `tag` tells the channels of one pair apart."""

    transport: Transport = POSTED

    def __init__(
        self, peer: int, tag: int, fields: int, codec: ControlCodec | TensorCodec, gate: GateKeeper | None = None
    ) -> None:
        self._peer, self._tag, self._codec, self._gate = peer, tag, codec, gate
        self._fields = fields
        self._works: list[tuple[dist.Work, torch.Tensor]] = []  # a dropped Work cancels its message

    def post(self, fields: tuple[int, ...], payload: Any) -> None:
        """Start sending; returns at once."""
        body = self._codec.encode(payload)
        header = self._header(body.numel(), fields)
        if self._gate is not None:
            self._gate.attempt()
        self._send(header)
        if body.numel():
            self._send(body)

    def _header(self, elements: int, fields: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor([elements, *fields], dtype=torch.int64)

    def forget(self) -> None:
        """Drop the handle, as faulty tables do: gloo cancels what the peer has not posted a receive for."""
        self._works.clear()

    def _send(self, tensor: torch.Tensor) -> None:
        work = dist.isend(tensor, self._peer, tag=self._tag)
        if work is None:
            raise RuntimeError("this process is not a member of the group")
        self._works.append((work, tensor))

    def wait(self) -> None:
        """Until the peer has posted the matching receives. Raises `RuntimeError` when the peer is gone."""
        for work, _ in self._works:
            work.wait()
        self._works.clear()


class GlooIncoming:
    """The receiving end of a channel."""

    transport: Transport = POSTED

    def __init__(
        self, peer: int, tag: int, fields: int, codec: ControlCodec | TensorCodec, gate: FifoGate | None = None
    ) -> None:
        self._peer, self._tag, self._codec, self._gate = peer, tag, codec, gate
        self._fields = fields

    def gate(self, bound: float) -> bool:
        """Until the peer has attempted the next message; False after `bound` seconds."""
        if self._gate is None:
            raise RuntimeError("this channel has no readiness gate")
        return self._gate.wait(bound)

    def receive(self) -> tuple[tuple[int, ...], Any]:
        """Block until the next message is here. Raises `RuntimeError` when the peer is gone."""
        header = torch.empty(1 + self._fields, dtype=torch.int64)
        dist.recv(header, self._peer, tag=self._tag)
        elements, *fields = header.tolist()
        body = self._codec.buffer(elements)
        if elements:
            dist.recv(body, self._peer, tag=self._tag)
        return tuple(fields), self._codec.decode(body)
