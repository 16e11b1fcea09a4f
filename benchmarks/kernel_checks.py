"""Every operation of a backend on the GPU against the reference in float64, on fresh random inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.kernels import AttentionShape, Kernels, SamplingBatch, load_kernels
from headway.kernels.sampling import sample_tokens

LIMIT = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}  # of the relative error, by norms
VOCABULARY = 151936


@dataclass(frozen=True)
class Check:
    backend: str
    dtype: str
    case: str
    error: float
    limit: float

    @property
    def good(self) -> bool:
        return self.error <= self.limit  # a NaN is not good


class Inputs:
    """Random tensors of one dtype; never zeros."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.device = torch.Generator("cuda").manual_seed(seed)
        self.host = torch.Generator().manual_seed(seed)
        self.dtype = dtype

    def tensor(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.device, device="cuda").to(self.dtype)

    def rows(self, rows: int, size: int) -> Tensor:
        return self.tensor(rows, size + 32)[:, :size]

    def number(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.host))


@dataclass(frozen=True)
class Pages:
    """A paged cache and a ragged batch over it; host tensors as `Kernels.plan_attention` takes them."""

    keys: Tensor
    values: Tensor
    starts: Tensor
    contexts: Tensor
    tables: Tensor
    shape: AttentionShape

    @classmethod
    def draw(
        cls, inputs: Inputs, counts: list[int], contexts: list[int], shape: AttentionShape, interleaved: bool = False
    ) -> Pages:
        needed = [-(-context // shape.page_size) for context in contexts]
        order = torch.randperm(sum(needed) + 1, generator=inputs.host) if sum(needed) else torch.zeros(1)
        tables = torch.zeros((len(counts), max(needed)), dtype=torch.int64)
        used = 0
        for row, count in enumerate(needed):
            tables[row, :count] = order[used : used + count]
            used += count
        cache = inputs.tensor(sum(needed) + 1, 2, shape.page_size, shape.kv_heads, shape.head_dim)
        keys, values = cache.unbind(1)
        if not interleaved:
            keys, values = keys.contiguous(), values.contiguous()
        starts = torch.tensor([sum(counts[:row]) for row in range(len(counts) + 1)])
        return cls(keys, values, starts, torch.tensor(contexts), tables, shape)


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


def check(backend: str, dtype_name: str, seed: int) -> list[Check]:
    """Every operation of `backend` in one dtype, against the reference in float64 on the same device."""
    dtype: torch.dtype = getattr(torch, dtype_name)
    torch.backends.cuda.matmul.allow_tf32 = False
    kernels, oracle = load_kernels(backend, "cuda"), load_kernels("reference", "cuda")
    inputs = Inputs(seed, dtype)
    results: list[Check] = []

    def note(case: str, actual: Tensor, expected: Tensor) -> None:
        results.append(Check(backend, dtype_name, case, error(actual, expected), LIMIT[dtype]))

    for rows, size in ((1, 96), (7, 896), (300, 4096), (64, 5120)):
        x, residual, weight = inputs.rows(rows, size), inputs.rows(rows, size), inputs.tensor(size)
        expected = residual.double() + x.double()
        note("rms_norm", kernels.rms_norm(x, weight, 1e-6), oracle.rms_norm(x.double(), weight.double(), 1e-6))
        normed, total = kernels.add_rms_norm(x, residual, weight, 1e-6)
        note("add", total, expected)
        note("add_rms_norm", normed, oracle.rms_norm(total.double(), weight.double(), 1e-6))
        again = kernels.rms_norm(total, weight, 1e-6)
        results.append(Check(backend, dtype_name, "norm of a received sum", float((again != normed).sum()), 0))
        gate_up = inputs.rows(rows, 2 * size)
        note("silu_mul", kernels.silu_mul(gate_up), oracle.silu_mul(gate_up.double()))
        table, ids = inputs.tensor(1000, size), torch.randint(0, 1000, (rows,), device="cuda")
        note("embed", kernels.embed(ids, table), table[ids].double())
        for tokens in (1, 3, 16, 17, 200):
            x, matrix, bias = inputs.tensor(tokens, size), inputs.tensor(size + 16, size), inputs.tensor(size + 16)
            wide = x.double() @ matrix.double().T
            note("linear", kernels.linear(x, kernels.pack(matrix)), wide)
            note("linear with bias", kernels.linear(x, kernels.pack(matrix), bias), wide + bias.double())

    for heads, kv_heads, head_dim, tokens, norms in (
        (32, 8, 128, 5, True), (32, 8, 128, 500, True), (14, 2, 64, 1, False), (9, 3, 64, 130, False),
        (8, 1, 96, 70, True), (4, 4, 96, 2, False), (40, 8, 128, 66, False),
    ):  # fmt: skip
        page_size = inputs.number(1, 64)
        pages = tokens // page_size + 3
        qkv = inputs.rows(tokens, (heads + 2 * kv_heads) * head_dim)
        rotary = torch.randn(1000, head_dim, device="cuda", generator=inputs.device)
        positions = torch.randint(0, 1000, (tokens,), device="cuda", generator=inputs.device)
        slots = torch.randperm(pages * page_size, generator=inputs.host)[:tokens].cuda()
        slots[tokens // 2] = -1
        weights = (inputs.tensor(head_dim), inputs.tensor(head_dim)) if norms else None
        wide_weights = (weights[0].double(), weights[1].double()) if weights else None
        keys, values = inputs.tensor(pages, 2, page_size, kv_heads, head_dim).unbind(1)
        wide = [tensor.double().contiguous() for tensor in (keys, values)]
        expected = oracle.rope_write(qkv.double(), positions, rotary, slots, wide[0], wide[1], wide_weights, 1e-6)
        queries = kernels.rope_write(qkv, positions, rotary, slots, keys, values, weights, 1e-6)
        for name, actual, correct in (
            ("queries", queries, expected),
            ("keys", keys, wide[0]),
            ("values", values, wide[1]),
        ):
            note(f"rope_write {name}", actual, correct)

    for heads, kv_heads, head_dim, window in (
        (32, 8, 128, None), (14, 2, 64, None), (9, 3, 64, None), (8, 1, 128, None), (4, 4, 64, None), (8, 2, 96, None),
        (32, 8, 128, 100), (32, 1, 64, None),
    ):  # fmt: skip
        page_size = (1, 16, 16, 32, 7, 64)[inputs.number(0, 5)]
        shape = AttentionShape(heads, kv_heads, head_dim, page_size, dtype, window)
        ragged = [1 if inputs.number(0, 1) else inputs.number(0, 300) for _ in range(9)]
        for kind, counts in (
            ("decodes", [1] * 20),
            ("prompts", [700, 3, 129]),
            ("mixed", [1, 1, 1, 40, 300]),
            ("ragged", ragged),
        ):
            contexts = [count + (inputs.number(0, 3000) if inputs.number(0, 1) or not count else 0) for count in counts]
            batch = Pages.draw(inputs, counts, contexts, shape, interleaved=inputs.number(0, 1) == 1)
            queries = inputs.tensor(sum(counts), heads, head_dim)
            actual = kernels.attend(
                queries,
                batch.keys,
                batch.values,
                kernels.plan_attention(batch.starts, batch.contexts, batch.tables, shape),
            )
            plan = oracle.plan_attention(batch.starts, batch.contexts, batch.tables, shape)
            wide_cache = batch.keys.double(), batch.values.double()
            note(f"attend {kind}", actual, oracle.attend(queries.double(), *wide_cache, plan))
        results += check_graph(kernels, oracle, inputs, shape)

    results += check_sampling(kernels, inputs, dtype_name)
    return results


def check_graph(kernels: Kernels, oracle: Kernels, inputs: Inputs, shape: AttentionShape) -> list[Check]:
    """A captured decode, replayed while the host runs ahead: nothing may wait, and no update may overtake a replay."""
    batch, most, rounds = 6, 256, 20
    dtype_name = str(shape.dtype).removeprefix("torch.")
    stream = torch.cuda.Stream()
    longest = min(1500, most * shape.page_size)
    cases = []
    for _ in range(rounds):
        size = inputs.number(1, batch)
        cases.append(Pages.draw(inputs, [1] * size, [inputs.number(1, longest) for _ in range(size)], shape))
    pages = max(len(case.keys) for case in cases)
    keys, values = (inputs.tensor(pages, shape.page_size, shape.kv_heads, shape.head_dim) for _ in range(2))
    queries = inputs.tensor(batch, shape.heads, shape.head_dim)
    logits = inputs.tensor(batch, 5000)
    sampling = SamplingBatch.of(
        [0.0, 1.0, 0.7, 1.0, 1.0, 0.5],
        [0, 0, 5, 0, 20, 0],
        [1, 1, 1, 0.9, 0.8, 0.5],
        range(batch),
        range(batch),
        "cuda",
    )
    torch.cuda.synchronize()
    outputs, tokens = [], []
    with torch.cuda.stream(stream):
        plan = kernels.plan_graph(batch, most, shape)
        kernels.attend(queries, keys, values, plan)
        kernels.sample(logits, sampling)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = kernels.attend(queries, keys, values, plan)
            token = kernels.sample(logits, sampling)
        torch.cuda.set_sync_debug_mode("error")
        try:
            torch.cuda._sleep(50_000_000)  # the device falls behind by many updates
            for case in cases:
                plan.update(case.contexts, case.tables)
                graph.replay()
                outputs.append(out.clone())
                tokens.append(token.clone())
        finally:
            torch.cuda.set_sync_debug_mode("default")
        stream.synchronize()
    worst = 0.0
    for case, output in zip(cases, outputs, strict=True):
        rows = len(case.contexts)
        reference = oracle.plan_attention(case.starts, case.contexts, case.tables, shape)
        expected = oracle.attend(queries[:rows].double(), keys.double(), values.double(), reference)
        worst = max(worst, error(output[:rows], expected))
    drawn = sample_tokens(logits, sampling)
    wrong = sum(int((token != drawn).sum()) for token in tokens)
    return [
        Check(kernels.name, dtype_name, "attend in a graph", worst, LIMIT[shape.dtype]),
        Check(kernels.name, dtype_name, "sample in a graph", wrong, 0),
    ]


def check_sampling(kernels: Kernels, inputs: Inputs, dtype_name: str) -> list[Check]:
    """The share of tokens that differ from the reference's, which rounding at a threshold may cause, rarely."""
    wrong = {"greedy": 0, "random": 0, "filtered": 0}
    total = 0
    for vocabulary in (50, 32000, VOCABULARY):
        rows = 64
        total += rows
        spread = torch.logspace(-1, 1, rows, device="cuda")[:, None]
        logits = (inputs.tensor(rows, vocabulary) * spread).to(inputs.dtype)
        temperature = [0.0 if inputs.number(0, 9) == 0 else inputs.number(2, 15) / 10 for _ in range(rows)]
        seeds = [inputs.number(-(2**62), 2**62) for _ in range(rows)]
        positions = [inputs.number(0, 2**20) for _ in range(rows)]
        top_k = [inputs.number(1, 200) * inputs.number(0, 1) for _ in range(rows)]
        top_p = [inputs.number(1, 99) / 100 if inputs.number(0, 1) else 1.0 for _ in range(rows)]
        none, one = [0] * rows, [1.0] * rows
        for name, batch in (
            ("greedy", SamplingBatch.of([0.0] * rows, none, one, seeds, positions, "cuda")),
            ("random", SamplingBatch.of(temperature, none, one, seeds, positions, "cuda")),
            ("filtered", SamplingBatch.of(temperature, top_k, top_p, seeds, positions, "cuda")),
        ):
            wrong[name] += int((kernels.sample(logits, batch) != sample_tokens(logits, batch)).sum())
    return [
        Check(kernels.name, dtype_name, f"sample {name}", count / total, 0 if name == "greedy" else 0.011)
        for name, count in wrong.items()
    ]
