"""Requests as the OpenAI API has them. What is not supported is refused by name, never ignored.

Null stands for "not given" wherever OpenAI clients send it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from headway.engine.messages import Sampling
from headway.engine.serving.errors import InvalidRequest, shown

MAX_SEED = 2**63 - 1
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 512
# Far below any difference that sampling shows, and far above what divides float32 logits to infinity.
GREEDY_BELOW = 1e-4
SMALLEST_TOP_P = 1e-6


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def only(*allowed: object) -> Callable[[object], object]:
    """A validator for a field of OpenAI's API that is accepted at its default and supported nowhere else."""

    def check(value: object) -> object:
        if value is not None and not any(_same(value, each) for each in allowed):
            choices = " or ".join(["null", *(shown(each) for each in allowed)])
            raise PydanticCustomError("unsupported_value", "not supported; allowed is {choices}", {"choices": choices})
        return value

    return check


Unsupported = Annotated[Any, AfterValidator(only())]
FalseOnly = Annotated[Any, AfterValidator(only(False))]
ZeroOnly = Annotated[Any, AfterValidator(only(0))]
OneOnly = Annotated[Any, AfterValidator(only(1))]
EmptyListOnly = Annotated[Any, AfterValidator(only([]))]
EmptyObjectOnly = Annotated[Any, AfterValidator(only({}))]


def _stops(value: object) -> list[str]:
    if value is None:
        return []
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(stop, str) for stop in stops):
        raise PydanticCustomError("stop", f"allowed is a string or a list of up to {MAX_STOPS} strings")
    if not all(0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
        raise PydanticCustomError("stop", f"each string must have 1 to {MAX_STOP_CHARACTERS} characters")
    return stops


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompts(value: object) -> list[str | list[int]]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(_is_token(part) for part in value):
            return [value]
        if all(isinstance(part, str) for part in value):
            return value
        if all(isinstance(part, list) and all(_is_token(token) for token in part) for part in value):
            return value
    raise PydanticCustomError(
        "prompt", "allowed is a string, a list of strings, a list of token ids or a list of lists of token ids"
    )


def _content(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        texts = [part["text"] for part in value if isinstance(part, dict) and part.keys() == {"type", "text"}]
        types = [part["type"] for part in value if isinstance(part, dict) and "type" in part]
        if len(texts) == len(value) and types == ["text"] * len(value) and all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise PydanticCustomError("content", 'allowed is a string or a list of parts {"type": "text", "text": string}')


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: FalseOnly = None


class Message(_Strict):
    """A message of a chat. `developer` is OpenAI's newer word for `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, PlainValidator(_content)]
    name: str | None = None
    # An assistant's message is often sent back as it came.
    refusal: Unsupported = None
    annotations: EmptyListOnly = None
    audio: Unsupported = None
    function_call: Unsupported = None
    tool_calls: EmptyListOnly = None

    def for_template(self) -> dict[str, str]:
        """The message as chat templates read it."""
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": self.content} | ({"name": self.name} if self.name is not None else {})


class Request(_Strict):
    """What completions and chat completions share."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Annotated[list[str], PlainValidator(_stops)] = []
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Extensions, named as other servers name them.
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None

    # No effect on what is generated.
    user: str | None = None

    frequency_penalty: ZeroOnly = None
    presence_penalty: ZeroOnly = None
    repetition_penalty: OneOnly = None
    min_p: ZeroOnly = None
    logit_bias: EmptyObjectOnly = None

    @model_validator(mode="after")
    def _options_need_stream(self) -> Request:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options: allowed only with stream true", param="stream_options")
        return self

    @property
    def token_limit(self) -> int | None:
        """The most tokens to generate for a choice, where the client says so."""
        return self.max_tokens

    def sampling(self, seed: int, vocabulary: int) -> Sampling:
        """How to choose tokens, with OpenAI's defaults; a `top_k` of the whole vocabulary or more is no limit."""
        temperature = 1.0 if self.temperature is None else self.temperature
        top_p = 1.0 if self.top_p is None else self.top_p
        top_k = 0 if self.top_k is None or self.top_k >= vocabulary else self.top_k
        return Sampling(
            temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
            top_p=max(top_p, SMALLEST_TOP_P),
            top_k=top_k,
            seed=seed,
        )


class CompletionRequest(Request):
    """POST /v1/completions."""

    prompt: Annotated[list[str | list[int]], PlainValidator(_prompts)]

    echo: FalseOnly = None
    logprobs: FalseOnly = None
    best_of: OneOnly = None
    suffix: Unsupported = None

    @property
    def token_limit(self) -> int:
        """OpenAI's default for completions is 16."""
        return 16 if self.max_tokens is None else self.max_tokens


class ChatRequest(Request):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    # No effect on what is generated.
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: Annotated[Any, AfterValidator(only("auto", "default"))] = None

    audio: Unsupported = None
    function_call: Annotated[Any, AfterValidator(only("none"))] = None
    functions: EmptyListOnly = None
    logprobs: FalseOnly = None
    modalities: Annotated[Any, AfterValidator(only(["text"]))] = None
    prediction: Unsupported = None
    reasoning_effort: Unsupported = None
    response_format: Annotated[Any, AfterValidator(only({"type": "text"}))] = None
    store: FalseOnly = None
    tool_choice: Annotated[Any, AfterValidator(only("none", "auto"))] = None
    tools: EmptyListOnly = None
    top_logprobs: ZeroOnly = None
    verbosity: Unsupported = None
    web_search_options: Unsupported = None

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise InvalidRequest(
                f"max_tokens: {self.max_tokens} contradicts max_completion_tokens, {self.max_completion_tokens}",
                param="max_tokens",
            )
        return self

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens
