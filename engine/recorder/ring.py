"""Writes one rank's ring, in the format of `spec.trace`."""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable
from pathlib import Path

from headway.spec.trace import (
    DONE,
    ENTERED,
    FIELDS_OFFSET,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    STATE_OFFSET,
    WRITTEN,
    WRITTEN_OFFSET,
    record_struct,
)


class RingRecorder:
    """Writes one rank's ring. `fields` must hold the widest message or return of the table; `clock`: nanoseconds."""

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
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._record = record_struct(fields)
        self._tail = [struct.Struct(f"<{n}q") for n in range(fields + 1)]
        self._clock = clock
        size = self._record.size
        with open(path, "wb+") as file:
            file.truncate(HEADER_BYTES + size * capacity)
            self._map = mmap.mmap(file.fileno(), 0)
        HEADER.pack_into(self._map, 0, MAGIC, bytes.fromhex(fingerprint), rank, ranks, slots, fields, capacity, pid)
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
            self._clock(),
            *fields,
            *self._padding[len(fields)],
        )
        self._sequence = sequence + 1
        WRITTEN.pack_into(self._map, WRITTEN_OFFSET, sequence + 1)

    def done(self, *fields: int) -> None:
        """The operation of the row last entered obtained `fields`."""
        offset = self._offset
        self._tail[len(fields)].pack_into(self._map, offset + FIELDS_OFFSET, *fields)
        self._map[offset + STATE_OFFSET] = DONE

    def close(self) -> None:
        """Unmap; the file stays."""
        self._map.close()
