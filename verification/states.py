"""What a state of the whole pipeline is made of, and what a step or a broken law looks like."""

from __future__ import annotations

from typing import NamedTuple

from headway.spec.language import Value


class RankState(NamedTuple):
    """Where one rank is and what it knows.

    `history[v]` holds a variable's values at the end of earlier passes, latest first.
    """

    location: str
    this_pass: int
    variables: tuple[Value, ...]
    history: tuple[tuple[Value, ...], ...]
    held: tuple[str, ...]  # channels whose handle this rank has posted and not awaited
    turns: tuple[str, ...] = ()  # collectives that this rank has left an odd number of times


class Message(NamedTuple):
    """A message on a wire or in a stash; `values` is None once it is lost: it blocks the wire for ever."""

    channel: str
    values: tuple[Value, ...] | None


class State(NamedTuple):
    """One state of the whole pipeline.

    `queues[w]` holds what is on `Network.wires[w]` and `stashes[e]` what the receiver of `Network.edges[e]` has put
    aside, oldest first; `opened[p]` says whether `Network.pairs[p]` has its communicator.
    """

    ranks: tuple[RankState, ...]
    queues: tuple[tuple[Message, ...], ...]
    stashes: tuple[tuple[Message, ...], ...]
    opened: tuple[bool, ...]


STOPPED = State((), (), (), ())  # the group has been stopped by a gate that waited beyond its bound


class Edge(NamedTuple):
    """A channel between two particular ranks."""

    channel: str
    source: int
    sink: int


class Wire(NamedTuple):
    """One FIFO between two particular ranks, and the channels that share it."""

    channels: tuple[str, ...]
    source: int
    sink: int


class Step(NamedTuple):
    """One executed row: by which rank, in which pass, and what it sent, took or returned."""

    rank: int
    row: str
    this_pass: int
    slot: int
    detail: str


class Broken(NamedTuple):
    """A broken law: its name, the rank and row that broke it, and what was found."""

    law: str
    rank: int
    row: str
    finding: str


def show_value(value: Value) -> str:
    """A value as the table writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
