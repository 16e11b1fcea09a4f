"""One HTTP request's way: body, prompts, jobs, choices, answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from headway.engine.serving import schema
from headway.engine.serving.client import EngineClient, Job
from headway.engine.serving.errors import InvalidRequest, NotFound, ServingError, invalid_request, shown
from headway.engine.serving.generate import Choices
from headway.engine.serving.metrics import Metrics
from headway.engine.serving.responses import ChatFormat, CompletionFormat, Format
from headway.engine.serving.text import Detokenizer, TextStream

Body = TypeVar("Body", bound=schema.Request)


class TextCodec(Protocol):
    """What the server needs of a tokenizer. `encode` and `render_chat` raise ValueError for what they cannot take."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]: ...
    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> str: ...
    def detokenizer(self) -> Detokenizer: ...


class ServedModel(NamedTuple):
    """What clients are told of the model, and what their requests are held to.

    `context`: most tokens of a prompt and its output together; `vocab_size`: token ids are below it; `stop_tokens`:
    those that end a text; `fingerprint`: the answers' `system_fingerprint`.
    """

    name: str
    context: int
    vocab_size: int
    stop_tokens: Sequence[int]
    fingerprint: str | None = None


class Bounds(NamedTuple):
    """Most choices of one HTTP request, over all its prompts, and most bytes of its body."""

    choices: int = 16
    body: int = 2 << 20


class Service:
    """Answers completions and chat completions.

    `seed` starts the sequence of seeds for requests that bring none, so that a server that gets the same requests in
    the same order answers the same.
    """

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: TextCodec,
        model: ServedModel,
        bounds: Bounds,
        seed: int,
        metrics: Metrics,
    ) -> None:
        self._engine, self._tokenizer, self._metrics = engine, tokenizer, metrics
        self._model, self._bounds = model, bounds
        self._seeds = random.Random(seed)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = await self._body(request, schema.ChatRequest)
        messages = [message.for_template() for message in body.messages]
        prompt = await self._encoded("messages", lambda: self._tokenizer.encode(self._tokenizer.render_chat(messages)))
        return await self._answer(request, body, [prompt], "messages", ChatFormat)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        body = await self._body(request, schema.CompletionRequest)
        self._check_count(len(body.prompt), body)
        prompts = [await self._prompt(prompt) for prompt in body.prompt]
        return await self._answer(request, body, prompts, "prompt", CompletionFormat)

    def check_model(self, name: str | None) -> None:
        """Raises `NotFound` where `name` is not the model that is served; None stands for it."""
        if name is not None and name != self._model.name:
            raise NotFound(
                f"model: {shown(name)} does not exist; allowed is {shown(self._model.name)}",
                param="model",
                code="model_not_found",
            )

    async def _body(self, request: Request, kind: type[Body]) -> Body:
        if (reason := self._engine.unavailable()) is not None:
            raise reason
        received, chunks = 0, []
        async for chunk in request.stream():
            received += len(chunk)
            if received <= self._bounds.body:
                chunks.append(chunk)
            elif received > 16 * self._bounds.body:
                break  # What is read and dropped up to here lets an ordinary client see the answer.
        if received > self._bounds.body:
            raise InvalidRequest(f"body: more than {self._bounds.body} bytes", code="body_too_long")
        try:
            body = kind.model_validate_json(b"".join(chunks))
        except ValidationError as failure:
            raise invalid_request(failure) from failure
        self.check_model(body.model)
        self._check_count(1, body)
        return body

    def _check_count(self, prompts: int, body: schema.Request) -> None:
        n = 1 if body.n is None else body.n
        if prompts * n > self._bounds.choices:
            raise InvalidRequest(
                f"n: {n} for {prompts} prompt(s); allowed are up to {self._bounds.choices} choices in all", param="n"
            )

    async def _prompt(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            return await self._encoded("prompt", lambda: self._tokenizer.encode(prompt, add_special_tokens=True))
        last = self._model.vocab_size - 1
        if (wrong := next((token for token in prompt if not 0 <= token <= last), None)) is not None:
            raise InvalidRequest(f"prompt: token id {shown(wrong)}; allowed is 0 to {last}", param="prompt")
        return prompt

    async def _encoded(self, param: str, encode: Callable[[], list[int]]) -> list[int]:
        # In a thread: a long text must not hold up the streams of others.
        try:
            return await asyncio.to_thread(encode)
        except ValueError as failure:
            raise InvalidRequest(f"{param}: {failure}", param=param) from failure

    def _max_tokens(self, body: schema.Request, prompt: list[int], param: str) -> int:
        room = self._model.context - len(prompt)
        if not prompt:
            raise InvalidRequest(f"{param}: empty; allowed is at least one token", param=param)
        if room < 1:
            message = (
                f"{param}: {len(prompt)} tokens; allowed are up to {self._model.context - 1}, to leave room for one"
            )
            raise InvalidRequest(message, param=param, code="context_length_exceeded")
        if body.token_limit is not None and body.token_limit > room:
            message = (
                f"max_tokens: {body.token_limit}; allowed are up to {room}, which the prompt of {len(prompt)} tokens "
                f"leaves of the context of {self._model.context}"
            )
            raise InvalidRequest(message, param="max_tokens", code="context_length_exceeded")
        return room if body.token_limit is None else body.token_limit

    async def _answer(
        self, request: Request, body: schema.Request, prompts: list[list[int]], param: str, format_: type[Format]
    ) -> Response:
        n = 1 if body.n is None else body.n
        limits = [self._max_tokens(body, prompt, param) for prompt in prompts]
        seed = self._seeds.getrandbits(63) if body.seed is None else body.seed
        stop_tokens = [] if body.ignore_eos else list(self._model.stop_tokens)
        jobs, texts = [], []
        for prompt, limit in zip(prompts, limits, strict=True):
            for choice in range(n):
                # The same prompt with the same seed gives the same choices, whatever prompts come with it.
                sampling = body.sampling((seed + choice) % (schema.MAX_SEED + 1), self._model.vocab_size)
                jobs.append(Job(prompt, limit, stop_tokens, sampling))
                texts.append(TextStream(self._tokenizer.detokenizer(), body.stop, stop_tokens))
        choices = Choices(self._engine, self._metrics, jobs, texts, sum(map(len, prompts)))
        with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        shape = format_(
            self._model.name, self._model.fingerprint, n, prompts if body.return_token_ids else None, with_usage
        )
        if body.stream:
            return _EventStream(choices, _events(choices, shape, with_usage))
        try:
            return await _unless_disconnected(request, choices, shape)
        finally:
            choices.close()


class _EventStream(StreamingResponse):
    """Server-sent events. However the response ends, a client that is gone included, the choices are closed."""

    def __init__(self, choices: Choices, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self._choices = choices

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._choices.close()


def _event(data: msgspec.Struct) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


async def _events(choices: Choices, shape: Format, with_usage: bool) -> AsyncIterator[bytes]:
    try:
        async for index, piece in choices.pieces():
            if (chunk := shape.chunk(index, piece)) is not None:
                yield _event(chunk)
    except ServingError as failure:
        yield _event(failure.body())
        return
    if with_usage:
        yield _event(shape.usage(choices.usage))
    yield b"data: [DONE]\n\n"


async def _unless_disconnected(request: Request, choices: Choices, shape: Format) -> Response:
    """The whole answer; a response that nobody reads where the client is gone before."""
    whole = asyncio.ensure_future(choices.whole())
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait([whole, gone], return_when=asyncio.FIRST_COMPLETED)
        if not whole.done():
            return Response(status_code=499)
        answer = shape.whole(whole.result(), choices.usage)
    finally:
        whole.cancel()
        gone.cancel()
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
