"""A list of requests through one rank in this process: table, loop, bindings, policy and worker are the server's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from headway.engine.bindings import LeaderBindings, binding_table
from headway.engine.loop import Endpoints, compile_program, run
from headway.engine.loop.run import Recorder
from headway.engine.messages import Gauges, Generated, Intake, Report, Stop, Submit
from headway.engine.placement import place_ranks
from headway.engine.recorder import RingRecorder, trace_path
from headway.engine.scheduling import Books, Limits, Scheduler
from headway.engine.workers import build_worker
from headway.models import open_checkpoint, partition
from headway.spec.catalog import load_table
from headway.spec.serving import passes_ahead
from headway.spec.table import record_width


@dataclass
class Completion:
    """What became of one request; `finish` and `error` as in `messages.Generated`."""

    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    error: str = ""


class LLM:
    """A model on one rank. Each call of `generate` is a run of the table from its start to its end."""

    def __init__(
        self,
        model: str,
        *,
        table: str = "serving",
        load_format: str = "auto",
        device: str = "auto",
        dtype: str = "auto",
        kernels: str = "auto",
        graphs: bool = True,
        slots: int = 1,
        pages: int = 0,
        page_size: int = 16,
        max_batch_tokens: int = 8192,
        max_batch_rows: int = 256,
        max_context: int = 0,
        gpu_memory_utilization: float = 0.9,
        seed: int = 0,
        traces: Path | None = None,
    ) -> None:
        """As `headway serve`'s options of these names; `max_context` 0 is the model's. `pages` 0 means as many as fit
        on a GPU, and 2048 on a CPU. With `traces`, a folder, each run leaves its trace there. Raises what
        `build_worker` does, and ValueError.
        """
        (place,) = place_ranks(device, 1, torch.cuda.device_count())
        on_gpu = place != "cpu"
        if on_gpu:
            torch.cuda.set_device(place)
        if dtype == "auto":
            dtype = "bfloat16" if on_gpu else "float32"
        self._protocol, self._traces = load_table(table), traces
        self._program = compile_program(self._protocol, 0, 1, slots)
        checkpoint = open_checkpoint(model, "dummy" if load_format == "dummy" else "auto", seed)
        self.config = checkpoint.config
        limits = Limits(
            slots=slots,
            pages=pages or 2048,
            page_size=page_size,
            max_batch_tokens=max_batch_tokens,
            max_batch_rows=max_batch_rows,
            max_context=max_context or self.config.context_length,
            ahead=passes_ahead(self._protocol, 1, slots),
        )
        self._worker, count = build_worker(
            checkpoint,
            partition(self.config.layers, 1)[0],
            limits,
            device=place,
            dtype=getattr(torch, dtype),
            kernels=kernels,
            pages=pages or (0 if on_gpu else limits.pages),
            share=gpu_memory_utilization,
            graphs=graphs,
        )
        self.limits = replace(limits, pages=count)
        self.gauges = Gauges(0, 0, 0, count, count)

    def generate(self, requests: Sequence[Submit]) -> list[Completion]:
        """Run all requests, which arrive at once, to their ends. `gauges` then tells the counts of the run."""
        desk = _ListDesk(requests)
        books, scheduler = Books(self.limits.pages, self.limits.page_size), Scheduler(self.limits)
        bindings = LeaderBindings(books, self._worker, 0, scheduler, desk)
        run(self._program, binding_table(bindings, self._program.bindings), Endpoints({}, {}), self._recorder())
        self.gauges = scheduler.gauges()
        return [desk.completions[request.request] for request in requests]

    def _recorder(self) -> Recorder:
        if self._traces is None:
            return _NoRecorder()
        protocol, slots = self._protocol, self.limits.slots
        path = trace_path(self._traces, 0)
        return RingRecorder(path, protocol.fingerprint, 0, 1, slots, record_width(protocol), os.getpid())


class _NoRecorder:
    def enter(self, row: int, this_pass: int, *fields: int) -> None:
        """Not recorded."""

    def done(self, *fields: int) -> None:
        """Not recorded."""


class _ListDesk:
    """Everything arrives at once; when all has been served, the stop."""

    def __init__(self, requests: Sequence[Submit]) -> None:
        self._intake: list[Intake] = [*requests, Stop()]
        self.completions = {request.request: Completion() for request in requests}

    def wait(self) -> list[Intake]:
        """All requests."""
        return self.poll()

    def poll(self) -> list[Intake]:
        """All requests, once."""
        intake, self._intake = self._intake, []
        return intake

    def report(self, reports: list[Report]) -> None:
        """Keep what was generated."""
        for report in reports:
            if isinstance(report, Generated):
                completion = self.completions[report.request]
                completion.tokens += report.tokens
                completion.finish, completion.error = report.finish, report.error
