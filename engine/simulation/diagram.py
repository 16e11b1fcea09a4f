"""A space-time diagram as text: a column a rank, time downwards, from the ranks' traces."""

from __future__ import annotations

from collections.abc import Sequence

from headway.engine.recorder import RingReader, TraceRecord
from headway.spec.table import Post, Protocol, Receive, Role


def space_time(table: Protocol, readers: Sequence[RingReader], last: int = 60, width: int = 34) -> str:
    """The last `last` rows of all ranks in order of time; `>` posts, `<` received, `?` still in it."""
    ranks = len(readers)
    roles = [table.role_of(rank, ranks) for rank in range(ranks)]
    events = sorted(
        ((record.time_ns, rank, record) for rank, reader in enumerate(readers) for record in reader.records()),
        key=lambda event: event[:2],
    )
    standing = {rank: reader.written - 1 for rank, reader in enumerate(readers)}
    lines = ["time (us)".rjust(12) + "  " + "".join(f"rank {rank}".ljust(width) for rank in range(ranks)).rstrip()]
    for time, rank, record in events[-last:]:
        text = _text(table, roles[rank], record, record.sequence == standing[rank])
        lines.append(f"{time / 1000:12.1f}  {' ' * (width * rank)}{text}")
    return "\n".join(lines)


def _text(table: Protocol, role: Role, record: TraceRecord, latest: bool) -> str:
    row = role.rows[record.row]
    where = f"{record.this_pass:>3} {row.name}"
    operation = row.operation
    if isinstance(operation, Post | Receive):
        names = [name for name, _ in table.channel(operation.channel).fields]
        shown = {n: v for n, v in zip(names, record.fields, strict=False) if n not in ("pass", "digest")}
        facts = " ".join(f"{name}={value}" for name, value in shown.items())
        if isinstance(operation, Post):
            return f"> {where} {facts}".rstrip() + (" ?" if latest and not record.done else "")
        return f"< {where} {facts}".rstrip() if record.done else f"? {where}"
    return f"{'?' if latest else ' '} {where}"
