"""A request as rank 0 knows it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """`tokens` are the prompt and what was generated; the KV of the first `computed` of them is in the pages.

    `arrival` orders requests by age. `slot` is None while the request waits. The ranks have been told the first
    `sent` entries of its block `table`. Only an output changes `computed` and `tokens`, so a void pass leaves
    nothing to undo.
    """

    id: int
    arrival: int
    tokens: list[int]
    prompt_length: int
    max_tokens: int
    stop_tokens: frozenset[int]
    computed: int = 0
    table: list[int] = field(default_factory=list)
    sent: int = 0
    slot: int | None = None
    in_flight: bool = False
    aborted: bool = False
    retries: int = 0

    @property
    def remaining(self) -> int:
        """Known tokens whose KV is still to be computed; 1 when decoding."""
        return len(self.tokens) - self.computed

    def finish_after(self, token: int) -> str:
        """The finish reason once `token` has been generated, empty when the request goes on."""
        if token in self.stop_tokens:
            return "stop"
        return "length" if len(self.tokens) - self.prompt_length >= self.max_tokens else ""
