"""Transport contracts: what a post may wait for, and when an await returns. One table, many contracts.

`posted` is what gloo does: a post returns at once, and its await returns when the peer has posted the matching
receive (measured: torch 2.13, gloo over TCP, 8 bytes to 4 MiB; no size completes early).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["posted", "rendezvous", "lazy", "credits", "stream_ordered", "dropped"]


@dataclass(frozen=True)
class Transport:
    """The contract of one channel's wire. `credits` is the number of messages that complete without a receiver."""

    kind: Kind
    credits: int = 0

    @property
    def name(self) -> str:
        """The contract as written on the command line, such as `posted` or `credits(2)`."""
        return f"{self.kind}({self.credits})" if self.kind in ("credits", "stream_ordered") else self.kind


POSTED = Transport("posted")
