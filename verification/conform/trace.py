"""A rank's trace as columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.spec.table import Protocol, Role
from headway.spec.trace import DONE, RingReader, TraceError, TraceHeader, trace_path


@dataclass(frozen=True)
class RankTrace:
    """What is left in a rank's ring, oldest first. `wrapped`: older records were overwritten."""

    header: TraceHeader
    role: Role
    wrapped: bool
    rows: NDArray[np.int64]
    done: NDArray[np.bool_]
    passes: NDArray[np.int64]
    times: NDArray[np.int64]
    fields: NDArray[np.int64]  # [records, header.fields]

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def ended(self) -> bool:
        """Whether the rank reached the end of its role."""
        return bool(len(self)) and bool(self.done[-1]) and self.role.rows[int(self.rows[-1])].to == self.role.end


def read_trace(protocol: Protocol, path: Path) -> RankTrace:
    """The trace in a file; raises `TraceError` when it is damaged or of another table."""
    reader = RingReader(path)
    try:
        header, written, body = reader.header, reader.written, reader.body()
    finally:
        reader.close()
    if header.fingerprint != protocol.fingerprint:
        raise TraceError(
            f"{path}: written under table {header.fingerprint[:12]}, not {protocol.name!r} {protocol.fingerprint[:12]}"
        )
    layout = np.dtype(
        [
            ("sequence", "<u8"),
            ("row", "<u2"),
            ("state", "<u2"),
            ("padding", "<u4"),
            ("pass", "<i8"),
            ("time", "<u8"),
            ("fields", "<i8", (header.fields,)),
        ]
    )
    ring = np.frombuffer(body, dtype=layout)
    kept = min(written, header.capacity)
    records = np.roll(ring, -(written % header.capacity))[-kept:] if written > header.capacity else ring[:kept]
    expected = np.arange(written - kept, written, dtype=np.uint64)
    if not np.array_equal(records["sequence"], expected):
        first = int(np.flatnonzero(records["sequence"] != expected)[0])
        found = int(records["sequence"][first])
        raise TraceError(f"{path}: record {int(expected[first])} is numbered {found}: the trace is damaged")
    role = protocol.role_of(header.rank, header.ranks)
    rows = records["row"].astype(np.int64)
    if len(rows) and int(rows.max()) >= len(role.rows):
        raise TraceError(f"{path}: row {int(rows.max())} of role {role.name!r}, which has {len(role.rows)}")
    return RankTrace(
        header,
        role,
        written > header.capacity,
        rows,
        records["state"] == DONE,
        records["pass"].astype(np.int64),
        records["time"].astype(np.int64),
        records["fields"].reshape(kept, header.fields),
    )


def read_traces(protocol: Protocol, directory: Path) -> list[RankTrace]:
    """The traces of all ranks of one pipeline; raises `TraceError` when one is missing or is of another pipeline."""
    first = read_trace(protocol, trace_path(directory, 0))
    traces = [first]
    for rank in range(1, first.header.ranks):
        traces.append(read_trace(protocol, trace_path(directory, rank)))
    for rank, trace in enumerate(traces):
        shape = (trace.header.rank, trace.header.ranks, trace.header.slots)
        expected = (rank, first.header.ranks, first.header.slots)
        if shape != expected:
            raise TraceError(f"{trace_path(directory, rank)}: rank, ranks, slots are {shape}, expected {expected}")
    return traces
