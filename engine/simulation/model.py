"""A tiny deterministic model whose every token can be computed apart: it really reads and writes KV pages.

A stage turns the value of each position into a number that depends on the values of all positions before it, as they
stand in the pages of the block table. A page that was reused too early, a wrong table, a lost or repeated token or a
batch of other members each changes the tokens of a request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.engine.messages import Sampling, Submit
from headway.engine.scheduling import Member

VOCABULARY = 251
_PRIME = 1_000_003
Values = tuple[tuple[int, ...], ...]  # one tuple a member: the value of each of its positions in this pass


class WrongPageError(RuntimeError):
    """A stage read a position that nobody wrote, or that is another request's."""


@dataclass(frozen=True)
class Work:
    """A batch as one stage sees it. `tokens` is empty where the stage does not embed."""

    members: tuple[tuple[int, tuple[int, ...], int, int, Sampling, bool], ...]
    from_last: tuple[bool, ...]
    tokens: Values


class FakeStage:
    """One stage. `spend(tokens, samples)` is told how much each forward computes, so that it can take its time."""

    def __init__(self, page_size: int, spend: Callable[[int, int], None]) -> None:
        self._page_size, self._spend = page_size, spend
        self._cells: dict[int, tuple[int, int, int]] = {}  # cell of the KV cache -> request, position, value
        self._last: dict[int, int] = {}  # request -> the token it sampled last
        self._launched: deque[list[int]] = deque()

    def prepare(self, members: Sequence[Member], tokens: Sequence[Sequence[int]]) -> Work:
        """Lay out a batch."""
        rows = tuple((m.request, tuple(m.table), m.start, m.count, m.sampling, m.samples) for m in members)
        return Work(rows, tuple(m.from_last for m in members), tuple(map(tuple, tokens)))

    def forward(self, work: Work, hidden: Values | None) -> Values:
        """Write the values of this pass, read all earlier ones back, and return what each position becomes."""
        inputs = self._embed(work) if hidden is None else hidden
        if [len(row) for row in inputs] != [count for _, _, _, count, _, _ in work.members]:
            raise WrongPageError(
                f"hidden states for {[len(row) for row in inputs]} tokens, the batch is {work.members}"
            )
        self._spend(sum(map(len, inputs)), sum(samples for *_, samples in work.members))
        return tuple(
            self._attend(request, table, start, values)
            for (request, table, start, _, _, _), values in zip(work.members, inputs, strict=True)
        )

    def _embed(self, work: Work) -> Values:
        """The input tokens; those that were not known to the planner are the last ones sampled."""
        rows = zip(work.members, work.from_last, work.tokens, strict=True)
        return tuple((self._last[request],) if from_last else given for (request, *_), from_last, given in rows)

    def _attend(self, request: int, table: tuple[int, ...], start: int, values: tuple[int, ...]) -> tuple[int, ...]:
        cells = [page * self._page_size + i for page in table for i in range(self._page_size)]
        for position, value in enumerate(values, start):
            self._cells[cells[position]] = (request, position, value)
        total, outputs = 0, []
        for position in range(start + len(values)):
            owner, at, value = self._cells.get(cells[position], (-1, -1, 0))
            if (owner, at) != (request, position):
                page = cells[position] // self._page_size
                raise WrongPageError(
                    f"request {request}, position {position}: page {page} holds position {at} of request {owner}"
                )
            total = (total + (position + 1) * value) % _PRIME
            if position >= start:
                outputs.append(_mix(total))
        return tuple(outputs)

    def launch(self, work: Work, hidden: Values | None) -> None:
        """Forward, then a token for each member that samples, in order."""
        tokens = []
        for member, values in zip(work.members, self.forward(work, hidden), strict=True):
            request, _, start, count, sampling, samples = member
            if samples:
                self._last[request] = _token(values[-1], sampling, start + count)
                tokens.append(self._last[request])
        self._launched.append(tokens)

    def collect(self) -> list[int]:
        """The tokens of the oldest launched pass not yet collected."""
        return self._launched.popleft()


def _mix(total: int) -> int:
    return (7 * total * total + 13 * total + 5) % _PRIME


def _token(value: int, sampling: Sampling, position: int) -> int:
    return (value + sampling.seed * position) % VOCABULARY


def expected_tokens(submit: Submit, stages: int) -> tuple[list[int], str]:
    """What `stages` stages generate for a request that runs alone and to its end, and the finish reason."""
    totals = [0] * stages
    generated: list[int] = []
    value = known = 0
    while True:
        done, known = known, len(submit.prompt) + len(generated)
        for position in range(done, known):
            index = position - len(submit.prompt)
            value = submit.prompt[position] if index < 0 else generated[index]
            for stage in range(stages):
                totals[stage] = (totals[stage] + (position + 1) * value) % _PRIME
                value = _mix(totals[stage])
        generated.append(_token(value, submit.sampling, known))
        if generated[-1] in submit.stop_tokens:
            return generated, "stop"
        if len(generated) == submit.max_tokens:
            return generated, "length"


class ValuesCodec:
    """Hidden states of the fake model are immutable: they cross as they are."""

    def encode(self, payload: Values) -> Values:
        """Unchanged."""
        return payload

    def decode(self, encoded: Values) -> Values:
        """Unchanged."""
        return encoded
