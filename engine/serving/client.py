"""The HTTP side's end of the wire to rank 0: requests out, tokens and gauges back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import zmq
import zmq.asyncio

from headway.engine.messages import Abort, Gauges, Generated, Intake, Report, Sampling, Stop, Submit
from headway.engine.serving.errors import GenerationFailed, Unavailable


class Job(NamedTuple):
    """What one request asks of the engine; the fields are those of `Submit`."""

    prompt: list[int]
    max_tokens: int
    stop_tokens: list[int]
    sampling: Sampling


class Generation:
    """The requests of one submission, and an async iterator of what the engine reports of them, as it comes.

    It ends when all of them have finished. It raises `GenerationFailed` when the engine ended one with an error and
    `Unavailable` when the engine failed or is shutting down. Whoever made it calls `close` in the end.
    """

    def __init__(self, engine: EngineClient, requests: Sequence[int]) -> None:
        self.requests = list(requests)
        self._engine = engine
        # Those whose last report has not been handed out, in order.
        self._open = dict.fromkeys(requests)
        self._reports: asyncio.Queue[Generated | Unavailable] = asyncio.Queue()

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Generated:
        while self._open:
            report = await self._reports.get()
            if isinstance(report, Unavailable):
                raise report
            if report.request not in self._open:
                continue  # Aborted, while this was in the queue.
            if report.finish:
                del self._open[report.request]
            if report.finish == "error":
                raise GenerationFailed(report.error, code="generation_failed")
            if report.finish == "abort":
                raise Unavailable("the engine aborted the request", code="aborted")
            return report
        raise StopAsyncIteration

    def abort(self, request: int) -> None:
        """Takes no more of `request`, which must be one of these; no effect if it has finished."""
        if request in self._open:
            del self._open[request]
            self._engine.abort(request)

    def close(self) -> None:
        """Aborts what has not finished."""
        for request in list(self._open):
            self.abort(request)

    def deliver(self, report: Generated | Unavailable) -> None:
        """For the client: a report of one of these requests, or why none will follow."""
        self._reports.put_nowait(report)


class _Wires(NamedTuple):
    """What exists from `start` to `close`."""

    context: zmq.asyncio.Context
    intake: zmq.asyncio.Socket
    reader: asyncio.Task[None]
    loop: asyncio.AbstractEventLoop
    thread: int


_SHUTTING_DOWN = "the server is shutting down"


class EngineClient:
    """Speaks msgpack-encoded `Intake` messages to rank 0 and takes `Report` messages from it, one a frame.

    Args: `intake` and `reports` are ZeroMQ endpoints; this side binds both (PUSH and PULL), rank 0 connects.
    All methods belong to the event loop that ran `start`, except `fail`, which any thread may call.
    """

    def __init__(self, intake: str, reports: str) -> None:
        self._endpoints = intake, reports
        self._wires: _Wires | None = None
        self._numbers = itertools.count(1)
        self._running: dict[int, Generation] = {}
        self._all_ended = asyncio.Event()
        self.gauges: Gauges | None = None
        self.failure: str | None = None
        self.draining = False

    async def start(self) -> None:
        """Binds the endpoints; no effect when that is done. Raises `zmq.ZMQError` where one cannot be bound."""
        if self._wires is None:
            context = zmq.asyncio.Context()
            intake, reports = context.socket(zmq.PUSH), context.socket(zmq.PULL)
            for socket, endpoint in zip((intake, reports), self._endpoints, strict=True):
                # No limit on the queue: what is in flight is bounded by the requests that clients have open.
                socket.set_hwm(0)
                socket.bind(endpoint)
            reader = asyncio.create_task(self._read(reports))
            self._wires = _Wires(context, intake, reader, asyncio.get_running_loop(), threading.get_ident())

    async def close(self) -> None:
        """Ends what is outstanding with an error and closes the sockets, at most a second after the last message."""
        self.draining = True
        self._end_all(_SHUTTING_DOWN)
        if self._wires is not None:
            wires, self._wires = self._wires, None
            wires.reader.cancel()
            await asyncio.wait([wires.reader])
            wires.context.destroy(linger=0 if self.failure else 1000)

    def unavailable(self) -> Unavailable | None:
        """Why no requests are taken, if so."""
        if self.failure is not None:
            return Unavailable(f"the engine failed: {self.failure}", code="engine_failed")
        if self.draining:
            return Unavailable(_SHUTTING_DOWN, code="shutting_down")
        if self._wires is None:
            return Unavailable("the server is starting", code="starting")
        return None

    def submit(self, *jobs: Job) -> Generation:
        """Sends `jobs` to rank 0 as the requests of one generation. Raises `Unavailable` where none are taken."""
        if (reason := self.unavailable()) is not None:
            raise reason
        requests = [next(self._numbers) for _ in jobs]
        generation = Generation(self, requests)
        for request, job in zip(requests, jobs, strict=True):
            self._running[request] = generation
            self._send(Submit(request, *job))
        return generation

    def abort(self, request: int) -> None:
        """Tells rank 0 to free what `request` holds; reports of it that still come are dropped. No effect if it has
        finished."""
        if self._forget(request) is not None:
            self._send(Abort(request))

    def fail(self, message: str) -> None:
        """Ends every outstanding and future request with `message`, because a rank died. The first message counts."""
        if self._wires is not None and threading.get_ident() != self._wires.thread:
            self._wires.loop.call_soon_threadsafe(self.fail, message)
        elif self.failure is None:
            self.failure = message
            self._end_all(f"the engine failed: {message}")

    async def drain(self, bound: float) -> int:
        """Takes no more requests, waits up to `bound` seconds for those that run, aborts the rest, and sends `Stop`.

        Returns how many were aborted; their clients get an error. New requests get one too, as long as the HTTP
        server answers.
        """
        self.draining = True
        if self._running:
            self._all_ended.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_ended.wait(), bound)
        late = list(self._running)
        for request in late:
            self._send(Abort(request))
        self._end_all(_SHUTTING_DOWN)
        self._send(Stop())
        return len(late)

    def _send(self, message: Intake) -> None:
        # Not awaited: the socket keeps the order, and a send without a peer yet stays queued in it.
        if self._wires is not None and self.failure is None:
            self._wires.intake.send(msgspec.msgpack.encode(message))

    def _forget(self, request: int) -> Generation | None:
        generation = self._running.pop(request, None)
        if not self._running:
            self._all_ended.set()
        return generation

    def _end_all(self, message: str) -> None:
        code = "shutting_down" if message == _SHUTTING_DOWN else "engine_failed"
        for generation in dict.fromkeys(self._running.values()):
            generation.deliver(Unavailable(message, code=code))
        self._running.clear()
        self._all_ended.set()

    async def _read(self, reports: zmq.asyncio.Socket) -> None:
        """Delivers reports until cancelled. A report that cannot be read is a failure of the engine."""
        decoder = msgspec.msgpack.Decoder(Report)
        while True:
            try:
                report = decoder.decode(await reports.recv())
            except (msgspec.MsgspecError, zmq.ZMQError) as failure:
                self.fail(f"a report of rank 0 cannot be read: {failure}")
                return
            if isinstance(report, Gauges):
                self.gauges = report
                continue
            # A request that was aborted may still be reported of: what was under way.
            generation = self._forget(report.request) if report.finish else self._running.get(report.request)
            if generation is not None:
                generation.deliver(report)
