"""Runs a compiled program: links it to wires, bindings and the recorder, then steps from location to location."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headway.engine.loop.compile import Program
from headway.spec.language import SpecError

Fields = tuple[int, ...]


class BrokenLaw(RuntimeError):
    """A law of the protocol broke on this rank: the rank stops, and so does the group. Says rank, row and pass."""


class Outgoing(Protocol):
    """The sending end of one channel: at most one message is posted and not waited for."""

    def post(self, fields: Fields, payload: Any) -> None:
        """Start sending."""

    def wait(self) -> None:
        """Block until the transport says that the posted message is done."""


class Incoming(Protocol):
    """The receiving end of one channel."""

    def gate(self, bound: float) -> bool:
        """Block until the sender has attempted the next message; False when `bound` seconds passed first."""

    def receive(self) -> tuple[Fields, Any]:
        """Block until the next message is here and take it."""


class Recorder(Protocol):
    """Writes the trace: `enter` when a row is about to be performed, `done` with what its operation obtained."""

    def enter(self, row: int, this_pass: int, *fields: int) -> None:
        """A row begins; `fields` are those of the message it posts."""

    def done(self, *fields: int) -> None:
        """The operation of the row last entered obtained `fields`."""


@dataclass(frozen=True)
class Endpoints:
    """The wires of one rank by channel. A gate that stays shut for `gate_bound` seconds is a broken law.

    `forget` drops the handle of a channel, as faulty tables do: its message is lost if its receive is not posted yet.
    """

    outgoing: Mapping[str, Outgoing]
    incoming: Mapping[str, Incoming]
    gate_bound: float = 60.0
    forget: Mapping[str, Callable[[], None]] = field(default_factory=dict)


def run(program: Program, bindings: Mapping[str, Callable[..., Any]], wires: Endpoints, recorder: Recorder) -> None:
    """Run until the role's end, which marks the last row as done. Raises `BrokenLaw`, or what bindings or wires raise.

    Raises `SpecError` first if a binding or a wire that the program needs is missing.
    """
    location, state = link(program, bindings, wires, recorder)
    while location is not None:
        location = location(state)
    recorder.done()


def link(
    program: Program, bindings: Mapping[str, Callable[..., Any]], wires: Endpoints, recorder: Recorder
) -> tuple[Callable[[Any], Any] | None, Any]:
    """The start location's function and a fresh state; calling `location(state)` executes one row."""
    where = f"rank {program.rank}"

    def broken(row: int, this_pass: int, what: str) -> None:
        name = program.role.rows[row].name
        raise BrokenLaw(f"{where}, row {name!r}, pass {this_pass}, slot {this_pass % program.slots}: {what}")

    def gate(channel: str) -> Callable[[int, int], None]:
        wire = wires.incoming[channel]

        def wait(row: int, this_pass: int) -> None:
            if not wire.gate(wires.gate_bound):
                upstream = (program.rank - 1) % program.ranks
                what = f"rank {upstream} has not sent {channel!r} within {wires.gate_bound:g} s"
                broken(row, this_pass, what)

        return wait

    names: dict[str, Any] = {
        "deque": deque,
        "enter": recorder.enter,
        "done": recorder.done,
        "broken": broken,
        "wrong": lambda field, got, expected: f"{field} is {got}, expected {expected}",
        **{f"forget_{channel}": forget for channel, forget in wires.forget.items()},
        "outside": lambda field, got: f"the binding returned {field} = {got!r}, which is outside its domain",
    }
    for name in program.bindings:
        if name not in bindings:
            raise SpecError(f"{where}: no binding {name!r}; bound: {', '.join(sorted(bindings))}")
        names[f"call_{name}"] = bindings[name]
    for channel in program.posts:
        if channel not in wires.outgoing:
            raise SpecError(f"{where}: no outgoing wire for channel {channel!r}")
        names[f"post_{channel}"] = wires.outgoing[channel].post
        names[f"wait_{channel}"] = wires.outgoing[channel].wait
    for channel in program.receives:
        if channel not in wires.incoming:
            raise SpecError(f"{where}: no incoming wire for channel {channel!r}")
        names[f"receive_{channel}"] = wires.incoming[channel].receive
        names[f"gate_{channel}"] = gate(channel)
    exec(compile(program.source, f"<table {program.protocol.name}, {program.role.name}>", "exec"), names)
    return names["start"], names["State"]()
