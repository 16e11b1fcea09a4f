"""Headers over named pipes, for ranks of one host whose payloads lie on a device.

A header is a few 64-bit integers. The receiver says that it has come before it reads one, and the sender's wait is for
that, so the contract is `posted` by construction. To send needs no peer, and a peer that is gone is noticed at once.
"""

from __future__ import annotations

import os
import select
import struct
from pathlib import Path


def pipe_path(directory: Path, purpose: str, channel: str, source: int, sink: int) -> Path:
    """Where a pipe of one channel between two ranks lies; `purpose` tells the pipes of one channel apart."""
    return directory / f"{purpose}-{channel}-{source}-{sink}"


class PipeReader:
    """The reading end. Opening never blocks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def read(self, size: int) -> bytes:
        """Block until the next write of `size` bytes is here. Raises `ConnectionError` when the writer is gone."""
        self._poll.poll()
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
    """Sends headers of `integers` integers: at most one is sent and not waited for."""

    def __init__(self, headers: PipeWriter, arrivals: PipeReader, integers: int) -> None:
        self._headers, self._arrivals = headers, arrivals
        self._format = struct.Struct(f"<{integers}q")

    def send(self, header: tuple[int, ...]) -> None:
        """Returns at once."""
        self._headers.write(self._format.pack(*header))

    def wait(self) -> None:
        """Until the receiver has come for the header."""
        self._arrivals.read(1)


class HeaderReceiver:
    """Receives headers of `integers` integers."""

    def __init__(self, headers: PipeReader, arrivals: PipeWriter, integers: int) -> None:
        self._headers, self._arrivals = headers, arrivals
        self._format = struct.Struct(f"<{integers}q")

    def receive(self) -> tuple[int, ...]:
        """Say that this end has come; block until the header is here."""
        self._arrivals.write(b"\0")
        return self._format.unpack(self._headers.read(self._format.size))
