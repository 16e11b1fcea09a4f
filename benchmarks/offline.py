"""Throughput of one GPU without a server: decode steps, prefill, and a set of requests, against the chip's limits.

    python benchmarks/offline.py [CASE ...] [--shape qwen3-8b] [--rows 256] [--tokens 8192] [--repeat 3]

Random weights and prompts, greedy, no stop tokens. A decode step is (time of 129 tokens - time of 1 token) / 128 at
prompts of 1,024 tokens. Limits come from this call's own device copy and matrix product: a decode step reads the
weights (but the input embedding) and the KV once; prefill does two operations a weight and token, and attention.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch

from headway.engine.messages import Submit
from headway.engine.offline import LLM
from headway.models.weights import expected_tensors

SHAPES = {
    "qwen3-8b": (151936, 4096, 12288, 36, 32, 8, 128, False),
    "qwen3-0.6b": (151936, 1024, 3072, 28, 16, 8, 128, True),
    "tiny": (512, 64, 128, 3, 4, 2, 16, False),
}
CASES = ("decode-1", "decode-8", "decode-64", "decode-256", "prefill-2k", "prefill-8k", "prefill-32x2k", "set")


def write_config(folder: Path, shape: str) -> None:
    """A `config.json` of the Qwen3 family."""
    vocabulary, hidden, ffn, layers, heads, kv_heads, head_dim, tied = SHAPES[shape]
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960,
        "rope_theta": 1e6,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config))


class Machine:
    """The rates that limits are made of: bytes a second of a device copy (read and written), operations a second."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            self.copy, self.matmul = float("nan"), float("nan")
            return
        source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
        target = torch.empty_like(source)
        self.copy = 4 * source.numel() / self._seconds(lambda: target.copy_(source))
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.matmul = 2 * 8192**3 / self._seconds(lambda: a @ b)

    @staticmethod
    def _seconds(run: Callable[[], object]) -> float:
        times = []
        for _ in range(8):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(times[3:])


class Limits:
    """The least time of a pass of `llm` on `machine`."""

    def __init__(self, llm: LLM, machine: Machine) -> None:
        config = llm.config
        shapes = expected_tensors(config)
        weights = sum(torch.Size(shape).numel() for name, shape in shapes.items() if "embed_tokens" not in name)
        if config.tied_embeddings:
            weights += config.vocab_size * config.hidden_size
        self._machine, self._weights = machine, weights
        self._body = weights - config.vocab_size * config.hidden_size
        self._kv = 4 * config.layers * config.kv_heads * config.head_dim
        self._attention = 4 * config.layers * config.heads * config.head_dim

    def decode(self, batch: int, context: int) -> float:
        """Seconds of a step in bfloat16."""
        return (2 * self._weights + batch * context * self._kv) / self._machine.copy

    def prefill(self, prompts: int, length: int) -> float:
        """Seconds for prompts of one length."""
        operations = 2 * self._body * length + self._attention * length * length / 2
        return prompts * operations / self._machine.matmul


def prompts(random: Random, vocabulary: int, lengths: list[tuple[int, int]]) -> list[Submit]:
    """Requests of these (prompt, output) lengths."""
    return [
        Submit(i, [random.randrange(vocabulary) for _ in range(length)], output)
        for i, (length, output) in enumerate(lengths)
    ]


def offline_set() -> list[tuple[int, int]]:
    """(prompt, output) lengths of 1,000 requests."""
    random, lengths = Random(7), []
    for _ in range(1000):
        prompt = min(2048, max(8, int(random.lognormvariate(5.2, 1.1))))
        lengths.append((prompt, min(1024, max(4, int(random.lognormvariate(5.0, 0.9))))))
    return lengths


def timed(llm: LLM, lengths: list[tuple[int, int]]) -> float:
    """Seconds that the requests take; raises if one did not get its tokens."""
    requests = prompts(Random(1), llm.config.vocab_size, lengths)
    begin = time.perf_counter()
    completions = llm.generate(requests)
    seconds = time.perf_counter() - begin
    for request, completion in zip(requests, completions, strict=True):
        if len(completion.tokens) != request.max_tokens:
            raise RuntimeError(f"request {request.request}: {completion.finish} {completion.error}")
    return seconds


def median(times: list[float]) -> tuple[float, float]:
    """Median, and the spread relative to it."""
    middle = statistics.median(times)
    return middle, (max(times) - min(times)) / middle


def run_case(case: str, llm: LLM, limits: Limits, repeat: int) -> str:
    """One line of the table: time, limit, share of the limit, spread."""
    kind, _, size = case.partition("-")
    if kind == "decode":
        batch, context = int(size), 1024
        timed(llm, [(context, 16)] * batch)
        steps = [
            (timed(llm, [(context, 129)] * batch) - timed(llm, [(context, 1)] * batch)) / 128 for _ in range(repeat)
        ]
        step, spread = median(steps)
        limit = limits.decode(batch, context + 64)
        return (
            f"{case:14} {1e3 * step:9.2f} ms a step {batch / step:10.0f} tok/s   limit {1e3 * limit:8.2f} ms "
            f"{limit / step:5.0%}   spread {spread:.0%}"
        )
    if kind == "prefill":
        count, length = {"2k": (1, 2048), "8k": (1, 8192), "32x2k": (32, 2048)}[size]
        timed(llm, [(length, 1)] * count)
        seconds, spread = median([timed(llm, [(length, 1)] * count) for _ in range(repeat)])
        limit = limits.prefill(count, length)
        return (
            f"{case:14} {1e3 * seconds:9.1f} ms        {count * length / seconds:10.0f} tok/s   "
            f"limit {1e3 * limit:8.1f} ms {limit / seconds:5.0%}   spread {spread:.0%}"
        )
    lengths = offline_set()
    seconds, spread = median([timed(llm, lengths) for _ in range(max(1, repeat - 1))])
    output = sum(length for _, length in lengths)
    gauges = llm.gauges
    return (
        f"{case:14} {seconds:9.2f} s         {output / seconds:10.0f} output tok/s   {gauges.passes} passes, "
        f"{gauges.preemptions} preemptions   spread {spread:.0%}"
    )


def profile(case: str, llm: LLM) -> None:
    """Print where the device's time goes in a case: kernels by total time, and the share of the time it is busy."""
    kind, _, size = case.partition("-")
    lengths = {
        "decode": lambda: [(1024, 64)] * int(size),
        "prefill": lambda: {"2k": [(2048, 1)], "8k": [(8192, 1)], "32x2k": [(2048, 1)] * 32}[size],
        "set": offline_set,
    }[kind]()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        seconds = timed(llm, lengths)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    busy, reached = 0.0, 0.0
    for begin, end in spans:
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    print(f"profile of {case}: {llm.gauges.passes} passes in {seconds:.2f} s, the device busy {busy / 1e6:.2f} s")
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)
    for row in rows[:16]:
        total, count = row.self_device_time_total, row.count
        print(f"{total / 1e3:10.1f} ms {count:8} x {total / count:9.1f} us  {row.key[:110]}")


def main() -> None:
    """Run the cases and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--table", default="serving")
    parser.add_argument("--rows", type=int, default=256, help="most requests of a pass")
    parser.add_argument("--tokens", type=int, default=8192, help="most tokens of a pass")
    parser.add_argument("--pages", type=int, default=0, help="KV pages; 0: as many as fit")
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="also profile each case")
    arguments = parser.parse_args()
    machine = Machine()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), arguments.shape)
        llm = LLM(
            folder,
            load_format="dummy",
            device=arguments.device,
            table=arguments.table,
            kernels=arguments.kernels,
            graphs=not arguments.no_graphs,
            max_batch_tokens=arguments.tokens,
            max_batch_rows=arguments.rows,
            pages=arguments.pages,
        )
    print(f"{vars(arguments)}")
    print(
        f"torch {torch.__version__}; copy {machine.copy / 1e12:.2f} TB/s, matmul {machine.matmul / 1e12:.0f} TFLOP/s; "
        f"start {time.perf_counter() - begin:.1f} s, {llm.limits.pages} pages",
        flush=True,
    )
    limits = Limits(llm, machine)
    for case in arguments.cases:
        print(run_case(case, llm, limits, arguments.repeat), flush=True)
        if arguments.profile:
            profile(case, llm)


if __name__ == "__main__":
    main()
