"""The first place where a trace is not what the table says."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(eq=False)
class Divergence(Exception):  # it is what a replay finds, raised out of its loop
    """Where: rank, its pass, its row, `time_ns` by its clock. What the table expects there, and what was found."""

    rank: int
    this_pass: int
    row: str
    expected: str
    found: str
    time_ns: int = 0

    def words(self) -> str:
        """In one line."""
        where = f"rank {self.rank}, pass {self.this_pass}, row {self.row!r}"
        return f"{where}: expected {self.expected}, found {self.found}"

    def plain(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)
