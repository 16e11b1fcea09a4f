"""Responses and stream chunks as the OpenAI API has them."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from headway.engine.serving.text import Piece

AnswerObject = Literal["chat.completion", "chat.completion.chunk", "text_completion"]


class Usage(msgspec.Struct, frozen=True):
    """Counts of tokens. A prompt counts once for all its choices; an end-of-text token counts as generated."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """What `return_token_ids` adds to a choice: ids of the prompt (in a stream: in the first chunk) and the text."""

    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Message(msgspec.Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(Extension, frozen=True, kw_only=True):
    index: int
    message: Message
    finish_reason: str
    logprobs: None = None


class Delta(msgspec.Struct, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Extension, frozen=True, kw_only=True):
    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: None = None


class TextChoice(Extension, frozen=True, kw_only=True):
    """A completion's choice, whole or in a chunk, where `text` is what is new."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: None = None


Choice = ChatChoice | ChatChunkChoice | TextChoice


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A response or a chunk. `usage` is null in the chunks before the one that has it, and absent if not asked for."""

    id: str
    object: AnswerObject
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "headway"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok"] = "ok"


class Format(ABC):
    """How the answer to one HTTP request is written.

    Args: `model` and `fingerprint` are told to the client; choice `i` belongs to prompt `i // n`; `prompts` are the
    prompts' token ids where the client asked for token ids, else None; `streamed_usage` where a stream ends with usage.
    """

    prefix: str
    whole_object: AnswerObject
    chunk_object: AnswerObject

    def __init__(
        self, model: str, fingerprint: str | None, n: int, prompts: list[list[int]] | None, streamed_usage: bool
    ) -> None:
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model, self._fingerprint, self._n, self._prompts = model, fingerprint, n, prompts
        self._chunk_usage = None if streamed_usage else UNSET
        self._begun: dict[int, None] = {}

    def chunk(self, index: int, piece: Piece) -> Answer | None:
        """The chunk for a piece of choice `index`; None where it would say nothing."""
        if not (piece.text or piece.finish or self._prompts is not None):
            return None
        first = index not in self._begun
        self._begun[index] = None
        part = self._part(index, piece, first, self._extension(index, piece, first))
        return self._answer(self.chunk_object, [part], self._chunk_usage)

    def usage(self, usage: Usage) -> Answer:
        """The chunk that ends a stream with its usage."""
        return self._answer(self.chunk_object, [], usage)

    def whole(self, pieces: list[Piece], usage: Usage) -> Answer:
        """The answer that is not streamed: one whole piece for each choice."""
        choices = [
            self._choice(index, piece, self._extension(index, piece, True)) for index, piece in enumerate(pieces)
        ]
        return self._answer(self.whole_object, choices, usage)

    def _answer(self, kind: AnswerObject, choices: list[Choice], usage: Usage | UnsetType | None) -> Answer:
        return Answer(
            id=self._id,
            object=kind,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            system_fingerprint=self._fingerprint,
        )

    def _extension(self, index: int, piece: Piece, first: bool) -> Extension:
        if self._prompts is None:
            return Extension()
        return Extension(prompt_token_ids=self._prompts[index // self._n] if first else UNSET, token_ids=piece.tokens)

    @abstractmethod
    def _part(self, index: int, piece: Piece, first: bool, extension: Extension) -> Choice:
        """The choice of a chunk."""

    @abstractmethod
    def _choice(self, index: int, piece: Piece, extension: Extension) -> Choice:
        """The choice of a whole answer."""


class ChatFormat(Format):
    """The answers of /v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _part(self, index: int, piece: Piece, first: bool, extension: Extension) -> Choice:
        delta = Delta("assistant", piece.text) if first else Delta(content=piece.text or UNSET)
        return ChatChunkChoice(
            index=index, delta=delta, finish_reason=piece.finish or None, **msgspec.structs.asdict(extension)
        )

    def _choice(self, index: int, piece: Piece, extension: Extension) -> Choice:
        return ChatChoice(
            index=index, message=Message(piece.text), finish_reason=piece.finish, **msgspec.structs.asdict(extension)
        )


class CompletionFormat(Format):
    """The answers of /v1/completions."""

    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _part(self, index: int, piece: Piece, first: bool, extension: Extension) -> Choice:
        return self._choice(index, piece, extension)

    def _choice(self, index: int, piece: Piece, extension: Extension) -> Choice:
        return TextChoice(
            index=index, text=piece.text, finish_reason=piece.finish or None, **msgspec.structs.asdict(extension)
        )
