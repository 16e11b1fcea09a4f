"""One rank of the pipeline as a process: `python -m headway.engine.rank CONFIG.json`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from headway.engine.bindings import FollowerBindings, LeaderBindings, Runner, binding_table
from headway.engine.config import LAYOUT, RankConfig
from headway.engine.desk import ZmqDesk
from headway.engine.loop import Endpoints, Program, compile_program, run
from headway.engine.messages import Decision, Output, Relayed
from headway.engine.recorder import RingRecorder, trace_path
from headway.engine.scheduling import Books, Limits, Scheduler
from headway.engine.wires import ControlCodec, TensorCodec, join_group, leave_group
from headway.engine.wiring import Wiring
from headway.engine.workers import build_worker
from headway.models import open_checkpoint, partition
from headway.spec.catalog import load_table
from headway.spec.table import Channel, record_width

_PAYLOADS: dict[str, Any] = {"requests": list[Relayed], "decision": Decision, "output": Output}
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the rank and exit: status 0 after a clean stop, 1 otherwise with the reason in the error file."""
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=RankConfig)
    directory = Path(config.directory)
    _die_with_parent()
    try:
        with ExitStack() as closing:
            _run(config, directory, closing)
    except BaseException as error:  # the last thing this process does: say why it ends
        reason = f"{type(error).__name__}: {error}"
        LAYOUT.error(directory, config.rank).write_text(reason.splitlines()[0])
        print(f"rank {config.rank}: {reason}", file=sys.stderr, flush=True)
        # The interpreter's own exit would wait for messages that no peer will ever take.
        os._exit(1)
    # Nor does its own exit do anything that the kernel does not do faster: it takes apart what torch holds.
    sys.stdout.flush()
    os._exit(0)


def _die_with_parent() -> None:
    """The launcher ends ranks; the terminal's signals are the launcher's. A rank never outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run(config: RankConfig, directory: Path, closing: ExitStack) -> None:
    torch.set_num_threads(config.threads)
    if torch.device(config.device).type == "cuda":
        torch.cuda.set_device(config.device)
    table = load_table(config.table)
    if table.fingerprint != config.fingerprint:
        raise ValueError(f"table {config.table!r} has fingerprint {table.fingerprint}, expected {config.fingerprint}")
    program = compile_program(table, config.rank, config.ranks, config.limits.slots)
    recorder = RingRecorder(
        trace_path(config.trace_directory, config.rank),
        table.fingerprint,
        config.rank,
        config.ranks,
        config.limits.slots,
        record_width(table),
        os.getpid(),
    )
    checkpoint = open_checkpoint(config.model, config.load_format, config.seed)
    dtype = getattr(torch, config.dtype)
    worker, pages = build_worker(
        checkpoint,
        partition(checkpoint.config.layers, config.ranks)[config.rank],
        config.limits,
        device=config.device,
        dtype=dtype,
        kernels=config.kernels,
        pages=config.pages,
        share=config.memory_share,
        graphs=config.graphs,
    )
    wires, fewest = _wires(config, directory, program, checkpoint.config.hidden_size, dtype, pages)
    limits = config.limits if config.pages else replace(config.limits, pages=fewest)
    bindings = _bindings(config, program, worker, Books(pages, limits.page_size), limits, closing)
    LAYOUT.announce(directory, config.rank, limits.pages)
    run(program, binding_table(bindings, program.bindings), wires, recorder)
    recorder.close()
    if config.ranks > 1:
        leave_group()


def _bindings(
    config: RankConfig, program: Program, worker: Runner, books: Books, limits: Limits, closing: ExitStack
) -> FollowerBindings:
    if "plan" not in program.bindings:
        return FollowerBindings(books, worker, config.rank, _refusals(config.refuse))
    desk, scheduler = ZmqDesk(config.intake, config.reports), Scheduler(limits)
    closing.callback(desk.close)
    desk.report([scheduler.gauges()])
    return LeaderBindings(books, worker, config.rank, scheduler, desk)


def _refusals(ordinals: list[int]) -> Any:
    """A fault for tests: refuse the launched decisions with these ordinals, counted from 0."""
    if not ordinals:
        return None
    count = -1

    def refuse(_: Decision) -> str:
        nonlocal count
        count += 1
        return "a planted refusal" if count in ordinals else ""

    return refuse


def _wires(
    config: RankConfig, directory: Path, program: Program, width: int, dtype: torch.dtype, pages: int
) -> tuple[Endpoints, int]:
    """The wires of this rank, and at the rank that plans the fewest pages that any rank has."""
    if config.ranks == 1:
        return Endpoints({}, {}, config.gate_bound), pages
    join_group(directory, config.rank, config.ranks)
    codecs = {channel.name: _codec(channel, width, dtype) for channel in program.protocol.channels}
    wiring = Wiring(program, codecs, config.devices, directory, config.limits.max_batch_tokens)
    fewest = wiring.connect(pages)
    return wiring.endpoints(config.gate_bound), fewest


def _codec(channel: Channel, width: int, dtype: torch.dtype) -> ControlCodec | TensorCodec:
    return TensorCodec(width, dtype) if channel.kind == "tensor" else ControlCodec(_PAYLOADS[channel.payload])


if __name__ == "__main__":
    main()
