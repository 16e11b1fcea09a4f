"""A request as rank 0 knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.spec.capacity import Counts


@dataclass(slots=True, eq=False, kw_only=True)
class Request(Counts):
    """`tokens` are the prompt and what was generated, `known` of them.

    `flights` of its passes are in flight; each void one counts as one of `rewinds`: passes planned on it before it came
    back are worth nothing.

    `arrival` orders requests by age. `slot` is None while the request waits or is `leaving`: out of its slot, holding
    its pages until no pass in flight writes them; then it is gone if it has `ended`, else it waits again. The ranks
    have been told the first `sent` entries of its block `table`.
    """

    id: int
    arrival: int
    tokens: list[int]
    stop_tokens: frozenset[int]
    flights: int = 0
    rewinds: int = 0
    table: list[int] = field(default_factory=list)
    sent: int = 0
    slot: int | None = None
    leaving: bool = False
    aborted: bool = False
    ended: bool = False

    def finish_after(self, token: int) -> str:
        """The finish reason once `token` has been generated, empty when the request goes on."""
        if token in self.stop_tokens:
            return "stop"
        return "length" if self.full else ""
