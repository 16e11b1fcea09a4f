"""From tokens to the text a client sees: incremental detokenization, then stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Detokenizer(Protocol):
    """One generation's detokenizer: the concatenation of what it returns is the text of all tokens."""

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that `token_ids` complete; empty while a character is incomplete."""

    def flush(self) -> str:
        """What is left when no token follows."""


class StopStrings:
    """Cuts text at the first stop string to be complete, and of those that end there at the longest.

    That rule depends on the text alone, not on how it arrives in pieces. Text that may yet turn out to begin
    a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that is now certain to be seen; nothing more once `stopped`."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        certain = len(text) - max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """The text held back, when no more follows."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of `text` that begins `stop`."""
        longest = min(len(text), len(stop) - 1)
        return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


class Piece(NamedTuple):
    """What is new of one choice: `text` may be empty while `tokens` are not, and the other way round.

    `finish` is OpenAI's finish reason, or empty while more follows.
    """

    text: str
    tokens: list[int]
    finish: str


class TextStream:
    """One choice's way from tokens to text. A stop token ends the text and is not part of it."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str], stop_tokens: Sequence[int]) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._stop_tokens = frozenset(stop_tokens)

    def push(self, tokens: Sequence[int], finish: str) -> Piece:
        """Takes new tokens and the engine's finish reason, empty while more follows; nothing may follow a finish."""
        text = ""
        for used, token in enumerate(tokens, start=1):
            if token not in self._stop_tokens:
                text += self._stops.push(self._detokenizer.add([token]))
            if self._stops.stopped:
                return Piece(text, list(tokens[:used]), "stop")
        if not finish:
            return Piece(text, list(tokens), "")
        text += self._stops.push(self._detokenizer.flush())
        if self._stops.stopped:
            return Piece(text, list(tokens), "stop")
        return Piece(text + self._stops.flush(), list(tokens), finish)
