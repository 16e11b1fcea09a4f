"""Does a wire keep the contract that it declares? Measured at boot, before the first pass.

Each rank posts and awaits on every outgoing wire, from a thread, while no receiver comes; counts what returns; then
lets the receivers come. No rank waits for another before its own count is over, so the probe closes no cycle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headway.engine.wires.pipes import PipeReader, PipeWriter
from headway.spec.transports import Transport, alone

QUIET = 0.1  # seconds in which nothing more may return
PATIENCE = 10.0  # seconds for what must happen; a wire that keeps its contract needs none of it


class ContractError(RuntimeError):
    """A wire does not keep the transport contract that it declares; the message names both."""


class SendingEnd(Protocol):
    """The sending end of a wire."""

    transport: Transport

    def post(self, fields: tuple[int, ...], payload: Any) -> None:
        """Start sending."""

    def wait(self) -> None:
        """Await the posted message."""


class ReceivingEnd(Protocol):
    """The receiving end of a wire."""

    transport: Transport

    def gate(self, bound: float) -> bool:
        """Wait for an attempt."""

    def receive(self) -> tuple[tuple[int, ...], Any]:
        """Take the next message."""


@dataclass(frozen=True)
class OutgoingTrial:
    """One outgoing wire: `fields` integers and a `payload` are a message of it; `go` tells the receiver to come."""

    name: str
    wire: SendingEnd
    fields: int
    payload: Any
    go: PipeWriter


@dataclass(frozen=True)
class IncomingTrial:
    """One incoming wire; `gated` when its messages are announced at a gate."""

    name: str
    wire: ReceivingEnd
    gated: bool
    go: PipeReader


class _Sender:
    """Posts and awaits `messages` messages from a thread of its own and counts what has returned."""

    def __init__(self, trial: OutgoingTrial, messages: int) -> None:
        self._trial, self._messages = trial, messages
        self._change = threading.Condition()
        self._returned = (0, 0)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"probe {trial.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in range(self._messages):
                self._trial.wire.post((message,) * self._trial.fields, self._trial.payload)
                self._count(1, 0)
                self._trial.wire.wait()
                self._count(0, 1)
        except Exception as error:  # handed to the thread that asked, by `returned` or `finish`
            with self._change:
                self._error = error
                self._change.notify_all()

    def _count(self, posts: int, awaits: int) -> None:
        with self._change:
            self._returned = (self._returned[0] + posts, self._returned[1] + awaits)
            self._change.notify_all()

    def returned(self, at_least: tuple[int, int], until: float) -> tuple[int, int]:
        """The posts and awaits that have returned, once they are `at_least` or it is `until`."""
        with self._change:
            self._change.wait_for(
                lambda: self._error is not None or all(a >= b for a, b in zip(self._returned, at_least, strict=True)),
                max(0.0, until - time.monotonic()),
            )
            self._raise()
            return self._returned

    def finish(self) -> None:
        """Until all messages are received."""
        self._thread.join(PATIENCE)
        self._raise()
        if self._thread.is_alive():
            raise ContractError(f"{self._trial.name}: sending has not ended {PATIENCE:g} s after the receiver came")

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def messages_of(transport: Transport) -> int:
    """How many messages a probe of this contract sends: those that get by without a receiver, and one that does not."""
    return alone(transport)[1] + 1


def probe(
    outgoing: list[OutgoingTrial], incoming: list[IncomingTrial], patience: float = PATIENCE
) -> Mapping[str, tuple[int, int]]:
    """Compare each wire with its contract; every rank calls this once, with its own ends of all wires.

    Returns how many posts and awaits returned alone, by the name of the outgoing wire. Takes about `QUIET` seconds; a
    wire that breaks its contract can take `patience` seconds. Raises `ContractError`, or what a wire raises.
    """
    senders = [_Sender(trial, messages_of(trial.wire.transport)) for trial in outgoing]
    until = time.monotonic() + patience
    for trial, sender in zip(outgoing, senders, strict=True):
        sender.returned(alone(trial.wire.transport), until)
    if senders:
        time.sleep(QUIET)
    seen = {trial.name: sender.returned((0, 0), 0.0) for trial, sender in zip(outgoing, senders, strict=True)}
    for trial in outgoing:
        declared = trial.wire.transport
        if seen[trial.name] != alone(declared):
            raise ContractError(
                f"{trial.name} declares the contract {declared.name}, under which {_words(alone(declared))} before "
                f"the receiver comes; measured: {_words(seen[trial.name])}"
            )
        trial.go.write(b"\0")
    for arriving in incoming:
        _receive(arriving)
    for sender in senders:
        sender.finish()
    return seen


def _words(counts: tuple[int, int]) -> str:
    return f"{counts[0]} post(s) and {counts[1]} await(s) return"


def _receive(trial: IncomingTrial) -> None:
    trial.go.read(1)
    for message in range(messages_of(trial.wire.transport)):
        if trial.gated and not trial.wire.gate(PATIENCE):
            raise ContractError(f"{trial.name}: a message was posted, but its gate stayed shut")
        fields, _ = trial.wire.receive()
        if any(field != message for field in fields):
            raise ContractError(f"{trial.name}: message {message} of the probe arrived as {fields}")
