"""The digest of a batch, by which ranks check that they run the same one."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from headway.engine.messages import BatchRow

IDLE = 0


def batch_digest(rows: Sequence[BatchRow]) -> int:
    """A number in 1 .. 2**63-1 for the ordered (request, start, count, samples) of `rows`; IDLE when there are none."""
    if not rows:
        return IDLE
    members = [number for row in rows for number in (row.request, row.start, row.count, row.samples)]
    packed = struct.pack(f"<{len(members)}q", *members)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1 or 1
