"""Two ranks on two GPUs of one host, over NCCL: is it right, what do NCCL's sends wait for, how fast is it.

    PYTHONPATH=typings python benchmarks/two_gpus.py [SECTION ...] [--shape qwen3-8b]

Sections: `first-post`, `credits`, `tokens`, `speed`, `kill`. With `--stand-in` everything runs on CPUs with gloo in
NCCL's place, which tests the script and measures nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from gpu_wires import run_all
from offline import SHAPES, write_config
from ranks import Answer, Ranks
from relay import Load

from headway.engine.messages import Submit
from headway.engine.placement import place_ranks
from headway.engine.wires import Pair, join_group
from headway.spec.catalog import load_table
from headway.spec.transports import LAZY, POSTED, alone

LATE = 2.0  # seconds by which the receiver is late
SIZES = tuple(4096 << shift for shift in range(0, 15, 2))  # bytes: 4 KiB to 64 MiB


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


# --- what NCCL's sends wait for ----------------------------------------------------------------------------------


def _group(backend: str, device: torch.device) -> dist.ProcessGroup:
    """Two ranks whose communicator is not made yet."""
    return dist.new_group([0, 1], backend=backend, use_local_synchronization=True)


def _place(rank: int, devices: Sequence[str], directory: Path) -> tuple[torch.device, str]:
    device = torch.device(devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    join_group(directory, rank, len(devices))
    return device, "nccl" if device.type == "cuda" else "gloo"


def first_posts(rank: int, devices: Sequence[str], directory: Path, load: Load, connected: bool) -> list[float]:
    """Seconds inside each of ten posts whose receiver comes `LATE` seconds later; `connected`: by `Pair.connect`."""
    device, backend = _place(rank, devices, directory)
    pair = Pair(0, 1, device, backend)
    if connected:
        pair.connect()
    group = None if connected else _group(backend, device)
    message = torch.zeros(load.rows, device=device)
    seconds = []
    for number in range(10):
        dist.barrier()
        if number in (0, 9) and rank == 1:
            time.sleep(LATE)
        start = time.perf_counter()
        if rank == 0:
            work = pair.send(message) if group is None else dist.isend(message, 1, group=group)
        else:
            work = pair.receive(message) if group is None else dist.irecv(message, 0, group=group)
        seconds.append(time.perf_counter() - start)
        if work is not None:
            work.wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return seconds


def sends_alone(rank: int, devices: Sequence[str], directory: Path, load: Load, profiled: bool) -> list[int]:
    """For each size, how many of 16 sends complete on the device while no receive is entered."""
    device, backend = _place(rank, devices, directory)
    pair = Pair(0, 1, device, backend)
    pair.connect()
    counts = []
    for size in SIZES[: load.passes]:
        message = torch.zeros(size, dtype=torch.uint8, device=device)
        dist.barrier()
        if rank == 0:
            works = [pair.send(message) for _ in range(16)]
            time.sleep(LATE / 2)
            counts.append(sum(work.is_completed() for work in works))
            dist.barrier()
        else:
            dist.barrier()
            works = [pair.receive(message) for _ in range(16)]
        for work in works:
            work.wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return counts


def first_post(devices: Sequence[str], stand_in: bool) -> bool:
    """The first and the tenth post, with the communicator made by the first and with it made at boot."""
    load, good = Load(rows=1024), True
    for connected, declared in ((False, LAZY), (True, POSTED)):
        seconds, _ = run_all(first_posts, devices, load, connected)
        waited = [number for number in (0, 9) if seconds[number] > LATE / 2]
        expected = [0] if alone(declared)[0] == 0 else []
        fits = waited == expected
        made = "at boot" if connected else "by the first post"
        say(
            f"communicator made {made}: first post {1e3 * seconds[0]:.1f} ms, tenth {1e3 * seconds[9]:.1f} ms; "
            f"declared {declared.name}: {'as declared' if fits else 'DIFFERS'}"
        )
        good &= fits or (stand_in and not connected)  # a gloo group has no communicator to make
    return good


def credit_counts(devices: Sequence[str], stand_in: bool) -> bool:
    """Device sends that complete alone, by size: a number to know; the wire's contract does not rest on it."""
    counts, _ = run_all(sends_alone, devices, Load(passes=2 if stand_in else len(SIZES)))
    for size, count in zip(SIZES, counts, strict=False):
        say(f"sends of {size:>9} bytes that complete before a receive is entered: {count} of 16")
    return True


# --- the engine ------------------------------------------------------------------------------------------------


def requests(count: int, vocabulary: int, prompt: int, output: int, seed: int) -> list[Submit]:
    """Greedy requests with random prompts."""
    random = Random(seed)
    return [Submit(i, [random.randrange(vocabulary) for _ in range(prompt)], output) for i in range(count)]


def tokens(devices: Sequence[str], stand_in: bool) -> bool:
    """Greedy tokens in float32 of two ranks and of one."""
    asked = requests(32, SHAPES["tiny"][0], 50, 40, seed=3)
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), "tiny")
        found = []
        for placed in ([devices[0]], list(devices)):
            ranks = Ranks(folder, placed, pages=1024, load_format="dummy", dtype="float32", max_context=512)
            found.append([answer.tokens for answer in ranks.generate(asked)])
            ranks.close()
    differ = sum(one != two for one, two in zip(*found, strict=True))
    say(f"greedy tokens, {len(devices)} ranks against one: {differ} of {len(asked)} requests differ")
    return differ == 0


class Busy:
    """Samples how busy GPUs are, in percent of the time, until `stop`."""

    def __init__(self, count: int) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self._read: Callable[[Any], Any] = pynvml.nvmlDeviceGetUtilizationRates
        self._samples: list[list[int]] = [[] for _ in range(count)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            for handle, samples in zip(self._handles, self._samples, strict=True):
                samples.append(self._read(handle).gpu)

    def stop(self) -> str:
        """The means."""
        self._ended.set()
        self._thread.join()
        return ", ".join(f"{statistics.mean(samples or [0]):.0f}%" for samples in self._samples)


def speed(devices: Sequence[str], stand_in: bool, shape: str) -> bool:
    """One rank on one GPU against two on two, at 1, 64 and 256 requests."""
    output = 8 if stand_in else 256
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), shape)
        for placed in ([devices[0]], list(devices)):
            dtype, pages = ("float32", 4096) if stand_in else ("bfloat16", 0)
            ranks = Ranks(
                folder, placed, pages=pages, load_format="dummy", dtype=dtype, max_context=4096, max_batch_tokens=8192
            )
            ranks.generate(requests(8, SHAPES[shape][0], 128, 8, seed=1))
            for count in (1, 4) if stand_in else (1, 64, 256):
                asked = requests(count, SHAPES[shape][0], 512, output, seed=2)
                busy = None if stand_in else Busy(len(set(placed)))
                start = time.perf_counter()
                answers = ranks.generate(asked)
                seconds = time.perf_counter() - start
                best = min(len(placed), count) / len(placed)  # a slot keeps one rank busy at a time
                shares = busy.stop() if busy else "unknown"
                say(
                    f"{len(placed)} rank(s), {count:>3} requests: {_rates(answers, seconds)}; "
                    f"GPUs busy {shares}, at best {best:.0%}"
                )
            ranks.close()
    return True


def _rates(answers: Sequence[Answer], seconds: float) -> str:
    output = sum(len(answer.tokens) for answer in answers)
    first = statistics.median(answer.first for answer in answers)
    steps = [(a.last - a.first) / (len(a.tokens) - 1) for a in answers if len(a.tokens) > 1]
    return (
        f"{output / seconds:8.0f} output tok/s, first token {1e3 * first:7.1f} ms, "
        f"then {1e3 * statistics.median(steps):6.2f} ms a token"
    )


def kill(devices: Sequence[str], stand_in: bool) -> bool:
    """From kill -9 of one rank to a clear error, while requests run."""
    good = True
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), "tiny")
        for victim in range(len(devices)):
            ranks = Ranks(folder, devices, pages=1024, load_format="dummy", dtype="float32", max_context=512)
            ranks.submit(requests(16, SHAPES["tiny"][0], 50, 400, seed=4))
            time.sleep(1.0)
            killed = time.perf_counter()
            os.kill(ranks.group.pids[victim], signal.SIGKILL)
            noticed = ranks.wait_for_failure(30.0)
            say(f"kill -9 of rank {victim}: {ranks.failure!r} after {ranks.failed_at - killed:.2f} s")
            good &= noticed and f"rank {victim} was killed" in ranks.failure
            ranks.close()
    return good


def main() -> int:
    """Run the sections; exit status 0 when nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = ("first-post", "credits", "tokens", "speed", "kill")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(sections))
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--devices", default="cuda:0,cuda:1", help="one a rank; ranks on one GPU use CUDA IPC")
    parser.add_argument("--stand-in", action="store_true", help="CPUs and gloo, to test this script")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.sections if name not in sections]
    if unknown:
        parser.error(f"section {unknown[0]!r}; allowed: {', '.join(sections)}")
    stand_in = arguments.stand_in
    try:
        names = "cpu" if stand_in else arguments.devices
        devices = place_ranks(names, 2 if stand_in else len(names.split(",")), torch.cuda.device_count())
    except ValueError as error:
        parser.error(f"{error}; or --stand-in")
    over_nccl = stand_in or (len(devices) == 2 and devices[0] != devices[1])
    versions = f"torch {torch.__version__}"
    if not stand_in:
        versions += f", NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, {torch.cuda.get_device_name(0)}"
    tables = ", ".join(f"{name} {load_table(name).fingerprint[:12]}" for name in ("boot", "serving"))
    say(f"{versions}; tables {tables}")
    good = True
    for name in arguments.sections or sections:
        if name in ("first-post", "credits") and not over_nccl:
            say(f"--- {name}: left out, since NCCL joins two ranks on two GPUs only")
            continue
        say(f"--- {name}")
        if name == "speed":
            good &= speed(devices, stand_in, arguments.shape)
        else:
            run = {"first-post": first_post, "credits": credit_counts, "tokens": tokens, "kill": kill}[name]
            good &= run(devices, stand_in)
    say("all right" if good else "WRONG")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
