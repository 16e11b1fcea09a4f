"""The probe against wires in memory: honest ones of every contract pass, and each lie is found."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

import pytest

from headway.engine.wires import ContractError, IncomingTrial, OutgoingTrial, PipeReader, PipeWriter, probe
from headway.engine.wires.probe import QUIET
from headway.spec.language import TRUE, Bool
from headway.spec.table import Await, Channel, Local, Post, Protocol, Receive, Role, Row
from headway.spec.transports import (
    LAZY,
    POSTED,
    RENDEZVOUS,
    Transport,
    alone,
    credits,
    stream_ordered,
)
from headway.verification.model import Model

CONTRACTS = [POSTED, RENDEZVOUS, LAZY, credits(1), credits(3), stream_ordered(0), stream_ordered(2)]


class MemoryWire:
    """Both ends of a wire that behaves as `behaviour` and declares `transport`."""

    def __init__(self, transport: Transport, behaviour: Transport) -> None:
        self.transport, self._behaviour = transport, behaviour
        self._change = threading.Condition()
        self._sent: list[Any] = []
        self._taken = self._reserved = 0
        self._receiving = self._opened = False
        self.delay = 0.0

    def _until(self, ready: Any) -> None:
        with self._change:
            assert self._change.wait_for(ready, 30.0)

    def post(self, fields: tuple[int, ...], payload: Any) -> None:
        kind, many = self._behaviour.kind, self._behaviour.credits
        if kind == "rendezvous" or (kind == "lazy" and not self._opened):
            self._until(lambda: self._receiving)
            self._opened = True
        elif kind == "stream_ordered":
            self._until(lambda: len(self._sent) - self._taken < many or (many == 0 and self._receiving))
        with self._change:
            self._sent.append((fields, payload))
            self._change.notify_all()

    def wait(self) -> None:
        time.sleep(self.delay)
        if self._behaviour.kind == "stream_ordered":
            return
        message = len(self._sent) - 1
        done = self._behaviour.credits
        self._until(lambda: message - self._taken < done or (message == self._taken and self._receiving))

    def gate(self, bound: float) -> bool:
        return True

    def receive(self) -> tuple[tuple[int, ...], Any]:
        with self._change:
            self._receiving = True
            self._change.notify_all()
            assert self._change.wait_for(lambda: len(self._sent) > self._taken, 30.0)
            self._receiving = False
            self._taken += 1
            self._change.notify_all()
            return self._sent[self._taken - 1]  # type: ignore[no-any-return]


def probed(tmp_path, declared: Transport, behaviour: Transport, patience: float = 10.0, delay: float = 0.0):
    """Probe one wire between two threads; what the sender's probe returned or raised."""
    path = tmp_path / "go"
    os.mkfifo(path)
    wire, go = MemoryWire(declared, behaviour), PipeReader(path)
    wire.delay = delay

    def receive() -> None:
        with contextlib.suppress(ConnectionError):  # the sender has found a lie
            probe([], [IncomingTrial("the wire", wire, False, go)])

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    writer = PipeWriter(path)
    try:
        return probe([OutgoingTrial("the wire", wire, 2, "payload", writer)], [], patience)
    finally:
        writer.close()
        receiver.join(30.0)
        assert not receiver.is_alive()


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.name)
def test_an_honest_wire_passes(tmp_path, contract):
    assert probed(tmp_path, contract, contract) == {"the wire": alone(contract)}


@pytest.mark.parametrize(
    ("declared", "behaviour"),
    [
        (POSTED, credits(1)),
        (POSTED, RENDEZVOUS),
        (POSTED, LAZY),
        (POSTED, stream_ordered(1)),
        (RENDEZVOUS, POSTED),
        (credits(2), POSTED),
        (credits(2), credits(1)),
        (stream_ordered(2), stream_ordered(1)),
        (stream_ordered(1), POSTED),
    ],
    ids=lambda c: c.name,
)
def test_a_wire_that_breaks_its_contract_stops_the_launch(tmp_path, declared, behaviour):
    with pytest.raises(ContractError, match=r"the wire declares the contract .* measured"):
        probed(tmp_path, declared, behaviour, patience=0.2)


def test_an_await_that_returns_a_moment_later_is_found_too(tmp_path):
    with pytest.raises(ContractError):
        probed(tmp_path, POSTED, credits(1), delay=QUIET / 3)


def _sender_alone(contract: Transport) -> tuple[int, int]:
    """Posts and awaits that the reference model lets a sender do while its receiver stays away."""
    channel = Channel("c", "forward", "tensor", (("flag", Bool()),))
    post = Row("post", "post", TRUE, Post("c", (("flag", TRUE),)), "await")
    wait = Row("await", "await", TRUE, Await("c"), "post", advances=True)
    away = Row("away", "away", TRUE, Local("away"), "receive")
    take = Row("receive", "receive", TRUE, Receive("c"), "away", advances=True)
    roles = (Role("first", "first", (), (post, wait), "post"), Role("last", "last", (), (away, take), "away"))
    table = Protocol("sender", (channel,), (), roles, checked=False)
    model = Model(table, 2, 2, contract)
    state, done = model.initial(), {"post": 0, "await": 0}
    while steps := list(model.successors(state, 0)):
        ((step, state),) = steps
        if not hasattr(state, "ranks") or sum(done.values()) > 20:
            break
        done[step.row] += 1
    return done["post"], done["await"]


@pytest.mark.parametrize("contract", [POSTED, RENDEZVOUS, LAZY, credits(1), stream_ordered(0)], ids=lambda c: c.name)
def test_what_a_sender_does_alone_is_what_the_model_lets_it_do(contract):
    assert _sender_alone(contract) == alone(contract)
