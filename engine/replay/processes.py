"""Real gloo processes through a given interleaving: each rank is held at its rows, and released in that order."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

from headway.engine.loop import compile_program
from headway.engine.recorder import RingReader, trace_path
from headway.engine.replay.rank import rank_main
from headway.engine.replay.script import ReplayError, Script, ScriptStep, executable
from headway.engine.wires import gate_path
from headway.spec.table import Gate, Post, Protocol, Receive, gated_channels
from headway.spec.transports import Transport

_BOUND = 30.0  # seconds for what must happen at once
_SETTLE = 0.05  # seconds after which a rank that reported a receive has posted it
_QUIET = 1.0  # seconds without any report, after which ranks are called stuck


class HeldProcesses:
    """The ranks of `protocol` as processes in `directory`; a context manager that ends them.

    Raises `ReplayError` when a transport or a gate is not what real wires have: `posted` (or `dropped` handles), and
    evidence of what was attempted on the channel; `SpecError` when a row exists in models only.
    """

    def __init__(
        self, protocol: Protocol, script: Script, transports: Mapping[str, Transport], directory: Path
    ) -> None:
        other = [f"{name} {t.name}" for name, t in transports.items() if t.kind not in ("posted", "dropped")]
        if other:
            raise ReplayError(f"gloo keeps the contract posted; the counterexample needs {', '.join(other)}")
        self.table, self._script, self.directory = executable(protocol, transports), script, directory
        self._roles = [
            compile_program(self.table, rank, script.ranks, script.slots, faulty=True).role
            for rank in range(script.ranks)
        ]
        for role in self._roles:
            for row in role.rows:
                if isinstance(row.operation, Gate) and row.operation != Gate(row.operation.channel):
                    raise ReplayError(f"row {row.name!r}: real gates count what was attempted on the channel alone")
        for channel in sorted(gated_channels(self.table)):
            for source in range(script.ranks - 1):
                os.mkfifo(gate_path(directory, channel, source, source + 1))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["headway.engine.replay.rank"])
        self._held: list[tuple[str, str] | None] = [None] * script.ranks
        self._lines: list[Connection] = []
        self._processes = []
        for rank in range(script.ranks):
            ours, theirs = context.Pipe()
            arguments = (self.table, rank, script.ranks, script.slots, str(directory), theirs)
            process = context.Process(target=rank_main, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._lines.append(ours)
            self._processes.append(process)

    def __enter__(self) -> HeldProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def play(self) -> list[str]:
        """Go the way of the script; the row at which each rank is left. Raises `ReplayError` where they cannot."""
        for number, step in enumerate(self._script.steps, 1):
            self._step(number, step)
        if self._script.law != "deadlock":
            return [self._where(rank) for rank in range(self._script.ranks)]
        rows = [self._where(rank) for rank in range(self._script.ranks)]
        for rank, line in enumerate(self._lines):
            if (self._held[rank] or ("", ""))[0] == "at":
                line.send({})  # into the row at which it must be stuck
                self._held[rank] = None
        deadline = time.monotonic() + _QUIET
        for rank, line in enumerate(self._lines):
            if rows[rank] != "end" and line.poll(max(0.0, deadline - time.monotonic())):
                raise ReplayError(f"rank {rank} is not stuck at {rows[rank]!r}: {line.recv()}")
        return rows

    def readers(self) -> list[RingReader]:
        """The traces of the ranks."""
        return [RingReader(trace_path(self.directory, rank)) for rank in range(self._script.ranks)]

    def _report(self, rank: int) -> tuple[str, str]:
        """What a rank last said: at which row it is held, or that it ended."""
        held = self._held[rank]
        if held is None or held[0] == "inside":
            bound = _BOUND if held is None else 0.0
            if self._lines[rank].poll(bound):
                held = self._held[rank] = self._lines[rank].recv()
        if held is None:
            raise ReplayError(f"rank {rank} does not go on")
        return held

    def _where(self, rank: int) -> str:
        kind, row = self._report(rank)
        if kind == "took" and self._script.law == "deadlock":
            raise ReplayError(f"rank {rank} is not stuck at {row!r}: it has received")
        if kind != "ended":
            return row
        last = RingReader(trace_path(self.directory, rank)).last() if row else None
        return "end" if last is None else self._roles[rank].rows[last.row].name

    def _step(self, number: int, step: ScriptStep) -> None:
        where = f"step {number}, rank {step.rank}"
        operation = self._roles[step.rank].row(step.row).operation
        if isinstance(operation, Receive):
            if step.aside:
                return  # a receive goes on by itself after a message of another kind
            deadline = time.monotonic() + _BOUND
            while (report := self._report(step.rank))[0] == "inside":
                if time.monotonic() > deadline:
                    raise ReplayError(f"{where}: nothing arrives at {step.row!r}")
                self._lines[step.rank].poll(0.1)
        else:
            report = self._report(step.rank)
        if report[0] == "ended" or report[1] != step.row:
            raise ReplayError(f"{where}: {' '.join(report)!r}, not at {step.row!r}")
        if isinstance(operation, Post) and operation.handle != "keep":
            time.sleep(_SETTLE)  # whether the receive is posted decides whether the message is lost
        self._held[step.rank] = None
        self._lines[step.rank].send(step.outcome)
        if isinstance(operation, Gate):
            return  # it may open only when the sender, held at its post, is released
        kind, what = self._report(step.rank)
        broken = kind == "ended" and what
        if broken and (number < len(self._script.steps) or self._script.law == "deadlock"):
            raise ReplayError(f"{where}, {step.row!r}: {what}")
