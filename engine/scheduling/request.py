"""A request as rank 0 knows it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """`tokens` are the prompt and what was generated; the KV of the first `computed` of them is in the pages.

    Its passes in flight, `flights` of them, will raise `computed` to `granted` and add `pending` tokens. Only an output
    changes `computed` and `tokens`; a void one takes back what was granted, and counts as one of `rewinds`: passes
    planned on it before it came back are worth nothing.

    `arrival` orders requests by age. `slot` is None while the request waits or is `leaving`: out of its slot, holding
    its pages until no pass in flight writes them; then it is gone if it has `ended`, else it waits again. The ranks
    have been told the first `sent` entries of its block `table`.
    """

    id: int
    arrival: int
    tokens: list[int]
    prompt_length: int
    max_tokens: int
    stop_tokens: frozenset[int]
    computed: int = 0
    granted: int = 0
    pending: int = 0
    flights: int = 0
    rewinds: int = 0
    table: list[int] = field(default_factory=list)
    sent: int = 0
    slot: int | None = None
    leaving: bool = False
    aborted: bool = False
    ended: bool = False
    retries: int = 0

    @property
    def remaining(self) -> int:
        """Tokens whose KV no pass has been granted yet; 1 when decoding, 0 when the last one is on its way."""
        known = len(self.tokens) + self.pending
        return known - self.granted if known - self.prompt_length < self.max_tokens else 0

    def finish_after(self, token: int) -> str:
        """The finish reason once `token` has been generated, empty when the request goes on."""
        if token in self.stop_tokens:
            return "stop"
        return "length" if len(self.tokens) - self.prompt_length >= self.max_tokens else ""
