"""The choices of one HTTP request, from their submission to the last piece of text."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

from headway.engine.serving.client import EngineClient, Job
from headway.engine.serving.errors import GenerationFailed, ServingError
from headway.engine.serving.metrics import Metrics
from headway.engine.serving.responses import Usage
from headway.engine.serving.text import Piece, TextStream


class Choices:
    """Submits one job for each choice, and iterates over their pieces as they come: (index of the choice, piece).

    Raises `Unavailable` when it is made, and `Unavailable` or `GenerationFailed` from the iteration. `close` must
    be called in the end: it aborts what has not finished.
    """

    def __init__(
        self,
        engine: EngineClient,
        metrics: Metrics,
        jobs: Sequence[Job],
        texts: Sequence[TextStream],
        prompt_tokens: int,
    ) -> None:
        self._metrics = metrics
        self._generation = engine.submit(*jobs)
        self._indices = {request: index for index, request in enumerate(self._generation.requests)}
        self._texts = texts
        # When each choice that has not finished was submitted, or last had tokens.
        self._times = dict.fromkeys(self._indices, time.perf_counter())
        self._started: dict[int, None] = {}
        self._prompt_tokens, self._generated_tokens = prompt_tokens, 0
        metrics.prompt_tokens.inc(prompt_tokens)

    @property
    def usage(self) -> Usage:
        """The tokens so far."""
        return Usage(self._prompt_tokens, self._generated_tokens, self._prompt_tokens + self._generated_tokens)

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """The pieces of all choices; each choice's last one has a finish reason."""
        try:
            async for report in self._generation:
                index = self._indices[report.request]
                piece = self._texts[index].push(report.tokens, report.finish)
                self._count(report.request, piece)
                if piece.finish:
                    self._generation.abort(report.request)
                yield index, piece
        except ServingError as failure:
            self._end_unfinished("error" if isinstance(failure, GenerationFailed) else "unavailable")
            raise

    async def whole(self) -> list[Piece]:
        """Every choice's pieces joined, by index."""
        collected: list[list[Piece]] = [[] for _ in self._texts]
        async for index, piece in self.pieces():
            collected[index].append(piece)
        return [
            Piece("".join(p.text for p in pieces), [token for p in pieces for token in p.tokens], pieces[-1].finish)
            for pieces in collected
        ]

    def close(self) -> None:
        """Aborts what has not finished, because the client is gone; no effect when all has."""
        self._generation.close()
        self._end_unfinished("disconnected")

    def _count(self, request: int, piece: Piece) -> None:
        if piece.tokens:
            now = time.perf_counter()
            elapsed, self._times[request] = now - self._times[request], now
            latency = (
                self._metrics.inter_token_latency if request in self._started else self._metrics.time_to_first_token
            )
            latency.observe(elapsed)
            self._started[request] = None
            self._metrics.generated_tokens.inc(len(piece.tokens))
            self._generated_tokens += len(piece.tokens)
        if piece.finish:
            del self._times[request]
            self._metrics.ended(piece.finish)

    def _end_unfinished(self, outcome: str) -> None:
        for _ in self._times:
            self._metrics.ended(outcome)
        self._times.clear()
