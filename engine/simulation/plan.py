"""The simulator as a planning tool: given how long stages and links take, what throughput and latency to expect."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headway.engine.messages import Generated, Report, Stop, Submit
from headway.engine.scheduling import Limits
from headway.engine.simulation.hub import Hub
from headway.engine.simulation.pipeline import Simulation
from headway.spec.serving import passes_ahead
from headway.spec.table import Protocol
from headway.spec.transports import parse_transport


class StageTimes(msgspec.Struct, frozen=True):
    """A forward of one stage, in microseconds: a fixed part, a part per token, and one per request that samples.

    With `measured_us`, durations that were measured, these are taken in turn instead.
    """

    base_us: float
    token_us: float = 0.0
    sample_us: float = 0.0
    measured_us: list[float] = []

    def of(self, ordinal: int, tokens: int, samples: int) -> float:
        """How long the forward number `ordinal` takes, of so many tokens and samples."""
        if self.measured_us:
            return self.measured_us[ordinal % len(self.measured_us)]
        return self.base_us + self.token_us * tokens + self.sample_us * samples


class ModelTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is made from. `stages` has an entry for each rank, or one for all; times in microseconds.

    `rows_us` is what rows cost the host by name, `row_us` what others do. A message takes `control_us` or `tensor_us`,
    and a tensor `token_bytes` per token at `bytes_per_us` besides (0: no limit).
    """

    stages: list[StageTimes]
    row_us: float = 5.0
    rows_us: dict[str, float] = {}
    control_us: float = 50.0
    tensor_us: float = 50.0
    token_bytes: int = 0
    bytes_per_us: float = 0.0
    tensor: str = "posted"

    def by_rank(self, ranks: int) -> list[StageTimes]:
        """Of each rank; raises ValueError when there are neither as many entries as ranks nor one."""
        if len(self.stages) not in (1, ranks):
            raise ValueError(f"stages has {len(self.stages)} entries; allowed: 1, or {ranks}, the number of ranks")
        return self.stages if len(self.stages) == ranks else self.stages * ranks


class Plan(msgspec.Struct, frozen=True):
    """What to expect: seconds for everything, tokens a second, mean seconds to the first token and between tokens, and
    `bubbles`, the part of the time in which each rank computes nothing."""

    ranks: int
    slots: int
    tokens: int
    seconds: float
    tokens_per_second: float
    first_token: float
    between_tokens: float
    bubbles: list[float]
    passes: int

    def words(self) -> str:
        """In one line."""
        bubbles = ", ".join(f"{100 * bubble:.0f}%" for bubble in self.bubbles)
        return (
            f"{self.ranks} rank(s), {self.slots} slot(s): {self.tokens_per_second:.1f} tokens/s, first token after "
            f"{1000 * self.first_token:.1f} ms, then one each {1000 * self.between_tokens:.2f} ms; bubbles {bubbles}"
        )


def plan(
    table: Protocol, times: ModelTimes, ranks: int, limits: Limits, requests: Sequence[Submit], every_us: float = 0.0
) -> Plan:
    """Simulate `requests`, of which one arrives each `every_us`.

    Raises ValueError for wrong times, RuntimeError when the ranks do not come to their end.
    """
    stages = times.by_rank(ranks)
    busy, forwards, arrived, seen = [0] * ranks, [0] * ranks, dict[int, int](), dict[int, list[int]]()

    def spend(rank: int, tokens: int, samples: int) -> int:
        duration = int(1000 * stages[rank].of(forwards[rank], tokens, samples))
        forwards[rank] += 1
        busy[rank] += duration
        return duration

    def latency(channel: str, source: int, ordinal: int, encoded: Any) -> int:
        if table.channel(channel).kind == "control":
            return int(1000 * times.control_us)
        count = sum(map(len, encoded)) * times.token_bytes
        return int(1000 * (times.tensor_us + (count / times.bytes_per_us if times.bytes_per_us else 0.0)))

    def see(time: int, report: Report) -> None:
        if isinstance(report, Generated):
            seen.setdefault(report.request, []).extend([time] * len(report.tokens))

    with tempfile.TemporaryDirectory(prefix="headway-simulation-") as folder:
        simulation = Simulation(
            table,
            ranks,
            limits,
            Path(folder),
            {c.name: parse_transport(times.tensor if c.kind == "tensor" else "posted") for c in table.channels},
            hub=Hub(ranks),
            spend=spend,
            latency=latency,
            on_report=see,
            row_time=int(1000 * times.row_us),
            row_times={name: int(1000 * us) for name, us in times.rows_us.items()},
        )
        try:
            for number, request in enumerate(requests):
                arrived[request.request] = int(1000 * every_us * number)
                simulation.desk.send(arrived[request.request], request)
            simulation.desk.send(int(1000 * every_us * len(requests)), Stop())
            simulation.start()
            simulation.hub.run()
            error = next((fiber.error for fiber in simulation.hub.fibers if fiber.error is not None), None)
            if error is not None or not simulation.hub.ended:
                raise RuntimeError(f"the simulated ranks did not end: {error or 'they wait for one another'}")
        finally:
            simulation.close()
    ends = {request: stamps for request, stamps in seen.items() if stamps}
    last = max(stamps[-1] for stamps in ends.values())
    tokens = sum(map(len, ends.values()))
    gaps = [(stamps[-1] - stamps[0]) / (len(stamps) - 1) for stamps in ends.values() if len(stamps) > 1]
    first = [stamps[0] - arrived[request] for request, stamps in ends.items()]
    return Plan(
        ranks,
        limits.slots,
        tokens,
        last / 1e9,
        tokens / (last / 1e9),
        sum(first) / len(first) / 1e9,
        sum(gaps) / max(1, len(gaps)) / 1e9,
        [1 - each / last for each in busy],
        simulation.scheduler.gauges().passes,
    )


def planning_limits(
    table: Protocol, ranks: int, slots: int, requests: Sequence[Submit], rows: int, tokens: int
) -> Limits:
    """Limits with pages for everything at once."""
    context = max(len(request.prompt) + request.max_tokens for request in requests)
    pages = len(requests) * (-(-context // 16))
    return Limits(slots, pages, 16, tokens, rows, context, ahead=passes_ahead(table, ranks, slots))
