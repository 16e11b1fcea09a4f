"""Text to token ids and back, whole or as a stream, and the chat template."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment

_REPLACEMENT = "\ufffd"  # what a decoder gives for bytes that are no whole character (yet)


class ChatTemplateError(ValueError):
    """The model has no chat template, or its template refuses the messages."""


class Tokenizer:
    """A `tokenizers` tokenizer with the chat template that belongs to it."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, chat_template: str | None, special_tokens: Mapping[str, str]
    ) -> None:
        """`special_tokens` are the template's variables, such as `bos_token`. Raises ChatTemplateError."""
        self._tokenizer = tokenizer
        self._special_tokens = dict(special_tokens)
        self._template = None if chat_template is None else _compile(chat_template)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids; special tokens written out in `text` are recognised. `add_special_tokens` adds those that the
        model wants around plain text (a rendered chat has them already)."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages`; `variables` go to the template as they are. Raises ChatTemplateError."""
        if self._template is None:
            raise ChatTemplateError("the model has no chat template")
        names = {"tools": None, "documents": None, **self._special_tokens, **(variables or {})}
        try:
            return self._template.render(
                {**names, "messages": list(messages), "add_generation_prompt": add_generation_prompt}
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ChatTemplateError(f"the chat template refuses the messages: {error}") from error

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self)


class Detokenizer:
    """The text of one growing sequence. Never gives half a character: that waits for its other bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []  # the tokens of the last piece given: decoders look at a token's neighbours
        self._fresh: list[int] = []  # the tokens after them
        self._given = 0  # characters of the text of both that were given

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that `token_ids` complete."""
        self._fresh += token_ids
        text = self._tokenizer.decode(self._context + self._fresh)
        if text.endswith(_REPLACEMENT):
            return self._give(text.rstrip(_REPLACEMENT))
        new = self._give(text)
        if len(text) > len(self._tokenizer.decode(self._context)):  # else the tokens were special ones, without text
            self._context = self._fresh
            self._given = len(self._tokenizer.decode(self._context))
        self._fresh = []
        return new

    def flush(self) -> str:
        """What is left at the end: replacement characters for bytes that never became one."""
        return self._give(self._tokenizer.decode(self._context + self._fresh))

    def _give(self, text: str) -> str:
        new = text[self._given :]
        self._given = max(self._given, len(text))
        return new


def _compile(template: str) -> jinja2.Template:
    """Compile with what templates may rely on in `transformers`' apply_chat_template, in a sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise ChatTemplateError(f"the chat template does not compile: {error}") from error


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
