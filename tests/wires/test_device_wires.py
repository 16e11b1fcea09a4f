"""What the device wires ask of streams, and in which order, with events that only take notes."""

from __future__ import annotations

import pytest
import torch

from headway.engine.wires import SLOTS, CudaIpcIncoming, CudaIpcOutgoing, NcclOutgoing, Ring, TensorCodec

WIDTH = 4


class Noted:
    """An event that writes down what is asked of it."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name = log, name

    def record(self) -> None:
        self._log.append(f"record {self._name}")

    def wait(self) -> None:
        self._log.append(f"wait {self._name}")


class Headers:
    """Both ends of headers in one thread."""

    def __init__(self, log: list[str]) -> None:
        self._log, self._sent = log, []

    def send(self, header):
        self._log.append("send header")
        self._sent.append(header)

    def wait(self):
        self._log.append("await arrival")

    def receive(self):
        self._log.append("arrive")
        return self._sent.pop(0)


@pytest.fixture
def log():
    return []


@pytest.fixture
def ring(log):
    events = [[Noted(log, f"{kind} {slot}") for slot in range(SLOTS)] for kind in ("filled", "freed")]
    return Ring(torch.full((SLOTS, 3, WIDTH), -1.0), *events)


@pytest.fixture
def codec():
    return TensorCodec(WIDTH, torch.float32)


def matrix(rows: int, value: float = 1.0) -> torch.Tensor:
    return torch.full((rows, WIDTH), float(value))


def test_a_slot_is_filled_again_only_after_its_reader_freed_it(log, ring, codec):
    outgoing = CudaIpcOutgoing(Headers(log), ring, codec)
    for value in range(3):
        outgoing.post((value,), matrix(2, value))
        outgoing.wait()
    assert log == [
        *("record filled 0", "send header", "await arrival"),
        *("record filled 1", "send header", "await arrival"),
        *("wait freed 0", "record filled 0", "send header", "await arrival"),
    ]


def test_the_reader_frees_a_message_before_it_comes_for_the_next(log, ring, codec):
    headers = Headers(log)
    outgoing, incoming = CudaIpcOutgoing(headers, ring, codec), CudaIpcIncoming(headers, ring)
    got = []
    for value in range(2):
        outgoing.post((value,), matrix(1 + value, value))
        outgoing.wait()
        log.clear()
        got.append(incoming.receive())
    assert log == ["record freed 0", "arrive", "wait filled 1"]
    assert [fields for fields, _ in got] == [(0,), (1,)]
    assert torch.equal(got[0][1], matrix(1, 0.0))
    assert torch.equal(got[1][1], matrix(2, 1.0))


def test_a_second_post_without_a_wait_is_refused_and_touches_nothing(log, ring, codec):
    outgoing = CudaIpcOutgoing(Headers(log), ring, codec)
    outgoing.post((0,), matrix(1))
    log.clear()
    with pytest.raises(RuntimeError, match="not waited for"):
        outgoing.post((1,), matrix(1))
    assert log == []


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (matrix(4), "payload has 4 rows; allowed: at most 3"),
        (torch.zeros((1, WIDTH + 1)), r"allowed: torch.float32 \(rows, 4\)"),
        (torch.zeros((1, WIDTH), dtype=torch.float16), "payload is torch.float16"),
    ],
)
@pytest.mark.parametrize("kind", ["ipc", "nccl"])
def test_a_payload_that_does_not_fit_is_refused(log, ring, codec, payload, words, kind):
    headers = Headers(log)
    if kind == "ipc":
        outgoing = CudaIpcOutgoing(headers, ring, codec)
    else:
        outgoing = NcclOutgoing(headers, None, torch.empty((SLOTS, 3, WIDTH)), codec)
    with pytest.raises(ValueError, match=words):
        outgoing.post((0,), payload)
    assert log == []


class Pair:
    """Sends that only take notes."""

    def __init__(self, log: list[str]) -> None:
        self._log, self._count = log, 0

    def send(self, tensor):
        number, self._count = self._count, self._count + 1
        self._log.append(f"send {number}: {tensor[0, 0].item():.0f}")
        return Noted(self._log, f"send {number}")


def test_staging_is_reused_only_after_the_send_that_read_it_and_the_header_goes_first(log, codec):
    outgoing = NcclOutgoing(Headers(log), Pair(log), torch.empty((SLOTS, 3, WIDTH)), codec)
    for value in range(3):
        outgoing.post((value,), matrix(2, value))
        outgoing.wait()
    assert log == [
        *("send header", "send 0: 0", "await arrival"),
        *("send header", "send 1: 1", "await arrival"),
        *("wait send 0", "send header", "send 2: 2", "await arrival"),
    ]
