"""One rank of the pipeline as a process: `python -m headway.engine.rank CONFIG.json`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from headway.engine.bindings import FollowerBindings, LeaderBindings, binding_table
from headway.engine.config import LAYOUT, RankConfig
from headway.engine.desk import ZmqDesk
from headway.engine.loop import Endpoints, Program, compile_program, run
from headway.engine.messages import Decision, Output, Relayed
from headway.engine.recorder import RingRecorder, trace_path
from headway.engine.scheduling import Books, Scheduler
from headway.engine.wires import ControlCodec, TensorCodec, join_group, leave_group
from headway.engine.wiring import Wiring
from headway.engine.workers import Worker
from headway.kernels import load_kernels
from headway.models import Stage, allocate_kv_cache, open_checkpoint, partition
from headway.spec.catalog import load_table
from headway.spec.table import Channel, record_width

_PAYLOADS: dict[str, Any] = {"requests": list[Relayed], "decision": Decision, "output": Output}
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the rank; exit status 0 after a clean stop, 1 otherwise with the reason in the error file."""
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=RankConfig)
    directory = Path(config.directory)
    _die_with_parent()
    try:
        _run(config, directory)
    except BaseException as error:  # the last thing this process does: say why it ends
        reason = f"{type(error).__name__}: {error}"
        LAYOUT.error(directory, config.rank).write_text(reason.splitlines()[0])
        print(f"rank {config.rank}: {reason}", file=sys.stderr, flush=True)
        # The interpreter's own exit would wait for messages that no peer will ever take.
        os._exit(1)
    return 0


def _die_with_parent() -> None:
    """The launcher ends ranks; the terminal's signals are the launcher's. A rank never outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run(config: RankConfig, directory: Path) -> None:
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
    bindings, hidden_width, dtype = _bindings(config, program)
    wires = _wires(config, directory, program, hidden_width, dtype)
    LAYOUT.ready(directory, config.rank).touch()
    run(program, binding_table(bindings, program.bindings), wires, recorder)
    recorder.close()
    if config.ranks > 1:
        leave_group()


def _bindings(config: RankConfig, program: Program) -> tuple[FollowerBindings, int, torch.dtype]:
    checkpoint = open_checkpoint(config.model, config.load_format, config.seed)
    span = partition(checkpoint.config.layers, config.ranks)[config.rank]
    kernels = load_kernels(config.kernels)
    dtype = getattr(torch, config.dtype)
    limits = config.limits
    stage = Stage.load(checkpoint, span, kernels, dtype, positions=limits.max_context)
    pages = config.pages
    cache = allocate_kv_cache(checkpoint.config, span.layers, pages, limits.page_size, dtype)
    worker, books = Worker(stage, cache, kernels), Books(pages, limits.page_size)
    owner: FollowerBindings
    if "plan" in program.bindings:
        desk = ZmqDesk(config.intake, config.reports)
        owner = LeaderBindings(books, worker, config.rank, Scheduler(limits), desk)
    else:
        owner = FollowerBindings(books, worker, config.rank, _refusals(config.refuse))
    return owner, checkpoint.config.hidden_size, dtype


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


def _wires(config: RankConfig, directory: Path, program: Program, width: int, dtype: torch.dtype) -> Endpoints:
    if config.ranks == 1:
        return Endpoints({}, {}, config.gate_bound)
    join_group(directory, config.rank, config.ranks)
    codecs = {channel.name: _codec(channel, width, dtype) for channel in program.protocol.channels}
    wiring = Wiring(program, codecs, config.devices, directory, config.limits.max_batch_tokens)
    wiring.connect()
    return wiring.endpoints(config.gate_bound)


def _codec(channel: Channel, width: int, dtype: torch.dtype) -> ControlCodec | TensorCodec:
    return TensorCodec(width, dtype) if channel.kind == "tensor" else ControlCodec(_PAYLOADS[channel.payload])


if __name__ == "__main__":
    sys.exit(main())
