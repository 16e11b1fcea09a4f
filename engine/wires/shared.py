"""Channels that share one wire over gloo: the receiver takes whatever comes next and stashes other kinds.

The production table has none; tables that are replayed do.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from headway.engine.wires.codec import ControlCodec, TensorCodec
from headway.engine.wires.gates import FifoGate, GateKeeper
from headway.engine.wires.gloo import GlooOutgoing

Fields = tuple[int, ...]


class SharedOutgoing(GlooOutgoing):
    """The sending end of channel number `kind` on the wire; `width` is the most fields of any of its kinds."""

    def __init__(
        self, peer: int, tag: int, kind: int, width: int, codec: ControlCodec | TensorCodec, gate: GateKeeper | None
    ) -> None:
        super().__init__(peer, tag, width, codec, gate)
        self._kind, self._width = kind, width

    def _header(self, elements: int, fields: Fields) -> torch.Tensor:
        padding = (0,) * (self._width - len(fields))
        return torch.tensor([elements, self._kind, len(fields), *fields, *padding], dtype=torch.int64)


class SharedWire:
    """The receiving end of a wire: what came out of turn, by kind."""

    def __init__(self, peer: int, tag: int, width: int, codec: ControlCodec | TensorCodec) -> None:
        self._peer, self._tag, self._width, self._codec = peer, tag, width, codec
        self._stashes: dict[int, list[tuple[Fields, Any]]] = {}

    def receive(self, kind: int) -> tuple[Fields, Any]:
        """Block until the next message of `kind` is here."""
        while not self._stashes.get(kind):
            header = torch.empty(3 + self._width, dtype=torch.int64)
            dist.recv(header, self._peer, tag=self._tag)
            elements, came, count, *fields = header.tolist()
            body = self._codec.buffer(elements)
            if elements:
                dist.recv(body, self._peer, tag=self._tag)
            self._stashes.setdefault(came, []).append((tuple(fields[:count]), self._codec.decode(body)))
        return self._stashes[kind].pop(0)


class SharedIncoming:
    """The receiving end of one channel of a shared wire."""

    def __init__(self, wire: SharedWire, kind: int, gate: FifoGate | None) -> None:
        self._wire, self._kind, self._gate = wire, kind, gate

    def gate(self, bound: float) -> bool:
        """Until the peer has attempted the next message; False after `bound` seconds."""
        if self._gate is None:
            raise RuntimeError("this channel has no readiness gate")
        return self._gate.wait(bound)

    def receive(self) -> tuple[Fields, Any]:
        """Block until the next message of this channel is here."""
        return self._wire.receive(self._kind)
