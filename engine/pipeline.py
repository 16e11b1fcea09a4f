"""A whole server: the rank processes, the HTTP side, and an orderly start and end of both."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from headway.engine.config import RankConfig
from headway.engine.group import STALL_BOUNDS, RankGroup, make_directory, remove_directory
from headway.engine.placement import memory_shares, place_ranks
from headway.engine.scheduling import Limits
from headway.engine.serving import EngineClient, ServedModel, Server, create_app
from headway.engine.serving.debug import protocol_router
from headway.engine.watchdog import Stall
from headway.models import Checkpoint
from headway.spec.serving import passes_ahead
from headway.spec.table import Protocol


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What `headway serve` was asked for. `table` is how ranks load the table; sizes in tokens, pages and seconds.

    Traces go to `trace_dir` and stay there; when it is empty they go with the rest after a clean end. With
    `measure_pages` each rank has as many KV pages as fit into its GPU's memory, and `limits.pages` counts for nothing.
    """

    model: str
    table: str
    ranks: int
    limits: Limits
    name: str = "model"
    host: str = "127.0.0.1"
    load_format: str = "auto"
    kernels: str = "auto"
    graphs: bool = True
    dtype: str = "float32"
    device: str = "cpu"
    gpu_memory_utilization: float = 0.9
    seed: int = 0
    grace: float = 30.0
    gate_bound: float = 60.0
    stall_bounds: dict[str, float] = msgspec.field(default_factory=lambda: dict(STALL_BOUNDS))
    measure_pages: bool = False
    pages_by_rank: list[int] = []
    refuse_by_rank: dict[int, list[int]] = {}
    trace_dir: str = ""


def rank_configs(settings: Settings, protocol: Protocol, directory: Path) -> list[RankConfig]:
    """The settings of each rank. Raises `ValueError` when the devices asked for are not there."""
    devices = place_ranks(settings.device, settings.ranks, torch.cuda.device_count())
    shares = memory_shares(devices, settings.gpu_memory_utilization)
    threads = max(1, torch.get_num_threads() // settings.ranks)  # OMP_NUM_THREADS counts
    pages: Mapping[int, int] = dict(enumerate(settings.pages_by_rank))
    ahead = passes_ahead(protocol, settings.ranks, settings.limits.slots)
    limits = replace(settings.limits, ahead=ahead)
    return [
        RankConfig(
            rank=rank,
            ranks=settings.ranks,
            directory=str(directory),
            table=settings.table,
            fingerprint=protocol.fingerprint,
            model=settings.model,
            limits=limits,
            pages=0 if settings.measure_pages else pages.get(rank, settings.limits.pages),
            devices=devices,
            memory_share=shares[rank],
            intake=f"ipc://{directory}/intake",
            reports=f"ipc://{directory}/reports",
            load_format="dummy" if settings.load_format == "dummy" else "auto",
            kernels=settings.kernels,
            graphs=settings.graphs,
            dtype=settings.dtype,
            seed=settings.seed,
            threads=threads,
            gate_bound=settings.gate_bound,
            refuse=settings.refuse_by_rank.get(rank, []),
            traces=settings.trace_dir,
        )
        for rank in range(settings.ranks)
    ]


async def serve(
    settings: Settings, protocol: Protocol, checkpoint: Checkpoint, listener: socket.socket, banner: str
) -> int:
    """Serve until a signal or a failure; exit status 0 after a clean stop, 1 after a failure.

    SIGINT or SIGTERM: no new requests, running ones get `grace` seconds, then everything ends; a second signal
    ends everything at once. Raises `LaunchError` when the ranks do not come up.
    """
    directory = make_directory()
    config = checkpoint.config
    engine = EngineClient(f"ipc://{directory}/intake", f"ipc://{directory}/reports")
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    failed: list[str] = []

    def fail(reason: str) -> None:
        failed.append(reason)
        engine.fail(reason)
        loop.call_soon_threadsafe(ended.set)

    def stalled(stall: Stall) -> None:
        print(
            msgspec.json.encode({"event": "stall", **msgspec.to_builtins(stall)}).decode(), file=sys.stderr, flush=True
        )

    group = RankGroup(protocol, rank_configs(settings, protocol, directory), fail, settings.stall_bounds, stalled)
    tokenizer = checkpoint.tokenizer()
    signals = 0

    def stop() -> None:
        nonlocal signals
        signals += 1
        ended.set()
        if signals > 1:
            engine.fail("stopped at once on request")
            group.kill()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    serving: asyncio.Task[None] | None = None
    try:
        starting = asyncio.ensure_future(loop.run_in_executor(None, group.start))
        interrupted = loop.create_task(ended.wait())
        await asyncio.wait((starting, interrupted), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            group.kill()
            await asyncio.wait([starting])
            starting.exception()
            return 0
        await starting
        model = ServedModel(
            settings.name,
            min(settings.limits.max_context, group.pages * settings.limits.page_size),
            config.vocab_size,
            config.eos_ids,
            f"headway-{protocol.fingerprint[:12]}",
        )
        routers = [protocol_router(group, protocol)]
        server = Server(create_app(engine, tokenizer, model, seed=settings.seed, routers=routers))
        serving = loop.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        print(banner, flush=True)
        await asyncio.wait({interrupted, serving}, return_when=asyncio.FIRST_COMPLETED)
        if not failed:
            await engine.drain(settings.grace)
            clean = await loop.run_in_executor(None, group.wait, 10.0)
            if not clean and not failed:
                failed.append("the ranks did not stop in time" if signals < 2 else "stopped at once on request")
    finally:
        group.kill()
        if serving is not None:
            await asyncio.sleep(0.2 if failed else 0.0)  # let clients read their error
            server.should_exit = True
            await serving
        listener.close()
    if failed:
        print(f"headway: {failed[0]} (traces: {settings.trace_dir or directory})", file=sys.stderr, flush=True)
        return 1
    remove_directory(directory)
    return 0
