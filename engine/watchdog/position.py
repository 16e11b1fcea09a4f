"""Where a rank stands, by the last record of its ring."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headway.engine.recorder import RingReader
from headway.spec.language import static_value
from headway.spec.table import Await, Channel, Gate, Local, Post, Protocol, Receive, Role


class Position(msgspec.Struct, frozen=True):
    """Where a rank stands: its row, what the row does, for how long (seconds), and the rank it waits on, if any.

    `nature` says which bound applies: "wire", "compute" or "step"; "idle" and "ended" have none. `awaited` is what rank
    `waits_on` must do on `channel`. `begins`: the row starts a pass, so nobody owes this rank anything yet.
    """

    rank: int
    row: str
    doing: str
    this_pass: int
    slot: int
    seconds: float
    waits_on: int | None = None
    channel: str = ""
    awaited: str = ""
    nature: str = "step"
    begins: bool = False

    def words(self) -> str:
        """As a clause of a sentence."""
        what = f"rank {self.rank} {self.doing} at {self.row!r} (pass {self.this_pass}, slot {self.slot})"
        on = f" on rank {self.waits_on} to {self.awaited}" if self.waits_on is not None else ""
        return f"{what}{on} for {self.seconds:.1f} s"


def position(protocol: Protocol, ranks: int, rank: int, reader: RingReader, now_ns: int) -> Position | None:
    """Where a rank stands by its ring; None before its first row. `now_ns` is by the ring's clock."""
    record = reader.last()
    if record is None:
        return None
    role: Role = protocol.role_of(rank, ranks)
    row = role.rows[record.row]
    seconds = max(0.0, (now_ns - record.time_ns) / 1e9)
    slot = record.this_pass % reader.header.slots
    operation = row.operation
    if record.done and row.to == role.end:
        return Position(rank, row.name, "has ended", record.this_pass, slot, seconds, nature="ended")
    if isinstance(operation, Local) and not record.done:
        doing = {"idle": "sleeps", "compute": "computes", "step": "is"}[operation.nature]
        return Position(rank, row.name, doing, record.this_pass, slot, seconds, nature=operation.nature)
    if record.done or not isinstance(operation, Receive | Gate | Await | Post):
        return Position(rank, row.name, "is", record.this_pass, slot, seconds)
    channel = protocol.channel(operation.channel)
    sends = isinstance(operation, Await | Post)
    awaited = f"receive {channel.name!r}"
    if not sends:
        lag = static_value(channel.lag, {"P": ranks, "L": reader.header.slots, "R": rank})
        awaited = f"post {channel.name!r} in its pass {record.this_pass - lag}"
    return Position(
        rank,
        row.name,
        "waits",
        record.this_pass,
        slot,
        seconds,
        _peer(channel, rank, ranks, sends),
        channel.name,
        awaited,
        "wire",
        row.at == role.start,
    )


def _peer(channel: Channel, rank: int, ranks: int, sends: bool) -> int:
    if channel.path == "closing":
        return 0 if sends else ranks - 1
    return rank + 1 if sends else rank - 1


def positions(protocol: Protocol, readers: Sequence[RingReader], now_ns: int) -> list[Position]:
    """Where each rank that has begun stands; `now_ns` is CLOCK_MONOTONIC."""
    ranks = len(readers)
    found = (position(protocol, ranks, rank, reader, now_ns) for rank, reader in enumerate(readers))
    return [p for p in found if p is not None]
