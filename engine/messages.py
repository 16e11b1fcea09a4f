"""What travels between processes, as msgspec structs: intake, relayed requests, decisions, outputs.

The protocol facts of a message (pass, digest, flags) are fields of its channel in the table; the structs here are
the payloads that travel with them and that the protocol never looks into.
"""

from __future__ import annotations

import msgspec


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one request's next token is chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 mean no limit.

    With one `seed`, a request's tokens are the same whatever else runs beside it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """API process to rank 0: a new request. `request` is unique for the life of the server.

    Generation ends after `max_tokens` tokens ("length"), or at a token of `stop_tokens`, which is reported
    with finish reason "stop". Text-level stop strings are the API process's: it aborts the request.
    """

    request: int
    prompt: list[int]
    max_tokens: int
    stop_tokens: list[int] = []
    sampling: Sampling = Sampling()


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """API process to rank 0: the client is gone or has enough; free what the request holds."""

    request: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """API process to rank 0: take no more requests, finish those taken, then end the pipeline cleanly."""


Intake = Submit | Abort | Stop


class Generated(msgspec.Struct, frozen=True, tag="generated"):
    """Rank 0 to API process: new tokens of a request; `finish` is empty, "stop", "length", "abort" or "error"."""

    request: int
    tokens: list[int]
    finish: str = ""
    error: str = ""


class Gauges(msgspec.Struct, frozen=True, tag="gauges"):
    """Rank 0 to API process: counts for metrics, sent when they change."""

    passes: int
    waiting: int
    running: int
    free_pages: int
    total_pages: int
    voids: int = 0
    preemptions: int = 0


Report = Generated | Gauges


class Relayed(msgspec.Struct, frozen=True):
    """Payload of the request chain: what ranks above 0 must know of a new request before it can be planned."""

    request: int
    sampling: Sampling


class BatchRow(msgspec.Struct, frozen=True, array_like=True):
    """One request's part of a pass: `count` tokens from position `start`.

    `pages` are the KV pages of block-table entries `first_page`, `first_page + 1`, ...: applying a row twice
    changes nothing. `samples` says whether the last token's logits yield a token. With `from_last` the one input is
    the token that the request's last pass samples, which was in flight when this row was planned.
    """

    request: int
    start: int
    count: int
    first_page: int
    pages: list[int]
    samples: bool
    from_last: bool = False


class Decision(msgspec.Struct, frozen=True):
    """Payload of the decision: the rows of the pass in order, and the requests whose books are to be dropped.

    `refused_by` and `refusal` say which rank could not honour the decision and why; empty while none has.
    """

    rows: list[BatchRow] = []
    released: list[int] = []
    refused_by: int = -1
    refusal: str = ""


class Output(msgspec.Struct, frozen=True):
    """Payload of the output: one token for each row that samples, in the order of the rows; none when void."""

    tokens: list[int] = []
    refused_by: int = -1
    refusal: str = ""
