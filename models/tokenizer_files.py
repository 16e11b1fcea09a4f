"""Tokenizers from the files of a Hugging Face folder and from GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from headway.models.errors import ModelError
from headway.models.json_file import read_json
from headway.models.tokenizer import ChatTemplateError, Tokenizer

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types that are matched in the text before the merges

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """From `tokenizer.json`, `tokenizer_config.json` and, if it is there, `chat_template.jinja`. Raises ModelError."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder}: no tokenizer.json")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for a file that it cannot read
        raise ModelError(f"{path}: not a readable tokenizer: {error}") from error
    config = read_json(folder / "tokenizer_config.json", optional=True)
    special = {name: _content(config, name, folder) for name in _SPECIAL if config.get(name) is not None}
    return _with_template(tokenizer, _folder_template(folder, config), special, str(folder))


def tokenizer_from_gguf(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """A byte-level BPE tokenizer from the `tokenizer.*` metadata of a GGUF file. Raises ModelError."""
    names = ("model", "pre", "tokens", "token_type", "merges")
    missing = [name for name in names if f"tokenizer.ggml.{name}" not in metadata]
    if missing:
        raise ModelError(f"{source}: metadata tokenizer.ggml.{missing[0]} is missing")
    kind, pre = metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]
    tokens, merges = (_list(metadata, name, str, source) for name in ("tokens", "merges"))
    types = _list(metadata, "token_type", int, source)
    if kind != "gpt2":
        raise ModelError(f"{source}: tokenizer.ggml.model is {kind!r}; supported: 'gpt2' (byte-level BPE)")
    pre_tokenizer = _pre_tokenizers().get(pre)
    if pre_tokenizer is None:
        allowed = ", ".join(_pre_tokenizers())
        raise ModelError(f"{source}: tokenizer.ggml.pre is {pre!r}; supported: {allowed}")
    if len(types) != len(tokens):
        raise ModelError(f"{source}: {len(types)} token types for {len(tokens)} tokens")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    llama3 = pre == "llama-bpe"
    try:
        bpe = models.BPE({token: index for index, token in enumerate(tokens)}, pairs, ignore_merges=llama3)
    except Exception as error:  # the library raises plain Exception for merges of unknown tokens
        raise ModelError(f"{source}: the tokenizer's merges do not fit its tokens: {error}") from error
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([_added(t) for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL])
    tokenizer.add_tokens([_added(t) for t, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED])
    keys = {name: f"tokenizer.ggml.{name[:3]}_token_id" for name in ("bos_token", "eos_token")}
    special = {name: _token_of(metadata, key, tokens, source) for name, key in keys.items() if key in metadata}
    if metadata.get("tokenizer.ggml.add_bos_token", llama3) and "bos_token" in special:
        bos = special["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, tokens.index(bos))]
        )
    return _with_template(tokenizer, metadata.get("tokenizer.chat_template"), special, source)


def _pre_tokenizers() -> dict[str, pre_tokenizers.PreTokenizer]:
    """How text is cut before the merges, by the names that llama.cpp gives them."""
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return {
        "gpt-2": gpt2,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]),
        "llama-bpe": pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(_LLAMA3_WORDS), behavior="isolated"), bytes_only]
        ),
    }


def _folder_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):  # named templates; the one for plain chats is called default
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{folder / 'tokenizer_config.json'}: chat_template must be a string")
    return template


def _with_template(
    tokenizer: tokenizers.Tokenizer, template: str | None, special: Mapping[str, str], source: str
) -> Tokenizer:
    try:
        return Tokenizer(tokenizer, template, special)
    except ChatTemplateError as error:
        raise ModelError(f"{source}: {error}") from error


def _content(config: Mapping[str, Any], name: str, folder: Path) -> str:
    """A special token, written as a string or as an object."""
    token = config[name]
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        raise ModelError(f"{folder / 'tokenizer_config.json'}: {name} is {token!r}; a string is needed")
    return content


def _list(metadata: Mapping[str, Any], name: str, kind: type, source: str) -> list[Any]:
    values = metadata[f"tokenizer.ggml.{name}"]
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise ModelError(f"{source}: tokenizer.ggml.{name} must be a list of {kind.__name__}")
    return values


def _token_of(metadata: Mapping[str, Any], key: str, tokens: list[str], source: str) -> str:
    index = metadata[key]
    if type(index) is not int or not 0 <= index < len(tokens):
        raise ModelError(f"{source}: {key} is {index!r}; an int below {len(tokens)} is needed")
    return tokens[index]


def _added(token: str) -> AddedToken:
    return AddedToken(token, normalized=False, special=False)
