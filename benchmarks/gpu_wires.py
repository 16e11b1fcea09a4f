"""CUDA IPC wires between processes on one GPU: are they right, do payloads stay on the device, how fast are they?

    python benchmarks/gpu_wires.py [--ranks 2,4] [--passes 200]

Each line is one run of the production table with a toy model (`relay`). `wrong` counts numbers that differ from what
they must be; with `delay`, streams run far behind their threads, which is where an early reuse of a buffer would show.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from relay import Load, Result, lay, run_rank

from headway.engine.wiring import make_pipes
from headway.spec.serving import serving_table

COPIES = ("Memcpy DtoH", "Memcpy HtoD", "Memcpy DtoD", "cudaDeviceSynchronize", "cudaStreamSynchronize")


def counted(counts: Counter[str], work: Callable[[], None]) -> None:
    """Run `work` under the profiler and count copies and synchronisations."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
    for event in profiler.events():
        for name in COPIES:
            if event.name.startswith(name):
                counts[name] += 1


def relay_rank(rank: int, devices: Sequence[str], directory: Path, load: Load, profiled: bool) -> Any:
    """One rank of a run of the table: its result and the copies that the profiler saw."""
    counts: Counter[str] = Counter()
    around = functools.partial(counted, counts) if profiled else lambda work: work()
    return run_rank(rank, devices, directory, load, around=around), dict(counts)


def pump_rank(rank: int, devices: Sequence[str], directory: Path, load: Load, profiled: bool) -> Any:
    """One wire alone, without the table: rank 0 posts `passes` payloads of `rows` rows; seconds."""
    device = torch.device(devices[rank])
    torch.cuda.set_device(device)
    _, wires, _ = lay(rank, devices, directory, load)
    payload = torch.ones((load.rows, load.width), dtype=getattr(torch, load.dtype), device=device)
    total = torch.zeros((), device=device)
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for number in range(load.passes):
        if rank == 0:
            wires.outgoing["proxy"].post((number, number), payload)
            wires.outgoing["proxy"].wait()
        else:
            wires.incoming["proxy"].gate(60.0)
            _, got = wires.incoming["proxy"].receive()
            total += got[0, 0]
    issued = time.perf_counter() - start
    torch.cuda.synchronize(device)
    return time.perf_counter() - start, issued, float(total) == load.passes if rank else True


def _child(target: Any, rank: int, answer: Any, *arguments: Any) -> None:
    try:
        answer.send((True, target(rank, *arguments)))
    except BaseException as error:
        answer.send((False, f"rank {rank}: {type(error).__name__}: {error}"))
        raise


def run_all(target: Any, devices: Sequence[str], load: Load, profiled: bool = False, bound: float = 120.0) -> list[Any]:
    """Run `target` at every rank, each in a process of its own. Raises `RuntimeError` when one fails."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        make_pipes(serving_table(), devices, directory)
        processes, pipes = [], []
        for rank in range(len(devices)):
            ours, theirs = context.Pipe()
            arguments = (target, rank, theirs, devices, directory, load, profiled)
            processes.append(context.Process(target=_child, args=arguments, daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        try:
            outcomes = []
            for rank, pipe in enumerate(pipes):
                if not pipe.poll(bound):
                    raise RuntimeError(f"rank {rank} has not ended within {bound:g} s")
                fine, value = pipe.recv()
                if not fine:
                    raise RuntimeError(value)
                outcomes.append(value)
            return outcomes
        finally:
            for process in processes:
                process.kill()
                process.join()


def report(name: str, results: list[Result], extra: str = "") -> bool:
    """Print one run; whether it was right."""
    first, last = results[0], results[-1]
    good = last.wrong == 0 and first.outputs == len(first.latencies)
    latencies = [1e6 * seconds for seconds in first.latencies]
    print(
        f"{name:<44} wrong {last.wrong:<6} outputs {first.outputs:<5} {first.outputs / first.seconds:9.0f} passes/s  "
        f"plan to output {statistics.median(latencies):8.0f} us{extra}",
        flush=True,
    )
    return good


def main() -> int:
    """Run everything; exit status 0 when all was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, with commas")
    parser.add_argument("--passes", type=int, default=200)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}, table {serving_table().fingerprint[:12]}")
    good = True
    for ranks in map(int, arguments.ranks.split(",")):
        devices = ["cuda:0"] * ranks
        run = functools.partial(run_all, relay_rank, devices)
        for rows, width, delay, settle in ((64, 4096, 0, True), (64, 4096, 3, False), (2048, 4096, 2, False)):
            load = Load(arguments.passes, rows, width, "bfloat16", delay, settle)
            name = f"P={ranks} up to {rows} rows of {width}, delay {delay}, settle {settle}"
            good &= report(name, [result for result, _ in run(load)])
        profiled = run(Load(50, 256, 4096, "bfloat16", 0, False, vary=False), profiled=True)
        for rank, (_, counts) in enumerate(profiled):
            print(f"  P={ranks} rank {rank}, 50 passes under the profiler: {counts}", flush=True)
            good &= not any(count for name, count in counts.items() if name.startswith(("Memcpy DtoH", "Memcpy HtoD")))
    for rows in (1, 256, 8192):
        load = Load(2000, rows, 4096, "bfloat16", vary=False)
        (seconds, _, _), (_, _, fine) = run_all(pump_rank, ["cuda:0", "cuda:0"], load)
        size = rows * 4096 * 2
        print(
            f"wire alone, {size:>9} bytes: {1e6 * seconds / load.passes:7.1f} us a message, "
            f"{size * load.passes / seconds / 1e9:7.1f} GB/s, right: {fine}",
            flush=True,
        )
        good &= fine
    print("all right" if good else "WRONG")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
