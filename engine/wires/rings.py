"""A ring of device buffers that one process fills and another reads, ordered by interprocess events.

The sender owns the memory and the events; the receiver maps both once, at boot. CUDA lets either process record an
event that the other one waits for, and a wait means the latest record before it: so a wait is issued only after a
message from the other process has told of the record.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

SLOTS = 2


class Event(Protocol):
    """A point in the work of a device."""

    def record(self) -> None:
        """The point is where the current stream is now."""

    def wait(self) -> None:
        """What the current stream is given from now on starts after the point; the caller does not wait."""


class StreamEvent:
    """An event on the current stream of `device`, whichever thread asks."""

    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self._event, self._device = event, device

    def record(self) -> None:
        """Record on the current stream."""
        self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Let the current stream wait."""
        torch.cuda.current_stream(self._device).wait_event(self._event)

    def handle(self) -> bytes:
        """What another process opens it by."""
        handle: bytes = self._event.ipc_handle()  # type: ignore[no-untyped-call]
        return handle


def stream_event(device: torch.device, *, interprocess: bool = False) -> StreamEvent:
    """A new event; another process can open an `interprocess` one by its handle."""
    return StreamEvent(torch.cuda.Event(interprocess=interprocess), device)  # type: ignore[no-untyped-call]


class RingOffer(msgspec.Struct, frozen=True):
    """What the receiver needs to map a ring: handles of its memory and of its events."""

    memory: bytes
    filled: list[bytes]
    freed: list[bytes]


class Ring:
    """`SLOTS` buffers of [rows, width] in `memory`; message n lies in slot n mod SLOTS.

    Filling slot n mod SLOTS needs that the reader has freed message n - SLOTS; who fills makes sure of it.
    """

    def __init__(self, memory: torch.Tensor, filled: Sequence[Event], freed: Sequence[Event]) -> None:
        self._memory, self._filled, self._freed = memory, filled, freed

    def fill(self, message: int, payload: torch.Tensor) -> None:
        """Copy `payload` [n, width] into the slot of `message`. Raises `ValueError` when it has too many rows."""
        slot, rows = message % SLOTS, payload.shape[0]
        check_rows(rows, self._memory)
        if message >= SLOTS:
            self._freed[slot].wait()
        self._memory[slot, :rows].copy_(payload)
        self._filled[slot].record()

    def read(self, message: int, rows: int) -> torch.Tensor:
        """The payload of `message` where it lies, ready for the current stream."""
        self._filled[message % SLOTS].wait()
        return self._memory[message % SLOTS, :rows]

    def free(self, message: int) -> None:
        """What the current stream was given so far is the last that reads `message`."""
        self._freed[message % SLOTS].record()


def check_rows(rows: int, memory: torch.Tensor) -> None:
    """Raise `ValueError` when a payload of `rows` rows does not fit the slots of `memory`."""
    if rows > memory.shape[1]:
        raise ValueError(f"payload has {rows} rows; allowed: at most {memory.shape[1]}")


def make_ring(memory: torch.Tensor) -> tuple[Ring, RingOffer]:
    """A ring in `memory` [SLOTS, rows, width] on a GPU, and what to tell the reader of it."""
    filled, freed = ([stream_event(memory.device, interprocess=True) for _ in range(SLOTS)] for _ in range(2))
    _, handles = reduce_tensor(memory)  # type: ignore[no-untyped-call]
    offer = RingOffer(pickle.dumps(handles), [e.handle() for e in filled], [e.handle() for e in freed])
    return Ring(memory, filled, freed), offer


def map_ring(offer: RingOffer, device: torch.device) -> Ring:
    """The ring that another process on the same GPU made."""
    memory = rebuild_cuda_tensor(*pickle.loads(offer.memory))  # type: ignore[no-untyped-call]
    filled, freed = ([_opened(h, device) for h in handles] for handles in (offer.filled, offer.freed))
    return Ring(memory, filled, freed)


def _opened(handle: bytes, device: torch.device) -> StreamEvent:
    return StreamEvent(torch.cuda.Event.from_ipc_handle(device, handle), device)  # type: ignore[no-untyped-call]
