"""The trace format: a file per rank, a header page and then fixed-size records in a ring.

A record is written when its row begins (state ENTERED, so that the last record says where the rank is) and completed
with what the operation obtained (state DONE). All integers are little-endian; times are CLOCK_MONOTONIC nanoseconds.
Whoever writes a trace and whoever reads one take the format from here.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = b"HWTRACE1"
HEADER_BYTES = 4096
HEADER = struct.Struct("<8s32sIIIIIQ")  # magic, fingerprint, rank, ranks, slots, fields, capacity, pid
WRITTEN = struct.Struct("<Q")  # records written so far, at WRITTEN_OFFSET of the header page
WRITTEN_OFFSET = 2048
ENTERED, DONE = 0, 1
STATE_OFFSET, FIELDS_OFFSET = 10, 32  # within a record


def record_struct(fields: int) -> struct.Struct:
    """One record: sequence, row, state, padding, pass, time, and `fields` 64-bit integers."""
    return struct.Struct(f"<QHHIqQ{fields}q")


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
        _, fingerprint, rank, ranks, slots, fields, capacity, pid = HEADER.unpack_from(self._map, 0)
        self.header = TraceHeader(fingerprint.hex(), rank, ranks, slots, fields, capacity, pid)
        self._record = record_struct(fields)
        if len(self._map) != HEADER_BYTES + self._record.size * capacity:
            raise TraceError(f"{path}: {len(self._map)} bytes; its header promises {capacity} records: truncated")

    @property
    def written(self) -> int:
        """Records written so far, including those that the ring has overwritten."""
        return int(WRITTEN.unpack_from(self._map, WRITTEN_OFFSET)[0])

    def last(self) -> TraceRecord | None:
        """The record of the row that the rank is in, or was in when it ended; None before the first."""
        written = self.written
        return self._read(written - 1) if written else None

    def records(self) -> Iterator[TraceRecord]:
        """The records still in the ring, oldest first."""
        written = self.written
        for sequence in range(max(0, written - self.header.capacity), written):
            yield self._read(sequence)

    def body(self) -> bytes:
        """A copy of all records as they lie in the file."""
        return self._map[HEADER_BYTES:]

    def _read(self, sequence: int) -> TraceRecord:
        offset = HEADER_BYTES + (sequence % self.header.capacity) * self._record.size
        stored, row, state, _, this_pass, time_ns, *fields = self._record.unpack_from(self._map, offset)
        return TraceRecord(stored, row, state == DONE, this_pass, time_ns, tuple(fields))

    def close(self) -> None:
        """Unmap."""
        self._map.close()
