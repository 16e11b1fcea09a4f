"""Readiness: the sender says that it is about to send before it does, so a receiver can wait with a bound.

One named pipe a channel and pair of ranks, one byte a message. A wait on it sleeps in the kernel, and wakes at once
when the sender is gone. It carries no data and needs no peer, so it can neither block a sender nor close a cycle.
"""

from __future__ import annotations

from pathlib import Path

from headway.engine.wires.pipes import PipeReader, PipeWriter, pipe_path


def gate_path(directory: Path, channel: str, source: int, sink: int) -> Path:
    """Where the pipe of one channel between two ranks lies."""
    return pipe_path(directory, "attempted", channel, source, sink)


class GateKeeper:
    """The sender's end. Opening blocks until the receiver has opened."""

    def __init__(self, path: Path) -> None:
        self._pipe = PipeWriter(path)

    def attempt(self) -> None:
        """The next message is about to be posted, irrevocably. Raises `BrokenPipeError` when the receiver is gone."""
        self._pipe.write(b"\0")

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()


class FifoGate:
    """The receiver's end; it looks `spin` times before it sleeps."""

    def __init__(self, path: Path, spin: int = 0) -> None:
        self._pipe = PipeReader(path, spin)

    def wait(self, bound: float) -> bool:
        """Until the next message was attempted; False after `bound` seconds. Raises `ConnectionError`."""
        if not self._pipe.ready(bound):
            return False
        self._pipe.read(1)
        return True

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()
