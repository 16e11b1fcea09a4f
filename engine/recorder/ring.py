"""The ring file: a header page, then fixed-size records that wrap.

A record is written when its row begins (state ENTERED, so that the last record says where the rank is) and completed
with what the operation obtained (state DONE). All integers are little-endian; times are CLOCK_MONOTONIC nanoseconds.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = b"HWTRACE1"
HEADER_BYTES = 4096
_HEADER = struct.Struct("<8s32sIIIIIQ")  # magic, fingerprint, rank, ranks, slots, fields, capacity, pid
_HEAD = struct.Struct("<Q")
_HEAD_OFFSET = 2048
ENTERED, DONE = 0, 1


class TraceError(ValueError):
    """A file that is no trace, or a damaged one; the message names it."""


class TraceHeader(NamedTuple):
    """Whose trace it is. `fields` is the number of 64-bit integers in a record; `capacity` the records in the ring."""

    fingerprint: str
    rank: int
    ranks: int
    slots: int
    fields: int
    capacity: int
    pid: int


class TraceRecord(NamedTuple):
    """One executed row. `sequence` counts from 0; `fields` are those posted, received or returned; rest zero."""

    sequence: int
    row: int
    done: bool
    this_pass: int
    time_ns: int
    fields: tuple[int, ...]


def trace_path(directory: Path, rank: int) -> Path:
    """Where a rank's ring lies."""
    return directory / f"rank{rank}.trace"


class RingRecorder:
    """Writes one rank's ring. `fields` must hold the widest message or return of the table."""

    def __init__(
        self,
        path: Path,
        fingerprint: str,
        rank: int,
        ranks: int,
        slots: int,
        fields: int,
        pid: int,
        capacity: int = 1 << 15,
    ) -> None:
        self._record = struct.Struct(f"<QHHIqQ{fields}q")
        self._tail = [struct.Struct(f"<{n}q") for n in range(fields + 1)]
        size = self._record.size
        with open(path, "wb+") as file:
            file.truncate(HEADER_BYTES + size * capacity)
            self._map = mmap.mmap(file.fileno(), 0)
        _HEADER.pack_into(self._map, 0, MAGIC, bytes.fromhex(fingerprint), rank, ranks, slots, fields, capacity, pid)
        self._capacity, self._size = capacity, size
        self._sequence = 0
        self._offset = HEADER_BYTES
        self._padding = [(0,) * (fields - n) for n in range(fields + 1)]

    def enter(self, row: int, this_pass: int, *fields: int) -> None:
        """A row begins."""
        sequence = self._sequence
        self._offset = offset = HEADER_BYTES + (sequence % self._capacity) * self._size
        self._record.pack_into(
            self._map,
            offset,
            sequence,
            row,
            ENTERED,
            0,
            this_pass,
            time.monotonic_ns(),
            *fields,
            *self._padding[len(fields)],
        )
        self._sequence = sequence + 1
        _HEAD.pack_into(self._map, _HEAD_OFFSET, sequence + 1)

    def done(self, *fields: int) -> None:
        """The operation of the row last entered obtained `fields`."""
        offset = self._offset
        self._tail[len(fields)].pack_into(self._map, offset + 32, *fields)
        self._map[offset + 10] = DONE

    def close(self) -> None:
        """Unmap; the file stays."""
        self._map.flush()
        self._map.close()


class RingReader:
    """Reads a ring, also while its rank writes it. Raises `TraceError` when the file is no complete ring."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise TraceError(f"{path}: not a readable trace ({error})") from error
        if len(self._map) < HEADER_BYTES or self._map[:8] != MAGIC:
            raise TraceError(f"{path}: not a trace (no {MAGIC.decode()} header)")
        _, fingerprint, rank, ranks, slots, fields, capacity, pid = _HEADER.unpack_from(self._map, 0)
        self.header = TraceHeader(fingerprint.hex(), rank, ranks, slots, fields, capacity, pid)
        self._record = struct.Struct(f"<QHHIqQ{fields}q")
        if len(self._map) != HEADER_BYTES + self._record.size * capacity:
            raise TraceError(f"{path}: {len(self._map)} bytes; its header promises {capacity} records: truncated")

    @property
    def written(self) -> int:
        """Records written so far, including those that the ring has overwritten."""
        return int(_HEAD.unpack_from(self._map, _HEAD_OFFSET)[0])

    def last(self) -> TraceRecord | None:
        """The record of the row that the rank is in, or was in when it ended; None before the first."""
        written = self.written
        return self._read(written - 1) if written else None

    def records(self) -> Iterator[TraceRecord]:
        """The records still in the ring, oldest first."""
        written = self.written
        for sequence in range(max(0, written - self.header.capacity), written):
            yield self._read(sequence)

    def _read(self, sequence: int) -> TraceRecord:
        offset = HEADER_BYTES + (sequence % self.header.capacity) * self._record.size
        stored, row, state, _, this_pass, time_ns, *fields = self._record.unpack_from(self._map, offset)
        return TraceRecord(stored, row, state == DONE, this_pass, time_ns, tuple(fields))

    def close(self) -> None:
        """Unmap."""
        self._map.close()
