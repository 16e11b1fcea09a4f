"""Brings up the worker of one rank: weights, KV pages sized by measurement, graphs."""

from __future__ import annotations

from array import array

import torch

from headway.engine.messages import Sampling
from headway.engine.scheduling import Limits, Member
from headway.engine.workers.graphs import decode_ladder, prompt_ladder
from headway.engine.workers.worker import Worker
from headway.kernels import load_kernels
from headway.models import Checkpoint, Stage, StageSpan, allocate_kv_cache, kv_bytes_per_page

_GIB = 2.0**30
_PER_GRAPH = 256 << 10  # bytes of a GPU that a graph takes beside the memory that all share
_OUTSIDE = 1 << 30  # bytes of a GPU that no allocator of ours sees: context, libraries, compiled kernels


class DeviceMemoryError(RuntimeError):
    """The GPU memory that a rank may use is too small; says what to change."""


def build_worker(
    checkpoint: Checkpoint,
    span: StageSpan,
    limits: Limits,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    kernels: str = "auto",
    pages: int = 0,
    share: float = 0.9,
    graphs: bool = True,
) -> tuple[Worker, int]:
    """The worker of the stage `span`, and the number of its KV pages: `pages`, or on a GPU, when that is 0, as many as
    fit into the fraction `share` of its memory. Raises `ModelError`, `DeviceMemoryError`, and ValueError.
    """
    on_gpu = torch.device(device).type == "cuda"
    if not pages and not on_gpu:
        raise ValueError("pages is 0; only a GPU's memory is measured, elsewhere there must be at least 1")
    backend = load_kernels(kernels, device)
    graphs = graphs and on_gpu and backend.graphs
    decodes, prompts = (
        (decode_ladder(limits.max_batch_rows), prompt_ladder(limits.max_batch_tokens)) if graphs else ([], [])
    )
    config = checkpoint.config
    try:
        stage = Stage.load(checkpoint, span, backend, dtype, device, positions=limits.max_context)
        if not pages:
            page_bytes = kv_bytes_per_page(config, span.layers, limits.page_size, dtype)
            held = 2 * len(decodes) + (span.layers + 1) * len(prompts)
            used = _rehearse(stage, limits, decodes[-1:], prompts[-1:]) + _PER_GRAPH * held
            budget = share * torch.cuda.mem_get_info(device)[1] - _OUTSIDE
            pages = int((budget - used) // page_bytes)
            if pages < 1:
                raise DeviceMemoryError(
                    f"weights and a pass of {limits.max_batch_tokens} tokens take {used / _GIB:.1f} GiB of the "
                    f"{budget / _GIB:.1f} GiB that this rank may use, and leave no room for a KV page; {_ADVICE}"
                )
        cache = allocate_kv_cache(config, span.layers, pages, limits.page_size, dtype, device)
        return Worker(stage, cache, backend, limits, decodes, prompts), pages
    except torch.OutOfMemoryError as error:
        free, total = (number / _GIB for number in torch.cuda.mem_get_info(device))
        raise DeviceMemoryError(f"out of memory, with {free:.1f} of {total:.1f} GiB free; {_ADVICE}") from error


_ADVICE = (
    "raise --gpu-memory-utilization if nothing else runs there, split the model over more GPUs (--pp), or lower "
    "--max-batch-tokens, --max-batch-rows or --kv-pages"
)


def _rehearse(stage: Stage, limits: Limits, decodes: list[int], prompts: list[int]) -> int:
    """Bytes of the device's memory that it takes to run the largest pass and to hold graphs, without KV pages."""
    config = stage.config
    cache = allocate_kv_cache(config, stage.span.layers, 1, limits.page_size, stage.dtype, stage.device)
    worker = Worker(stage, cache, stage.kernels, limits, decodes, prompts)
    rows = limits.max_batch_rows
    count = min(limits.max_batch_tokens // rows, limits.max_context)
    choice = Sampling(temperature=1.0, top_p=0.9, top_k=50)
    members = [
        Member(row, array("q", [0] * limits.pages_for(count)), 0, count, choice, samples=True) for row in range(rows)
    ]
    tokens = [[0] * count] * rows
    hidden = torch.zeros((rows * count, config.hidden_size), dtype=stage.dtype, device=stage.device)
    work = worker.prepare(members, tokens)
    if stage.span.last:
        worker.launch(work, hidden)
        worker.collect()
    else:
        worker.forward(work, hidden)
    torch.cuda.synchronize(stage.device)
    used = torch.cuda.memory_reserved(stage.device)
    del worker, work, cache, hidden
    torch.cuda.empty_cache()
    return used
