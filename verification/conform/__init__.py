"""Replays the traces of a pipeline against its table: order, guards, messages, handles; and what they covered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.spec.table import Protocol
from headway.spec.trace import TraceError
from headway.verification.conform.divergence import Divergence
from headway.verification.conform.known import RankMemory, Replayer
from headway.verification.conform.matching import unmatched
from headway.verification.conform.partly_known import PartialReplay, first_boundary
from headway.verification.conform.trace import RankTrace, read_trace, read_traces

__all__ = ["Conformance", "Divergence", "RankTrace", "TraceError", "conform", "read_trace", "read_traces"]


@dataclass(frozen=True)
class Conformance:
    """What a replay found: `divergences` by time. `skipped` records lie before a wrapped ring's first pass boundary."""

    ranks: int
    slots: int
    rows: int
    skipped: int
    wrapped: tuple[int, ...]
    divergences: tuple[Divergence, ...]

    @property
    def holds(self) -> bool:
        """Whether the traces are what the table says."""
        return not self.divergences

    def words(self) -> str:
        """In one line."""
        if self.divergences:
            return self.divergences[0].words()
        rings = f"; the rings of ranks {list(self.wrapped)} have wrapped" if self.wrapped else ""
        return f"{self.rows} rows of {self.ranks} rank(s) conform to the table{rings}"


def conform(protocol: Protocol, directory: Path) -> Conformance:
    """Replay all ranks of the pipeline whose traces lie in `directory`; raises `TraceError` if they cannot be read."""
    traces = read_traces(protocol, directory)
    found: list[Divergence] = []
    skipped = 0
    for trace in traces:
        try:
            skipped += _replay(protocol, trace)
        except Divergence as divergence:
            found.append(divergence)
    found += unmatched(protocol, traces)
    found.sort(key=lambda divergence: divergence.time_ns)  # what one rank did wrong before what two disagree on
    header = traces[0].header
    wrapped = tuple(trace.header.rank for trace in traces if trace.wrapped)
    return Conformance(header.ranks, header.slots, sum(map(len, traces)), skipped, wrapped, tuple(found))


def _replay(protocol: Protocol, trace: RankTrace) -> int:
    """Replay one rank; how many records were skipped. Raises `Divergence`."""
    header = trace.header
    replayer = Replayer.of(protocol, header.rank, header.ranks, header.slots)
    if not trace.wrapped:
        memory = RankMemory(protocol, trace.role, replayer.parameters)
        replayer.replay(trace, memory, 0, trace.role.start)
        return 0
    first = first_boundary(trace)
    if first < len(trace):
        partial = PartialReplay(protocol, trace.role, replayer.parameters, int(trace.passes[first]))
        index, location = partial.replay(trace, first)
        if index < len(trace):
            replayer.replay(trace, partial.memory(), index, location)
    return first
