"""What goes wrong at the HTTP side, each in OpenAI's error shape."""

from __future__ import annotations

import json
from http import HTTPStatus

import msgspec
from fastapi import Response
from pydantic import ValidationError


class ErrorDetail(msgspec.Struct, frozen=True):
    """OpenAI's error object: `param` names the offending field, `code` is stable and for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The whole body of an error response, and the data of an error event in a stream."""

    error: ErrorDetail


class ServingError(Exception):
    """An error with an HTTP status, answered to the client in OpenAI's shape."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    type = "server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.code = message, param, code

    def body(self) -> ErrorBody:
        return ErrorBody(ErrorDetail(self.message, self.type, self.param, self.code))

    def response(self) -> Response:
        return Response(msgspec.json.encode(self.body()), self.status, media_type="application/json")


class InvalidRequest(ServingError):
    """The client's request is at fault: nothing was sent to the engine."""

    status = HTTPStatus.BAD_REQUEST
    type = "invalid_request_error"


class NotFound(InvalidRequest):
    """No such model or route."""

    status = HTTPStatus.NOT_FOUND


class GenerationFailed(ServingError):
    """The engine ended this one request with an error; it goes on serving others."""


class Unavailable(ServingError):
    """The engine takes no requests, or ended this one, because it failed or is shutting down."""

    status = HTTPStatus.SERVICE_UNAVAILABLE


def shown(value: object, limit: int = 60) -> str:
    """A JSON value as an error message quotes it: one line, bounded."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[:limit]}..."


def field_path(location: tuple[str | int, ...]) -> str:
    """A path such as `messages[0].role` from a location such as `("messages", 0, "role")`."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.removeprefix(".")


# Errors whose input is the whole enclosing object, or the whole body, which a message should not quote.
_UNQUOTED = frozenset({"missing", "json_invalid", "json_type"})


def invalid_request(failure: ValidationError) -> InvalidRequest:
    """The first finding of `failure`, naming the field, what is allowed and the value that was sent."""
    first, more = failure.errors(include_url=False)[0], failure.error_count() - 1
    param = field_path(first["loc"]) or None
    message = "unknown field" if first["type"] == "extra_forbidden" else first["msg"]
    quoted = "" if first["type"] in _UNQUOTED else f"; got {shown(first['input'])}"
    others = f" (and {more} more)" if more else ""
    return InvalidRequest(f"{param or 'body'}: {message}{quoted}{others}", param=param, code="invalid_value")
