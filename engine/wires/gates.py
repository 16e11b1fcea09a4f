"""Readiness: the sender says that it is about to send before it does, so a receiver can wait with a bound.

One named pipe a channel and pair of ranks, one byte a message. A wait on it sleeps in the kernel, and wakes at once
when the sender is gone. It carries no data and needs no peer, so it can neither block a sender nor close a cycle.
"""

from __future__ import annotations

import os
import select
from pathlib import Path


def gate_path(directory: Path, channel: str, source: int, sink: int) -> Path:
    """Where the pipe of one channel between two ranks lies."""
    return directory / f"attempted-{channel}-{source}-{sink}"


class GateKeeper:
    """The sender's end. Opening blocks until the receiver has opened."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY)

    def attempt(self) -> None:
        """The next message is about to be posted, irrevocably. Raises `BrokenPipeError` when the receiver is gone."""
        os.write(self._fd, b"\0")

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._fd)


class FifoGate:
    """The receiver's end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def wait(self, bound: float) -> bool:
        """Until the next message was attempted; False after `bound` seconds. Raises `ConnectionError`."""
        if not self._poll.poll(bound * 1000):
            return False
        if os.read(self._fd, 1) == b"":
            raise ConnectionError(f"{self._path.name}: the sending rank is gone")
        return True

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._fd)
