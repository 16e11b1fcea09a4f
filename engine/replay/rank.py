"""One rank of a replay as a process: the compiled loop over gloo, held at each of its rows until told to go on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from headway.engine.loop import Endpoints, Program, compile_program, run
from headway.engine.recorder import RingRecorder, trace_path
from headway.engine.replay.script import scripted_bindings
from headway.engine.wires import ControlCodec, FifoGate, GateKeeper, gate_path, join_group
from headway.engine.wires.shared import SharedIncoming, SharedOutgoing, SharedWire
from headway.spec.language import Value
from headway.spec.table import Protocol, Receive, gated_channels, record_width


class HeldRecorder:
    """The production recorder, plus a report of each row to the director and a wait for its word.

    A rank that stands at a receive has posted it, so it goes in at once and is held when it comes out.
    """

    def __init__(self, ring: RingRecorder, program: Program, director: Connection) -> None:
        self._ring, self._rows, self._director = ring, program.role.rows, director
        self.row = 0
        self.outcome: Mapping[str, Value] = {}

    def enter(self, row: int, this_pass: int, *fields: int) -> None:
        """A row begins."""
        self._ring.enter(row, this_pass, *fields)
        self.row = row
        inside = isinstance(self._rows[row].operation, Receive)
        self._director.send(("inside" if inside else "at", self._rows[row].name))
        if not inside:
            self.outcome = self._director.recv()

    def done(self, *fields: int) -> None:
        """Its operation obtained `fields`."""
        self._ring.done(*fields)
        if isinstance(self._rows[self.row].operation, Receive):
            self._director.send(("took", self._rows[self.row].name))
            self._director.recv()


def rank_main(table: Protocol, rank: int, ranks: int, slots: int, directory: str, director: Connection) -> None:
    """Run one rank of `table` under the director's orders; reports ("ended", why), empty after a clean end."""
    torch.set_num_threads(1)
    folder = Path(directory)
    try:
        program = compile_program(table, rank, ranks, slots, faulty=True)
        path, width = trace_path(folder, rank), record_width(table)
        ring = RingRecorder(path, table.fingerprint, rank, ranks, slots, width, os.getpid())
        recorder = HeldRecorder(ring, program, director)
        bound = scripted_bindings(program.role, lambda: recorder.row, lambda: recorder.outcome)
        join_group(folder, rank, ranks)
        run(program, bound, _wires(table, program, folder), recorder)
        director.send(("ended", ""))
    except Exception as error:  # the director asks why a rank ended
        director.send(("ended", f"{type(error).__name__}: {error}"))
    director.recv()  # a clean exit would wait for messages that no peer takes: the director ends this process


def _wires(table: Protocol, program: Program, folder: Path) -> Endpoints:
    rank, ranks = program.rank, program.ranks
    names = [channel.name for channel in table.channels]
    tags = {key: tag for tag, key in enumerate(dict.fromkeys(c.wire or f"own {c.name}" for c in table.channels), 1)}
    width, codec, gated = record_width(table), ControlCodec(Any), gated_channels(table)
    outgoing, incoming = {}, {}
    wires: dict[tuple[str, int], SharedWire] = {}
    for channel in table.channels:
        kind, key = names.index(channel.name), channel.wire or f"own {channel.name}"
        forward = channel.path == "forward"
        if channel.name in program.posts:
            sink = rank + 1 if forward else 0
            keeper = GateKeeper(gate_path(folder, channel.name, rank, sink)) if channel.name in gated else None
            outgoing[channel.name] = SharedOutgoing(sink, tags[key], kind, width, codec, keeper)
        if channel.name in program.receives:
            source = rank - 1 if forward else ranks - 1
            wire = wires.setdefault((key, source), SharedWire(source, tags[key], width, codec))
            gate = FifoGate(gate_path(folder, channel.name, source, rank)) if channel.name in gated else None
            incoming[channel.name] = SharedIncoming(wire, kind, gate)
    forget = {name: partial(type(end).forget, end) for name, end in outgoing.items()}
    return Endpoints(outgoing, incoming, forget=forget)
