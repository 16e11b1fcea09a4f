"""Wires over named pipes, for ranks of one host: control messages, and the headers of payloads that lie on a device.

The receiver says that it has come before it reads a message, and the sender's wait is for that, so the contract is
`posted` by construction. To send needs no peer, and a peer that is gone is noticed at once. A message is one write that
the kernel keeps whole; a body too long for that lies in a file. At most two messages are under way, so two files do.
"""

from __future__ import annotations

import os
import select
import struct
from pathlib import Path
from typing import Any

from headway.engine.wires.codec import ControlCodec
from headway.spec.transports import POSTED, Transport


def pipe_path(directory: Path, purpose: str, channel: str, source: int, sink: int) -> Path:
    """Where a pipe of one channel between two ranks lies; `purpose` tells the pipes of one channel apart."""
    return directory / f"{purpose}-{channel}-{source}-{sink}"


class PipeReader:
    """The reading end. Opening never blocks. It looks `spin` times before it sleeps: waking up takes longer."""

    def __init__(self, path: Path, spin: int = 0) -> None:
        self._path, self._spin = path, spin
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def ready(self, bound: float | None = None) -> bool:
        """Until there is something to read, or the writer is gone; False after `bound` seconds."""
        look = self._poll.poll
        for _ in range(self._spin):
            if look(0):
                return True
        return bool(look(None if bound is None else bound * 1000))

    def read(self, size: int) -> bytes:
        """Block until the next `size` bytes are here. Raises `ConnectionError` when the writer is gone."""
        self.ready()
        data = os.read(self._fd, size)
        if not data:
            raise ConnectionError(f"{self._path.name}: the writing rank is gone")
        return data

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._fd)


class PipeWriter:
    """The writing end. Opening blocks until the reader has opened: a rank opens all its readers first."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY)

    def write(self, data: bytes) -> None:
        """Write at most `select.PIPE_BUF` bytes, all at once. Raises `BrokenPipeError` when the reader is gone."""
        os.write(self._fd, data)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._fd)


class HeaderSender:
    """Sends headers of `integers` 64-bit integers, each with a body: at most one is sent and not waited for."""

    def __init__(self, headers: PipeWriter, arrivals: PipeReader, integers: int) -> None:
        self._headers, self._arrivals = headers, arrivals
        self._format = struct.Struct(f"<{integers}q")

    def send(self, header: tuple[int, ...], body: bytes = b"") -> None:
        """Returns at once."""
        self._headers.write(self._format.pack(*header) + body)

    def wait(self) -> None:
        """Until the receiver has come for the header."""
        self._arrivals.read(1)


class HeaderReceiver:
    """Receives headers of `integers` 64-bit integers."""

    def __init__(self, headers: PipeReader, arrivals: PipeWriter, integers: int) -> None:
        self._headers, self._arrivals = headers, arrivals
        self._format = struct.Struct(f"<{integers}q")

    def receive(self) -> tuple[int, ...]:
        """Say that this end has come; block until the header is here."""
        self._arrivals.write(b"\0")
        return self._format.unpack(self._headers.read(self._format.size))

    def body(self, size: int) -> bytes:
        """The `size` bytes that follow the header."""
        return self._headers.read(size)


class PipeOutgoing:
    """The sending end of a control channel. Long bodies go to `spill`, a path without suffix."""

    transport: Transport = POSTED

    def __init__(self, headers: HeaderSender, fields: int, codec: ControlCodec, spill: Path) -> None:
        self._headers, self._codec, self._spill = headers, codec, spill
        self._inline = inline_bytes(fields)
        self._posted = self._waited = 0

    def post(self, fields: tuple[int, ...], payload: Any) -> None:
        """Start sending; returns at once. Raises `RuntimeError` when the last message is not waited for."""
        if self._posted > self._waited:
            raise RuntimeError("the last message is not waited for")
        body = self._codec.pack(payload)
        if len(body) > self._inline:
            spill_path(self._spill, self._posted).write_bytes(body)
        self._headers.send((len(body), *fields), body if len(body) <= self._inline else b"")
        self._posted += 1

    def wait(self) -> None:
        """Until the peer is at the matching receive. Raises `ConnectionError` when it is gone."""
        self._headers.wait()
        self._waited += 1


class PipeIncoming:
    """The receiving end of a control channel."""

    transport: Transport = POSTED

    def __init__(self, headers: HeaderReceiver, fields: int, codec: ControlCodec, spill: Path) -> None:
        self._headers, self._codec, self._spill = headers, codec, spill
        self._inline = inline_bytes(fields)
        self._received = 0

    def gate(self, bound: float) -> bool:
        """There is none."""
        raise RuntimeError("this channel has no readiness gate")

    def receive(self) -> tuple[tuple[int, ...], Any]:
        """Block until the next message is here. Raises `ConnectionError` when the peer is gone."""
        size, *fields = self._headers.receive()
        if size > self._inline:
            body = spill_path(self._spill, self._received).read_bytes()
        else:
            body = self._headers.body(size) if size else b""
        self._received += 1
        return tuple(fields), self._codec.unpack(body)


def inline_bytes(fields: int) -> int:
    """The longest body that fits one whole write behind its length and `fields` fields."""
    return select.PIPE_BUF - 8 * (1 + fields)


def spill_path(spill: Path, message: int) -> Path:
    """Where the body of a long message lies."""
    return spill.with_suffix(f".{message % 2}")
