"""Every kernel on one GPU: right against float64, then timed against its own limit.

    PYTHONPATH=typings python benchmarks/gpu_kernels.py [--seed N] [--no-check] [--no-time]

Prints the worst errors, then a table of times; writes all of it to `gpu_kernels.json` in the folder $OUT, or here.
Limits: bytes moved / 4.26 TB/s, or operations / 803 TFLOP/s, as measured on an H200. Exits with 1 on a wrong result.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from kernel_checks import Check, Inputs, Pages, check

from headway.kernels import AttentionShape, Kernels, SamplingBatch, choose_backend, load_kernels

BANDWIDTH, RATE = 4.26e12, 803e12
HIDDEN, FFN, VOCABULARY, HEADS, KV_HEADS, HEAD_DIM, PAGE = 4096, 12288, 151936, 32, 8, 128, 16


@dataclass(frozen=True)
class Timing:
    case: str
    microseconds: float
    spread: float
    limit: float

    @property
    def share(self) -> float:
        return self.limit / self.microseconds


def time_calls(calls: list[Callable[[], object]], repeats: int = 7) -> tuple[float, float]:
    """Median microseconds of a call, and the spread over repeats: a graph of `calls`, each over buffers of its own."""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept = [call() for call in calls]
        graph.replay()
        times = []
        for _ in range(repeats):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    del kept
    return statistics.median(times), max(times) - min(times)


def timings(kernels: Kernels, triton: Kernels, seed: int) -> list[Timing]:
    """The operations at the shapes of Qwen3-8B in bfloat16."""
    inputs = Inputs(seed, torch.bfloat16)
    results: list[Timing] = []

    def copies(byte_count: float) -> int:
        """Enough buffers for more than the cache holds, in turn."""
        return max(2, min(24, int(400e6 / byte_count) + 1))

    def measure(case: str, make: Callable[[], Callable[[], object]], moved: float, work: float = 0.0) -> None:
        calls = [make() for _ in range(copies(moved))]
        calls *= max(1, 24 // len(calls))
        microseconds, spread = time_calls(calls)
        results.append(Timing(case, microseconds, spread, max(moved / BANDWIDTH, work / RATE) * 1e6))
        del calls
        torch.cuda.empty_cache()

    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    rotary = torch.randn(16384, HEAD_DIM, device="cuda")
    norms = (inputs.tensor(HEAD_DIM), inputs.tensor(HEAD_DIM))
    for tokens in (1, 64, 256, 8192):

        def norm(tokens: int = tokens) -> Callable[[], object]:
            x, residual, weight = inputs.tensor(tokens, HIDDEN), inputs.tensor(tokens, HIDDEN), inputs.tensor(HIDDEN)
            return lambda: kernels.add_rms_norm(x, residual, weight, 1e-6)

        def rope(tokens: int = tokens) -> Callable[[], object]:
            qkv = inputs.tensor(tokens, width)
            keys, values = (inputs.tensor(tokens // PAGE + 1, PAGE, KV_HEADS, HEAD_DIM) for _ in range(2))
            index = torch.arange(tokens, device="cuda")
            return lambda: kernels.rope_write(qkv, index, rotary, index, keys, values, norms, 1e-6)

        def activation(tokens: int = tokens) -> Callable[[], object]:
            gate_up = inputs.tensor(tokens, 2 * FFN)
            return lambda: kernels.silu_mul(gate_up)

        measure(f"add_rms_norm T={tokens}", norm, 8 * tokens * HIDDEN)
        measure(f"rope_write T={tokens}", rope, 4 * tokens * width)
        measure(f"silu_mul T={tokens}", activation, 6 * tokens * FFN)

    table = inputs.tensor(VOCABULARY, HIDDEN)

    def gather() -> Callable[[], object]:
        ids = torch.randint(0, VOCABULARY, (8192,), device="cuda")
        return lambda: kernels.embed(ids, table)

    measure("embed T=8192", gather, 4 * 8192 * HIDDEN)

    shapes = {
        "qkv": (width, HIDDEN),
        "output": (HIDDEN, HEADS * HEAD_DIM),
        "gate_up": (2 * FFN, HIDDEN),
        "down": (HIDDEN, FFN),
        "head": (VOCABULARY, HIDDEN),
    }
    for name, (out, size) in shapes.items():
        for tokens in (1, 2, 4, 8, 16, 64, 256, 8192):
            if name == "head" and tokens > 256:
                continue

            def linear(tokens: int = tokens, out: int = out, size: int = size) -> Callable[[], object]:
                x, weight = inputs.tensor(tokens, size), kernels.pack(inputs.tensor(out, size))
                return lambda: kernels.linear(x, weight)

            moved = 2 * (out * size + tokens * (out + size))
            measure(f"linear {name} T={tokens}", linear, moved, 2 * tokens * out * size)

    shape = AttentionShape(HEADS, KV_HEADS, HEAD_DIM, PAGE, torch.bfloat16)
    # The backends share the attention of decodes.
    uneven = [16384, *range(100, 1100, 16)]
    for case_name, contexts in (
        ("B=1 of 1024", [1024]),
        ("B=1 of 16384", [16384]),
        ("B=8 of 1024", [1024] * 8),
        ("B=64 of 1024", [1024] * 64),
        (f"B={len(uneven)}, one of 16384", uneven),
        ("B=256 of 1024", [1024] * 256),
    ):
        batch = len(contexts)

        def decode(contexts: list[int] = contexts, batch: int = batch) -> Callable[[], object]:
            case = Pages.draw(inputs, [1] * batch, contexts, shape)
            queries = inputs.tensor(batch, HEADS, HEAD_DIM)
            plan = kernels.plan_graph(batch, 2048, shape)
            plan.update(case.contexts, case.tables)
            return lambda: kernels.attend(queries, case.keys, case.values, plan)

        measure(f"decode {case_name}", decode, 4 * HEAD_DIM * (sum(contexts) * KV_HEADS + batch * HEADS))

    for backend in (triton, kernels):
        for batch, tokens in ((1, 2048), (1, 8192), (8, 1024)):

            def prefill(backend: Kernels = backend, batch: int = batch, tokens: int = tokens) -> Callable[[], object]:
                case = Pages.draw(inputs, [tokens] * batch, [tokens] * batch, shape)
                queries = inputs.tensor(batch * tokens, HEADS, HEAD_DIM)
                plan = backend.plan_attention(case.starts, case.contexts, case.tables, shape)
                return lambda: backend.attend(queries, case.keys, case.values, plan)

            moved = 4 * batch * tokens * (KV_HEADS + HEADS) * HEAD_DIM
            work = 2 * batch * tokens**2 * HEADS * HEAD_DIM
            measure(f"{backend.name} prefill {batch} x {tokens}", prefill, moved, work)

    # Peaked as language is: the token of rank r has a probability in proportion to 1 / r^2.
    for rows in (1, 8, 64, 256):
        for name, temperature, top_k, top_p, peaked in (
            ("greedy", 0.0, 0, 1.0, True),
            ("random", 1.0, 0, 1.0, True),
            ("top-p 0.9", 1.0, 0, 0.9, True),
            ("top-k 20, top-p 0.95", 0.6, 20, 0.95, True),
            ("top-p 0.9, flat logits", 1.0, 0, 0.9, False),
        ):
            sampling = SamplingBatch.of(
                [temperature] * rows, [top_k] * rows, [top_p] * rows, range(rows), range(rows), "cuda"
            )

            def draw(rows: int = rows, peaked: bool = peaked, batch: SamplingBatch = sampling) -> Callable[[], object]:
                logits = inputs.tensor(rows, VOCABULARY)
                if peaked:
                    uniform = torch.rand(rows, VOCABULARY, device="cuda", generator=inputs.device)
                    logits = (-2 * (-uniform.log()).log()).to(torch.bfloat16)
                return lambda: kernels.sample(logits, batch)

            measure(f"sample {name} S={rows}", draw, 2 * rows * VOCABULARY)
    return results


def host_times(kernels: Kernels, triton: Kernels, seed: int) -> list[Timing]:
    """Microseconds that the host spends on planning; they have no limit."""
    inputs = Inputs(seed, torch.bfloat16)
    shape = AttentionShape(HEADS, KV_HEADS, HEAD_DIM, PAGE, torch.bfloat16)
    results = []
    for backend in (triton, kernels):
        for batch in (1, 64, 256):
            case = Pages.draw(inputs, [1] * batch, [1024] * batch, shape)
            graph = backend.plan_graph(batch, 2048, shape)
            for name, call in (
                ("update", lambda graph=graph, case=case: graph.update(case.contexts, case.tables)),
                (
                    "plan",
                    lambda backend=backend, case=case: backend.plan_attention(
                        case.starts, case.contexts, case.tables, shape
                    ),
                ),
            ):
                times = []
                for _ in range(30):
                    begin = time.perf_counter()
                    call()
                    times.append((time.perf_counter() - begin) * 1e6)
                    torch.cuda.synchronize()
                times = times[10:]
                case_name = f"host: {backend.name} {name} B={batch}"
                results.append(Timing(case_name, statistics.median(times), max(times) - min(times), 0.0))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--no-time", action="store_true")
    options = parser.parse_args()
    name, reason = choose_backend("cuda")
    print(f"seed {options.seed}, torch {torch.__version__}, {torch.cuda.get_device_name()}, backend {name}: {reason}")
    record: dict[str, object] = {"seed": options.seed, "torch": torch.__version__, "backend": name}
    failed: list[Check] = []
    if not options.no_check:
        # One process each, because most of the time goes into compiling.
        jobs = [("triton", dtype, options.seed) for dtype in ("float32", "bfloat16", "float16")]
        if name == "flashinfer":
            jobs.append(("flashinfer", "bfloat16", options.seed))
        begin = time.perf_counter()
        with multiprocessing.get_context("spawn").Pool(len(jobs)) as pool:
            checks = [result for results in pool.starmap(check, jobs) for result in results]
        failed = [result for result in checks if not result.good]
        print(f"{len(checks)} checks in {time.perf_counter() - begin:.0f} s, {len(failed)} failed; the worst of each:")
        worst: dict[tuple[str, str], dict[str, float]] = {}
        for result in checks:
            row = worst.setdefault((result.backend, result.case), {})
            row[result.dtype] = max(row.get(result.dtype, 0.0), result.error)
        for (backend, case), row in worst.items():
            print(f"  {backend:10} {case:24}" + "".join(f"  {dtype} {value:.1e}" for dtype, value in row.items()))
        record["checks"] = [asdict(result) for result in checks]
    if not options.no_time:
        kernels, triton = load_kernels(name, "cuda"), load_kernels("triton", "cuda")
        measured = timings(kernels, triton, options.seed) + host_times(kernels, triton, options.seed)
        print(f"{'operation':44}{'us':>9}{'spread':>8}{'limit':>9}{'share':>7}")
        for row in measured:
            share = f"{100 * row.share:6.0f}%" if row.limit else ""
            print(f"{row.case:44}{row.microseconds:9.2f}{row.spread:8.2f}{row.limit:9.2f}{share}")
        record["timings"] = [asdict(row) for row in measured]
    for result in failed:
        print(f"FAILED {result}")
    Path(os.environ.get("OUT", "."), "gpu_kernels.json").write_text(json.dumps(record, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
