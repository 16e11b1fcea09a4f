"""All ranks of a pipeline in one process: the production loop, bindings, policy, books and recorder.

Only the wires, the clock, the desk and the model are replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from headway.engine.bindings import FollowerBindings, LeaderBindings, binding_table
from headway.engine.loop import Endpoints, compile_program, run
from headway.engine.messages import Decision, Intake, Output, Relayed, Report
from headway.engine.recorder import RingReader, RingRecorder, trace_path
from headway.engine.scheduling import Books, Limits, Scheduler
from headway.engine.simulation.hub import Hub
from headway.engine.simulation.model import FakeStage, ValuesCodec
from headway.engine.wires.simulated import Codec, SimulatedNetwork
from headway.spec.table import Local, Protocol, Role, record_width
from headway.spec.transports import Transport

_PAYLOADS: dict[str, Any] = {"requests": list[Relayed], "decision": Decision, "output": Output}


class BytesCodec:
    """Control payloads cross as the bytes that they are on a real wire."""

    def __init__(self, payload_type: Any) -> None:
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(payload_type)

    def encode(self, payload: Any) -> bytes:
        """msgpack."""
        return self._encoder.encode(payload)

    def decode(self, encoded: bytes) -> Any:
        """The payload; raises `msgspec.ValidationError`."""
        return self._decoder.decode(encoded)


class SimulatedDesk:
    """Rank 0's desk: what is to arrive lies ready with its time; `on_report` sees what goes out, and when."""

    def __init__(self, hub: Hub, on_report: Callable[[int, Report], None] = lambda time, report: None) -> None:
        self._hub, self._on_report = hub, on_report
        self._arrivals: list[tuple[int, int, Intake]] = []
        self._order = 0

    def send(self, time: int, message: Intake) -> None:
        """Let a message arrive at `time`."""
        self._order += 1
        self._arrivals.append((time, self._order, message))
        self._arrivals.sort(key=lambda arrival: arrival[:2])
        self._hub.wake(time, 0)

    def _here(self) -> bool:
        now = max(self._hub.now, self._hub.fibers[0].clock)
        return bool(self._arrivals) and self._arrivals[0][0] <= now

    def wait(self) -> list[Intake]:
        """Sleep until something is there; take it all."""
        if not self._here():
            if self._arrivals:
                self._hub.wake(self._arrivals[0][0], 0)
            self._hub.wait_until(0, "idle", "", self._here, None)
        return self.poll()

    def poll(self) -> list[Intake]:
        """Take what is there."""
        taken = []
        while self._here():
            taken.append(self._arrivals.pop(0)[2])
        return taken

    @property
    def untaken(self) -> list[Intake]:
        """What the ranks ended before taking."""
        return [message for _, _, message in self._arrivals]

    def report(self, reports: list[Report]) -> None:
        """Hand out reports."""
        for report in reports:
            self._on_report(self._hub.fibers[0].clock, report)


class EndlessError(RuntimeError):
    """A rank went on beyond all measure."""


class SimulatedRecorder:
    """The ring of one rank, stamped with virtual time; each row costs its time, and one without a wire may be a step.

    Raises `EndlessError` after `most_rows` rows.
    """

    def __init__(
        self, hub: Hub, rank: int, role: Role, ring: RingRecorder, row_times: Sequence[int], most_rows: int
    ) -> None:
        self._hub, self._rank, self._ring, self._row_times = hub, rank, ring, row_times
        self._left = most_rows
        self._local = [row.operation is None or isinstance(row.operation, Local) for row in role.rows]
        self.done = ring.done

    def enter(self, row: int, this_pass: int, *fields: int) -> None:
        """A row begins."""
        self._ring.enter(row, this_pass, *fields)
        self._left -= 1
        if self._left < 0:
            raise EndlessError(f"pass {this_pass} and no end")
        if self._hub.timed:
            self._hub.spend(self._rank, self._row_times[row])
        elif self._local[row]:
            self._hub.wait_until(self._rank, "local", "", lambda: True, None)


class Simulation:
    """A pipeline of `ranks` ranks of `table` over simulated wires, traced into `directory`.

    Rows cost `row_time` nanoseconds, or what `row_times` says by name.
    `spend(rank, tokens, samples)` is how long a forward takes, in nanoseconds; `refuse(rank)` may give what makes a
    rank refuse decisions. `scheduler`, `books` and `bindings` replace production's (tests plant faults there).
    """

    def __init__(
        self,
        table: Protocol,
        ranks: int,
        limits: Limits,
        directory: Path,
        transports: Mapping[str, Transport],
        *,
        hub: Hub | None = None,
        pages_by_rank: Sequence[int] = (),
        spend: Callable[[int, int, int], int] = lambda rank, tokens, samples: 0,
        latency: Callable[[str, int, int, Any], int] = lambda channel, source, ordinal, encoded: 0,
        refuse: Callable[[int], Callable[[Decision], str] | None] = lambda rank: None,
        on_report: Callable[[int, Report], None] = lambda time, report: None,
        row_time: int = 0,
        row_times: Mapping[str, int] | None = None,
        gate_bound: float = 60.0,
        ring_capacity: int = 1 << 12,
        most_rows: int = 1 << 40,
        scheduler: Callable[[Limits], Scheduler] = Scheduler,
        books: Callable[[int, int], Books] = Books,
        bindings: Callable[[int, Mapping[str, Callable[..., Any]]], Mapping[str, Callable[..., Any]]] = lambda r, b: b,
    ) -> None:
        self.table, self.ranks, self.limits, self.directory = table, ranks, limits, directory
        self.hub = hub if hub is not None else Hub(ranks)
        codecs: dict[str, Codec] = {
            c.name: ValuesCodec() if c.kind == "tensor" else BytesCodec(_PAYLOADS[c.payload]) for c in table.channels
        }
        self.network = SimulatedNetwork(table, ranks, self.hub, transports, codecs, latency)
        self.desk = SimulatedDesk(self.hub, on_report)
        self.scheduler = scheduler(limits)
        self.books: list[Books] = []
        mains, self._recorders = [], []
        for rank in range(ranks):
            program = compile_program(table, rank, ranks, limits.slots)
            own = books(pages_by_rank[rank] if pages_by_rank else limits.pages, limits.page_size)
            self.books.append(own)
            stage = FakeStage(limits.page_size, self._spender(rank, spend))
            owner: FollowerBindings
            if "plan" in program.bindings:
                owner = LeaderBindings(own, stage, rank, self.scheduler, self.desk)
            else:
                owner = FollowerBindings(own, stage, rank, refuse(rank))
            ring = RingRecorder(
                trace_path(directory, rank),
                table.fingerprint,
                rank,
                ranks,
                limits.slots,
                record_width(table),
                os.getpid(),
                ring_capacity,
                self._clock(rank),
            )
            self._recorders.append(ring)
            times = [(row_times or {}).get(row.name, row_time) for row in program.role.rows]
            recorder = SimulatedRecorder(self.hub, rank, program.role, ring, times, most_rows)
            wires = Endpoints(self.network.outgoing_ends(rank), self.network.incoming_ends(rank), gate_bound)
            called = bindings(rank, binding_table(owner, program.bindings))
            mains.append(partial(run, program, called, wires, recorder))
        self._mains = mains

    def _clock(self, rank: int) -> Callable[[], int]:
        return lambda: self.hub.fibers[rank].clock

    def _spender(self, rank: int, spend: Callable[[int, int, int], int]) -> Callable[[int, int], None]:
        return lambda tokens, samples: self.hub.spend(rank, spend(rank, tokens, samples))

    def start(self) -> None:
        """Bring every rank to its first wait."""
        self.hub.start(self._mains)

    def readers(self) -> list[RingReader]:
        """The ranks' traces, as anybody else would read them."""
        return [RingReader(trace_path(self.directory, rank)) for rank in range(self.ranks)]

    def close(self) -> None:
        """End what still runs, and the traces."""
        for rank in range(self.ranks):
            self.hub.kill(rank)
        for ring in self._recorders:
            ring.close()
