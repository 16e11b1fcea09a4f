"""The engine client by itself, in one event loop, without a rank 0 unless a test plays it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from headway.engine.messages import Abort, Generated, Intake, Sampling, Stop, Submit
from headway.engine.serving import EngineClient, Job
from headway.engine.serving.errors import Unavailable

JOB = Job([7], 5, [2], Sampling(seed=3))


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[EngineClient], Awaitable[None]]], None]:
    """Runs a test with a started client."""

    def run_(test: Callable[[EngineClient], Awaitable[None]]) -> None:
        async def body() -> None:
            engine = EngineClient(f"ipc://{tmp_path}/intake", f"ipc://{tmp_path}/reports")
            with pytest.raises(Unavailable, match="starting"):
                engine.submit(JOB)
            await engine.start()
            try:
                await asyncio.wait_for(test(engine), 10)
            finally:
                await engine.close()

        asyncio.run(body())

    return run_


def test_messages_keep_their_order_and_wait_for_rank_0(run, tmp_path):
    async def test(engine: EngineClient) -> None:
        generation = engine.submit(JOB, JOB)
        generation.abort(1)
        generation.abort(1)
        assert await engine.drain(0) == 1
        with zmq.asyncio.Context() as context, context.socket(zmq.PULL) as intake:
            intake.connect(f"ipc://{tmp_path}/intake")
            received = [msgspec.msgpack.decode(await intake.recv(), type=Intake) for _ in range(5)]
        assert received == [Submit(1, *JOB), Submit(2, *JOB), Abort(1), Abort(2), Stop()]

    run(test)


def test_a_generation_ends_when_its_last_request_has(run):
    async def test(engine: EngineClient) -> None:
        generation = engine.submit(JOB, JOB)
        reports = [Generated(1, [4]), Generated(2, [5, 2], "stop"), Generated(1, [6], "length")]
        for report in reports:
            generation.deliver(report)
        assert [report async for report in generation] == reports

    run(test)


def test_queued_reports_of_an_aborted_request_are_dropped(run):
    async def test(engine: EngineClient) -> None:
        generation = engine.submit(JOB, JOB)
        first, last = Generated(1, [4]), Generated(2, [2], "stop")
        for report in (first, first, Generated(1, [], "error", "late"), last):
            generation.deliver(report)
        assert await anext(generation) == first
        generation.abort(1)
        assert [report async for report in generation] == [last]

    run(test)


def test_any_thread_may_report_a_failure(run):
    async def test(engine: EngineClient) -> None:
        generation = engine.submit(JOB)
        other = threading.Thread(target=engine.fail, args=["rank 1 died"])
        other.start()
        other.join()  # The loop stands still: nothing may have changed behind its back.
        assert engine.failure is None
        with pytest.raises(Unavailable, match="rank 1 died"):
            await anext(generation)
        with pytest.raises(Unavailable, match="rank 1 died"):
            engine.submit(JOB)

    run(test)


def test_a_failure_ends_draining(run):
    async def test(engine: EngineClient) -> None:
        engine.submit(JOB)
        drained = asyncio.ensure_future(engine.drain(1000))
        await asyncio.sleep(0)
        engine.fail("rank 1 died")
        assert await drained == 0

    run(test)


def test_closing_ends_what_is_outstanding(run):
    async def test(engine: EngineClient) -> None:
        generation = engine.submit(JOB)
        await engine.close()
        with pytest.raises(Unavailable, match="shutting down"):
            await anext(generation)

    run(test)
