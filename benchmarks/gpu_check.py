"""Whether the CUDA engine is right: one GPU, a few minutes, a short table last; exits with 1 if anything is wrong.

    PYTHONPATH=typings python benchmarks/gpu_check.py [CHECK ...] [--kernels auto] [--seed 0]

Small random models, in float32 where tokens must be equal. A rank may wait for its device in `collect` only: everywhere
else a wait raises here.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import torch
import transformers
from ranks import Ranks

from headway.engine.messages import Sampling, Submit
from headway.engine.offline import LLM
from headway.kernels import load_kernels
from headway.models import Stage, StageBatch, allocate_kv_cache, open_checkpoint, partition
from headway.spec.catalog import load_table
from headway.verification.conform import conform

VOCABULARY, CONTEXT = 2048, 1024
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "llama": lambda: transformers.LlamaConfig(**COMMON, rope_parameters=LLAMA3, tie_word_embeddings=True),
    "mistral": lambda: transformers.MistralConfig(**COMMON, sliding_window=48),
    "qwen2": lambda: transformers.Qwen2Config(**COMMON),
    "qwen3": lambda: transformers.Qwen3Config(**COMMON, head_dim=128),
}


class Bench:
    """What all checks share: the backend, the seed, a folder."""

    def __init__(self, kernels: str, seed: int, folder: Path) -> None:
        self.kernels, self.seed, self.folder = kernels, seed, folder

    def family(self, name: str) -> Path:
        """A random model of a family, saved once."""
        path = self.folder / name
        if not path.exists():
            torch.manual_seed(self.seed)
            model = transformers.AutoModelForCausalLM.from_config(FAMILIES[name](), dtype=torch.float32)
            model.save_pretrained(path)
        return path

    def llm(self, name: str = "qwen3", **options: object) -> LLM:
        """An engine for a family, small unless told otherwise."""
        given = {"dtype": "float32", "max_batch_tokens": 256, "max_batch_rows": 32, "pages": 4096, **options}
        return LLM(str(self.family(name)), device="cuda", kernels=self.kernels, **given)  # type: ignore[arg-type]

    def requests(self, count: int, longest: int = 200, sampled: bool = True) -> list[Submit]:
        """Mixed requests; a third sample, a third limit their candidates too."""
        random, made = Random(self.seed), []
        for i in range(count):
            prompt = [random.randrange(VOCABULARY) for _ in range(random.randint(1, longest))]
            choice = [Sampling(), Sampling(0.8, seed=i), Sampling(1.1, 0.9, 40, seed=i)][i % 3 if sampled else 0]
            stops = [random.randrange(VOCABULARY) for _ in range(20)] if i % 5 == 4 else []
            made.append(Submit(i, prompt, random.randint(1, 60), stops, choice))
        return made


@contextmanager
def no_waits() -> Iterator[None]:
    """Raise wherever the host would wait for the device; `Event.synchronize`, which `collect` uses, is not among it."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def tokens_of(llm: LLM, requests: list[Submit]) -> list[list[int]]:
    """Tokens of all requests; raises when one failed."""
    completions = llm.generate(requests)
    failed = [c.error or c.finish for c in completions if c.finish not in ("stop", "length")]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, the first: {failed[0]}")
    return [completion.tokens for completion in completions]


def differing(left: list[list[int]], right: list[list[int]]) -> int:
    """How many requests got other tokens."""
    return sum(a != b for a, b in zip(left, right, strict=True))


# --- checks: each returns whether it holds, and a few words ----------------------------------------------------


def families(bench: Bench) -> tuple[bool, str]:
    """Greedy tokens in float32; and logits in bfloat16, no worse than those of `transformers`, in brackets."""
    words, holds = [], True
    for name in FAMILIES:
        path = bench.family(name)
        truth = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).cuda().eval()
        random = Random(bench.seed)
        prompts = [[random.randrange(VOCABULARY) for _ in range(n)] for n in (1, 17, 100, 300)]
        got = tokens_of(bench.llm(name), [Submit(i, prompt, 24) for i, prompt in enumerate(prompts)])
        wrong = 0
        for prompt, tokens in zip(prompts, got, strict=True):
            with torch.no_grad():
                whole = torch.tensor([prompt + tokens], device="cuda")
                wrong += int(truth(whole).logits[0, len(prompt) - 1 : -1].argmax(-1).ne(whole[0, len(prompt) :]).sum())
        ours, theirs = bf16_errors(path, truth, prompts[-1], bench.kernels)
        words.append(f"{name}: {wrong} of {24 * len(prompts)} tokens differ, bf16 logits {ours:.1e} ({theirs:.1e})")
        holds &= wrong == 0 and ours < 1.3 * theirs
    return holds, "; ".join(words)


@torch.inference_mode()
def bf16_errors(path: Path, truth: torch.nn.Module, prompt: list[int], kernels: str) -> tuple[float, float]:
    """Relative errors of the logits of a prompt in bfloat16 against float32: ours, and those of `transformers`."""
    checkpoint = open_checkpoint(str(path))
    span = partition(checkpoint.config.layers, 1)[0]
    stage = Stage.load(checkpoint, span, load_kernels(kernels, "cuda"), torch.bfloat16, "cuda")
    count, pages = len(prompt), -(-len(prompt) // 16)
    cache = allocate_kv_cache(checkpoint.config, span.layers, pages, 16, torch.bfloat16, "cuda")
    positions = torch.arange(count, device="cuda")
    batch = StageBatch(
        torch.tensor(prompt, device="cuda"),
        positions,
        positions,
        torch.tensor([0, count]),
        torch.tensor([count]),
        torch.arange(pages)[None],
        None,
    )
    ids = torch.tensor([prompt], device="cuda")
    expected = truth(ids).logits[0].double()
    theirs = truth.to(torch.bfloat16)(ids).logits[0]
    ours, other = (
        float((x.double() - expected).norm() / expected.norm()) for x in (stage.forward(batch, cache), theirs)
    )
    return ours, other


def same_tokens(bench: Bench) -> tuple[bool, str]:
    """Tokens with and without graphs and overlap, in float32, with no wait but the declared one."""
    requests = bench.requests(64)
    base = tokens_of(bench.llm(table="serving-in-step", graphs=False), requests)
    words, holds = [], True
    for table in ("serving-in-step", "serving"):
        for graphs in (False, True):
            llm = bench.llm(table=table, graphs=graphs)
            first = tokens_of(llm, requests)
            with no_waits():
                again = tokens_of(llm, requests)
            count = differing(base, first) + differing(base, again)
            holds &= count == 0
            words.append(f"{table}{', graphs' if graphs else ''}: {count} differ")
    return holds, "; ".join(words)


def load(bench: Bench) -> tuple[bool, str]:
    """256 mixed requests in bfloat16, twice the same; the trace is what the table says."""
    requests = bench.requests(256, longest=600)
    traces = bench.folder / "load"
    traces.mkdir()
    llm = bench.llm(dtype="bfloat16", max_batch_tokens=2048, max_batch_rows=128, traces=traces)
    first = tokens_of(llm, requests)
    again = tokens_of(llm, requests)
    conformance = conform(load_table("serving"), traces)
    holds = first == again and conformance.holds
    return holds, f"{differing(first, again)} differ in a second run; {conformance.words()}"


def preemption(bench: Bench) -> tuple[bool, str]:
    """Out of pages: requests are preempted, and get their tokens all the same."""
    requests = bench.requests(48)
    roomy = tokens_of(bench.llm(), requests)
    llm = bench.llm(pages=60)
    tight = tokens_of(llm, requests)
    count = differing(roomy, tight)
    return count == 0 and llm.gauges.preemptions > 0, f"{llm.gauges.preemptions} preemptions, {count} differ"


def memory(bench: Bench) -> tuple[bool, str]:
    """Pages by measurement stay within the share that was asked for; too small a share is refused in one line."""
    free_memory()
    llm = bench.llm(dtype="bfloat16", pages=0, gpu_memory_utilization=0.5, max_batch_tokens=8192, max_batch_rows=256)
    tokens_of(llm, bench.requests(256))
    free, total = torch.cuda.mem_get_info()
    used, pages = (total - free) / total, llm.limits.pages
    del llm
    free_memory()
    try:
        bench.llm(pages=0, gpu_memory_utilization=0.001)
    except RuntimeError as error:
        return 0.45 < used <= 0.5, f"{pages} pages, {used:.1%} of the memory for a share of 50%; refused: {error}"
    return False, "a share of 0.1% was taken"


def pipeline(bench: Bench) -> tuple[bool, str]:
    """Two and four ranks on this GPU, with graphs, under load: one rank's tokens, and traces as the table has it."""
    requests = bench.requests(256)
    expected = tokens_of(bench.llm(), requests)
    words, holds = [], True
    for ranks in (2, 4):
        traces = bench.folder / f"traces{ranks}"
        traces.mkdir()
        group = Ranks(
            str(bench.family("qwen3")),
            ["cuda:0"] * ranks,
            pages=4096,
            max_context=CONTEXT,
            max_batch_tokens=256,
            max_batch_rows=32,
            dtype="float32",
            kernels=bench.kernels,
            traces=str(traces),
        )
        try:
            answers = group.generate(requests)
        finally:
            group.close()
        count = differing(expected, [answer.tokens for answer in answers])
        conformance = conform(load_table("serving"), traces)
        holds &= count == 0 and conformance.holds
        words.append(f"{ranks} ranks: {count} differ, {conformance.words()}")
    return holds, "; ".join(words)


def free_memory() -> None:
    """Give back what engines no longer in use hold; a compiled table and its bindings refer to one another."""
    gc.collect()
    torch.cuda.empty_cache()


CHECKS: dict[str, Callable[[Bench], tuple[bool, str]]] = {
    "families": families,
    "same-tokens": same_tokens,
    "load": load,
    "preemption": preemption,
    "pipeline": pipeline,
    "memory": memory,
}


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", default=list(CHECKS), metavar="CHECK", help=", ".join(CHECKS))
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed {arguments.seed}", flush=True)
    lines, failed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments.kernels, arguments.seed, Path(folder))
        for name in arguments.checks:
            begin = time.perf_counter()
            try:
                holds, words = CHECKS[name](bench)
            except Exception as error:  # the other checks still tell something
                traceback.print_exc()
                holds, words = False, f"{type(error).__name__}: {error}".splitlines()[0]
            failed += not holds
            lines.append(f"{'ok' if holds else 'WRONG':6} {name:12} {time.perf_counter() - begin:6.1f} s  {words}")
            print(lines[-1], flush=True)
    print("\n" + "\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
