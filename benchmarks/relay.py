"""The production table over real wires with a toy model: every rank adds one to the hidden states.

For measuring and testing wires alone. The last rank compares what arrives with what it must be, on the device; rank 0
keeps the time from plan to output of each pass.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from headway.engine.loop import compile_program, run
from headway.engine.messages import Decision, Output, Relayed
from headway.engine.recorder import RingRecorder
from headway.engine.wires import ControlCodec, TensorCodec, join_group, leave_group
from headway.engine.wiring import CUDA, Tools, Wiring
from headway.spec.serving import serving_table
from headway.spec.table import record_width
from headway.spec.trace import trace_path

_PAYLOADS: dict[str, Any] = {"requests": list[Relayed], "decision": Decision, "output": Output}


@dataclass(frozen=True)
class Load:
    """`passes` passes of up to `rows` rows of `width` numbers; `delay` matrix products before and after each use of the
    hidden states, so that streams run far behind their threads; `settle` waits for the device before an output leaves.
    """

    passes: int = 50
    rows: int = 64
    width: int = 256
    dtype: str = "float32"
    delay: int = 0
    settle: bool = True
    vary: bool = True
    seed: int = 0

    def sizes(self) -> list[int]:
        """Rows of each pass."""
        draw = random.Random(self.seed)
        return [draw.randint(1, self.rows) if self.vary else self.rows for _ in range(self.passes)]


@dataclass
class Result:
    """What one rank saw: numbers that were wrong (last rank), seconds in all and by pass (rank 0)."""

    rank: int
    wrong: int = 0
    outputs: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


class Toy:
    """Bindings of every role."""

    def __init__(self, load: Load, rank: int, device: torch.device) -> None:
        self._load, self._sizes, self._rank, self._device = load, load.sizes(), rank, device
        rows, columns = torch.arange(load.rows).unsqueeze(1), torch.arange(load.width).unsqueeze(0)
        self._base = (rows * 7 + columns).to(device)
        self._dtype = getattr(torch, load.dtype)
        side = 4096 if device.type == "cuda" else 64
        self._busy = torch.rand((side, side), device=device, dtype=self._dtype) / side
        self._wrong = torch.zeros((), dtype=torch.int64, device=device)
        self._planned: dict[int, float] = {}
        self._forwards = 0
        self.result = Result(rank)

    def expected(self, this_pass: int, ranks_before: int) -> torch.Tensor:
        """Small whole numbers, exact in every dtype."""
        size = self._sizes[this_pass]
        return ((self._base[:size] + this_pass * 13) % 97 + ranks_before).to(self._dtype)

    def wait_for_requests(self) -> tuple[list[Relayed], bool]:
        return [], True

    def poll_requests(self) -> list[Relayed]:
        return []

    def learn_requests(self, requests: list[Relayed]) -> None:
        pass

    def plan(self, this_pass: int, slot: int) -> tuple[Decision, int, bool, int]:
        launch = this_pass < self._load.passes
        self._planned[this_pass] = time.perf_counter()
        return Decision(), this_pass, launch, this_pass + 1 if launch else 0

    def honour(self, decision: Decision, digest: int) -> tuple[Decision, int, bool]:
        return decision, digest - 1, True

    def forward_first(self, this_pass: int) -> torch.Tensor:
        self._delay()
        return self.expected(this_pass, 1)

    def forward_middle(self, this_pass: int, hidden: torch.Tensor) -> torch.Tensor:
        self._delay()
        sent = hidden + 1
        self._delay()
        return sent

    def forward_last(self, this_pass: int, hidden: torch.Tensor) -> Output:
        self._delay()
        self._wrong += (hidden != self.expected(this_pass, self._rank)).sum()
        if self._load.settle and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return Output()

    def void_output(self, decision: Decision) -> Output:
        return Output()

    def apply_output(self, of_pass: int, output: Output, void: bool) -> None:
        self.result.outputs += not void
        self.result.latencies.append(time.perf_counter() - self._planned[of_pass])

    def finish(self) -> Result:
        """The result; waits for the device."""
        self.result.wrong = int(self._wrong.item())
        return self.result

    def _delay(self) -> None:
        for _ in range(self._load.delay):
            self._busy = self._busy @ self._busy


def lay(rank: int, devices: Sequence[str], directory: Path, load: Load, tools: Tools = CUDA) -> tuple[Any, Any, Any]:
    """Join the group and lay the wires: the program, the wires and the recorder of one rank."""
    ranks = len(devices)
    table = serving_table()
    program = compile_program(table, rank, ranks, ranks)
    codecs = {
        channel.name: TensorCodec(load.width, getattr(torch, load.dtype))
        if channel.kind == "tensor"
        else ControlCodec(_PAYLOADS[channel.payload])
        for channel in table.channels
    }
    join_group(directory, rank, ranks)
    wiring = Wiring(program, codecs, devices, directory, load.rows, tools)
    wiring.connect(capacity=1)
    width = record_width(table)
    recorder = RingRecorder(trace_path(directory, rank), table.fingerprint, rank, ranks, ranks, width, os.getpid())
    return program, wiring.endpoints(gate_bound=60.0), recorder


def run_rank(
    rank: int,
    devices: Sequence[str],
    directory: Path,
    load: Load,
    tools: Tools = CUDA,
    around: Callable[[Callable[[], None]], None] = lambda work: work(),
) -> Result:
    """Run one rank to its end; `around` is given the run itself, to profile it."""
    device = tools.device(devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    program, wires, recorder = lay(rank, devices, directory, load, tools)
    toy = Toy(load, rank, device)
    bindings = {name: getattr(toy, name) for name in program.bindings}

    def work() -> None:
        start = time.perf_counter()
        run(program, bindings, wires, recorder)
        toy.result.seconds = time.perf_counter() - start

    around(work)
    result = toy.finish()
    recorder.close()
    leave_group()
    return result
