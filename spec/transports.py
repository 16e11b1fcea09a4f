"""Transport contracts: what a post may wait for, and when an await returns. One table, many contracts.

A message is *under way* from its post until its receiver takes it off the wire. A rank is *at a receive* when it stands
at a `Receive` whose message is not in the stash already: its matching receive is posted.

posted            A post returns at once. Its await returns when the peer has posted the matching receive: nothing is
                  ahead of the message and the peer is at a receive. This is gloo (measured: torch 2.13, TCP, 8 bytes
                  to 4 MiB; no size completes early).
rendezvous        The post itself returns only when the peer is at a receive and nothing is under way. Until then the
                  rank is attempting it.
lazy              The first operation of an unordered pair of ranks is a rendezvous: a post waits until the peer is at a
                  receive or post of that pair too; from then on as `posted`. NCCL creates a pair's communicator so.
credits(k)        A post returns at once, and up to k messages of the ordered pair of ranks complete without a receiver;
                  all operations of an unordered pair take effect in the order of issue: a receive has begun only when
                  the rank's own earlier sends to that peer are complete. This is unbatched NCCL between two ranks.
stream_ordered(k) Awaits fence a device stream only: they return at once. A post waits while k messages are under way
                  (k = 0: rendezvous).
dropped           As `posted`, but no handle is kept. If the matching receive is not posted yet the message is lost, and
                  the wire is blocked from there on: no later message is delivered either (measured with gloo).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from headway.spec.language import SpecError

Kind = Literal["posted", "rendezvous", "lazy", "credits", "stream_ordered", "dropped"]
_COUNTED = ("credits", "stream_ordered")


@dataclass(frozen=True)
class Transport:
    """The contract of one channel's wire. `credits` is the k of `credits(k)` and `stream_ordered(k)`."""

    kind: Kind
    credits: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise SpecError(f"transport {self.kind!r}: unknown; allowed: {_ALLOWED}")
        if self.credits < 0 or (self.credits and self.kind not in _COUNTED):
            raise SpecError(f"transport {self.kind!r} with {self.credits} credits; allowed: {_ALLOWED}")

    @property
    def name(self) -> str:
        """The contract as written on the command line, such as `posted` or `credits(2)`."""
        return f"{self.kind}({self.credits})" if self.kind in _COUNTED else self.kind


_ALLOWED = ", ".join(f"{kind}(K)" if kind in _COUNTED else kind for kind in get_args(Kind))

POSTED = Transport("posted")
RENDEZVOUS = Transport("rendezvous")
LAZY = Transport("lazy")
DROPPED = Transport("dropped")


def credits(count: int) -> Transport:
    """`credits(count)`."""
    return Transport("credits", count)


def stream_ordered(count: int) -> Transport:
    """`stream_ordered(count)`."""
    return Transport("stream_ordered", count)


def parse_transport(text: str) -> Transport:
    """A contract from its name, such as `posted` or `credits(2)`; raises `SpecError`."""
    match = re.fullmatch(r"(\w+?)(?:\((\d+)\))?", text)
    kind = match[1] if match else text
    if match is None or kind not in get_args(Kind) or (kind in _COUNTED) != (match[2] is not None):
        raise SpecError(f"transport {text!r}: unknown; allowed: {_ALLOWED}")
    return Transport(kind, int(match[2] or 0))  # type: ignore[arg-type]  # checked just above


def alone(transport: Transport) -> tuple[int, int]:
    """How many posts and how many awaits of a sender return while its receiver does not come.

    The sender posts, awaits, posts, awaits and so on, on a wire that nothing has crossed yet. A launch compares its
    wires with this.
    """
    if transport.kind in ("posted", "dropped"):
        return 1, 0
    if transport.kind == "credits":
        return transport.credits + 1, transport.credits
    if transport.kind == "stream_ordered":
        return transport.credits, transport.credits
    return 0, 0
