"""What bounds a pipeline's schedule: slots, pages, tokens and rows of a pass, context, retries."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headway.spec import capacity


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers that the policy plans with. Raises ValueError, naming the field, when one is out of range.

    `pages` is the size of the smallest rank's KV pool, in pages of `page_size` tokens; `max_context` the most
    tokens of a request, prompt and generated together; `max_batch_tokens` and `max_batch_rows` bound one pass;
    `max_retries` is how often in a row a request's pass may be void before the request ends with an error. `ahead` is
    how many passes of a slot may be in flight when the slot is planned again (`spec.serving.passes_ahead`).
    """

    slots: int
    pages: int
    page_size: int
    max_batch_tokens: int
    max_batch_rows: int
    max_context: int
    max_retries: int = 3
    ahead: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name in ("max_retries", "ahead") else 1
            if value < least:
                raise ValueError(f"{field.name} is {value}, must be at least {least}")
        # Every request of a slot decodes in every pass of the slot, so the rows must fit into the tokens.
        if self.max_batch_tokens < self.max_batch_rows:
            raise ValueError(
                f"max_batch_tokens is {self.max_batch_tokens}, must be at least max_batch_rows, {self.max_batch_rows}"
            )

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` positions take."""
        return capacity.pages_for(tokens, self.page_size)
