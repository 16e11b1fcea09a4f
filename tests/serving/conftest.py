"""A fake rank 0 (a ZeroMQ thread), a byte tokenizer, and a real uvicorn server between them and the clients."""

from __future__ import annotations

import asyncio
import codecs
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import httpx
import msgspec
import openai
import pytest
import zmq

from headway.engine.messages import Abort, Generated, Intake, Report, Stop, Submit
from headway.engine.serving import Bounds, EngineClient, ServedModel, Server, TextCodec, create_app, listen

END = 256
DEADLINE = 10.0
MODEL = ServedModel("bytes", context=512, vocab_size=257, stop_tokens=(END,), fingerprint="table-1")

Script = Callable[[Submit], Iterator[Generated | None]]


class ByteDetokenizer:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(bytes(token for token in token_ids if token != END))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class ByteTokenizer:
    """A token a byte, and 256 for the end of the text."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def render_chat(self, messages: Sequence[dict[str, str]]) -> str:
        if messages[-1]["role"] == "assistant":
            raise ValueError("the last message must not be the assistant's")
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)

    def detokenizer(self) -> ByteDetokenizer:
        return ByteDetokenizer()


BYTES = ByteTokenizer()


def say(text: str | list[int], end: bool = True) -> Script:
    """Generates the bytes of `text`, or these tokens, one a report; then the stop token, or nothing if not `end`."""

    def script(new: Submit) -> Iterator[Generated | None]:
        said = list(text.encode()) if isinstance(text, str) else text
        tokens = [*said, END] if end else said
        for count, token in enumerate(tokens, start=1):
            finish = "stop" if token in new.stop_tokens else "length" if count == new.max_tokens else ""
            yield Generated(new.request, [token], finish)
            if finish:
                return
        yield from itertools.repeat(None)

    return script


class FakeRank0:
    """Takes what the server sends, and advances the script of each request by one report a turn."""

    def __init__(self, intake: str, reports: str) -> None:
        self.script: Script = say("")
        self.received: list[Intake] = []
        self._changed = threading.Condition()
        self._endpoints = intake, reports
        self._halt = threading.Event()
        self._extra: list[bytes] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, report: Report | bytes) -> None:
        self._extra.append(report if isinstance(report, bytes) else msgspec.msgpack.encode(report))

    def await_received(self, wanted: Callable[[list[Intake]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: wanted(self.received), DEADLINE), self.received

    def of(self, kind: type[Submit] | type[Abort] | type[Stop]) -> list[Intake]:
        with self._changed:
            return [message for message in self.received if isinstance(message, kind)]

    def forget(self) -> None:
        with self._changed:
            self.received.clear()

    def end(self) -> None:
        self._halt.set()
        self._thread.join(DEADLINE)

    def _run(self) -> None:
        context = zmq.Context()
        intake, reports = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        intake.connect(self._endpoints[0])
        reports.connect(self._endpoints[1])
        decoder = msgspec.msgpack.Decoder(Intake)
        scripts: dict[int, Iterator[Generated | None]] = {}
        while not self._halt.is_set():
            while intake.poll(0 if scripts else 5):
                message = decoder.decode(intake.recv())
                match message:
                    case Submit():
                        scripts[message.request] = self.script(message)
                    case Abort() if scripts.pop(message.request, None):
                        reports.send(msgspec.msgpack.encode(Generated(message.request, [], "abort")))
                with self._changed:
                    self.received.append(message)
                    self._changed.notify_all()
            while self._extra:
                reports.send(self._extra.pop(0))
            for request, script in list(scripts.items()):
                report = next(script, None)
                if report is not None:
                    reports.send(msgspec.msgpack.encode(report))
                    if report.finish:
                        del scripts[request]
            self._halt.wait(0.0005)
        context.destroy(linger=0)


class Running:
    """A server on a free port, in a thread of its own, and the fake rank 0 behind it."""

    def __init__(self, directory: str, seed: int = 0, tokenizer: TextCodec = BYTES) -> None:
        endpoints = f"ipc://{directory}/intake", f"ipc://{directory}/reports"
        self.engine = EngineClient(*endpoints)
        self.rank0 = FakeRank0(*endpoints)
        app = create_app(self.engine, tokenizer, MODEL, bounds=Bounds(choices=4, body=20_000), seed=seed)
        listener = listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = Server(app)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=[self._server.serve(sockets=[listener])], daemon=True
        )
        self._thread.start()
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE)
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=DEADLINE)
        self.await_metric("headway_generated_tokens_total", 0.0)

    def drain(self, bound: float):
        """The future of a drain that runs in the server's loop."""
        return asyncio.run_coroutine_threadsafe(self.engine.drain(bound), self._loop)

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name)

    def await_metric(self, name: str, value: float) -> None:
        self.eventually(lambda: self.metric(name) == value)

    @staticmethod
    def eventually(holds: Callable[[], bool]) -> None:
        for _ in range(int(DEADLINE / 0.02)):
            if holds():
                return
            time.sleep(0.02)
        raise AssertionError("what was awaited did not come to hold")

    def end(self) -> None:
        self.client.close()
        self.http.close()
        self._server.should_exit = True
        self._thread.join(DEADLINE)
        self.rank0.end()
        assert not self._thread.is_alive()
        self._loop.close()


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(str(tmp_path_factory.mktemp("s")))
    yield running
    running.end()


@pytest.fixture
def server(shared: Running) -> Running:
    """A server that stays whole."""
    shared.rank0.forget()
    shared.rank0.script = say("")
    return shared


@pytest.fixture
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Running]]:
    """Makes servers with other seeds or tokenizers, and ends them after the test."""
    launched: list[Running] = []

    def make(**options) -> Running:
        launched.append(Running(str(tmp_path_factory.mktemp("s")), **options))
        return launched[-1]

    yield make
    for running in launched:
        running.end()


@pytest.fixture
def mortal(launch: Callable[..., Running]) -> Running:
    """A server for one test, which may make it fail or drain."""
    return launch()


@pytest.fixture(scope="session")
def speak() -> Callable[..., Script]:
    return say
