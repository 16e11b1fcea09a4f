"""Compares what the simulator predicts with what real ranks do: `python benchmarks/plan.py [--ranks 1 2 4]`.

Stage times, row times and link times are taken from the traces of the real run; throughput and latency are predicted
from them alone. Prints the error, and can draw the prediction for up to 64 ranks with the real ones beside it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from ranks import Ranks

from headway.engine.messages import Submit
from headway.engine.simulation.plan import ModelTimes, Plan, StageTimes, plan, planning_limits
from headway.spec.catalog import load_table
from headway.spec.language import static_value
from headway.spec.table import Await, Local, Post, Protocol, Receive
from headway.verification.conform import RankTrace, read_traces

ROWS, TOKENS, PROMPT, GENERATE = 8, 64, 8, 48


def workload(count: int) -> list[Submit]:
    """Requests of one length, so that only the number of ranks differs between runs."""
    return [Submit(n, [50 + n] * PROMPT, GENERATE) for n in range(count)]


def later(trace: RankTrace, since: int) -> RankTrace:
    """The records of a trace from a time on."""
    first = int(np.searchsorted(trace.times, since))
    columns = (trace.rows, trace.done, trace.passes, trace.times, trace.fields)
    return RankTrace(trace.header, trace.role, True, *(column[first:] for column in columns))


def durations(trace: RankTrace) -> np.ndarray:
    """How long each row took but the last, in microseconds."""
    return np.diff(trace.times) / 1000


def stage_time(trace: RankTrace) -> StageTimes:
    """What each pass took: what a busy machine adds to some of them belongs to the prediction."""
    computes = [
        index
        for index, row in enumerate(trace.role.rows)
        if isinstance(row.operation, Local) and row.operation.nature == "compute"
    ]
    taken, rows = durations(trace), trace.rows[:-1]
    by_pass: dict[int, float] = {}
    for index in np.flatnonzero(np.isin(rows, computes)):
        this_pass = int(trace.passes[index])
        by_pass[this_pass] = by_pass.get(this_pass, 0.0) + float(taken[index])
    measured = list(by_pass.values())
    return StageTimes(statistics.fmean(measured), measured_us=measured)


def local_times(traces: Sequence[RankTrace]) -> dict[str, float]:
    """What rows cost the host that wait for nobody: the mean, in microseconds."""
    found: dict[str, list[float]] = {}
    for trace in traces:
        taken = durations(trace)
        for index, row in enumerate(trace.role.rows):
            operation = row.operation
            if (
                operation is None
                or isinstance(operation, Post)
                or (isinstance(operation, Local) and operation.nature == "step")
            ):
                found.setdefault(row.name, []).extend(taken[trace.rows[:-1] == index].tolist())
            else:
                found.setdefault(row.name, []).append(0.0)
    return {name: statistics.fmean(times) for name, times in found.items() if times}


def link_times(table: Protocol, traces: Sequence[RankTrace]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """What receives and awaits cost when the other end was there first, and how long messages are on their way.

    By row, and by kind of channel where the receive was waiting; in microseconds.
    """
    ranks, rows, links = len(traces), dict[str, list[float]](), dict[str, list[float]]()
    for channel in table.channels if ranks > 1 else ():
        lag = static_value(channel.lag, {"P": ranks, "L": ranks, "R": 0})
        for source in range(ranks - 1) if channel.path == "forward" else (ranks - 1,):
            sent = {n + lag: at for n, at in _times(traces[source], Post, channel.name).items()}
            awaited = {n + lag: at for n, at in _times(traces[source], Await, channel.name).items()}
            taken = _times(traces[(source + 1) % ranks], Receive, channel.name)
            for n in sent.keys() & taken.keys():
                (posted, _, _), (begun, ended, name) = sent[n], taken[n]
                if posted < begun:
                    rows.setdefault(name, []).append((ended - begun) / 1000)
                else:
                    links.setdefault(channel.kind, []).append((ended - posted) / 1000)
                if n in awaited and ended < awaited[n][0]:
                    begun, ended, name = awaited[n]
                    rows.setdefault(name, []).append((ended - begun) / 1000)
    return {name: statistics.fmean(times) for name, times in rows.items()}, links


def _times(trace: RankTrace, kind: type, channel: str) -> dict[int, tuple[int, int, str]]:
    """By pass: when a row of this kind on this channel began and ended, and its name."""
    named = {
        i: row.name
        for i, row in enumerate(trace.role.rows)
        if isinstance(row.operation, kind) and row.operation.channel == channel
    }
    where = np.flatnonzero(np.isin(trace.rows[: len(trace) - 1], list(named)))
    return {
        int(trace.passes[i]): (int(trace.times[i]), int(trace.times[i + 1]), named[int(trace.rows[i])]) for i in where
    }


def compare(ranks: int, requests: Sequence[Submit]) -> tuple[float, Plan, ModelTimes]:
    """Real tokens a second, and the prediction with the times that it was made from."""
    table = load_table("serving")
    with tempfile.TemporaryDirectory(prefix="headway-plan-") as folder:
        pipeline = Ranks(
            "smollm2",
            ["cpu"] * ranks,
            pages=512,
            max_context=PROMPT + GENERATE,
            max_batch_tokens=TOKENS,
            max_batch_rows=ROWS,
            traces=folder,
        )
        try:
            pipeline.generate(requests[:ranks])  # everything has been used once
            since = time.monotonic_ns()
            answers = pipeline.generate(requests)
        finally:
            pipeline.close()
        traces = [later(trace, since) for trace in read_traces(table, Path(folder))]
    seconds = max(answer.last for answer in answers)
    real = sum(len(answer.tokens) for answer in answers) / seconds
    limits = planning_limits(table, ranks, ranks, requests, ROWS, TOKENS)
    there, links = link_times(table, traces)
    mean = {kind: statistics.fmean(found) for kind, found in links.items()}
    times = ModelTimes(
        stages=[stage_time(trace) for trace in traces],
        rows_us={**local_times(traces), **there},
        control_us=mean.get("control", 0.0),
        tensor_us=mean.get("tensor", 0.0),
    )
    return real, plan(table, times, ranks, limits, requests), times


def draw(path: Path, curve: Mapping[int, float], predicted: Mapping[int, float], real: Mapping[int, float]) -> None:
    """A chart of tokens a second by ranks, as SVG: the curve for a core a rank, and what was predicted and measured."""
    width, height, left, bottom = 640, 360, 60, 40
    most = 1.1 * max([*curve.values(), *predicted.values(), *real.values()])
    highest = max(curve)

    def at(ranks: int, value: float) -> tuple[float, float]:
        x = left + (width - left - 20) * np.log2(ranks) / max(1.0, np.log2(highest))
        return round(float(x), 1), round(height - bottom - (height - bottom - 20) * value / most, 1)

    line = " ".join(",".join(map(str, at(ranks, value))) for ranks, value in sorted(curve.items()))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="2"/>',
    ]
    for ranks in sorted(curve):
        x, _ = at(ranks, 0)
        parts.append(f'<text x="{x}" y="{height - bottom + 16}" text-anchor="middle">{ranks}</text>')
    for tick in range(5):
        value = most * tick / 4
        _, y = at(1, value)
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{value:.0f}</text>')
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y}" y2="{y}" stroke="#ddd"/>')
    for ranks, value in predicted.items():
        x, y = at(ranks, value)
        parts.append(f'<circle cx="{x}" cy="{y}" r="8" fill="none" stroke="#1f77b4" stroke-width="2"/>')
    for ranks, value in real.items():
        x, y = at(ranks, value)
        parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="#d62728"/>')
    middle = (left + width) / 2
    parts += [
        f'<text x="{middle}" y="{height - 6}" text-anchor="middle">ranks (= slots)</text>',
        f'<text x="{left}" y="14">tokens a second: real (dots), predicted (rings), with a core a rank (line)</text>',
        "</svg>",
    ]
    path.write_text("\n".join(parts) + "\n")


def main() -> int:
    """Compare, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the prediction up to 64 ranks there (SVG)")
    arguments = parser.parse_args()
    requests, real, plans, times = workload(arguments.requests), {}, {}, {}
    for ranks in arguments.ranks:
        real[ranks], predicted, times[ranks] = compare(ranks, requests)
        plans[ranks] = predicted.tokens_per_second
        error = predicted.tokens_per_second / real[ranks] - 1
        print(f"real {real[ranks]:.1f} tokens/s; predicted: {predicted.words()}; error {100 * error:+.1f}%")
    if arguments.plot is not None:
        base, table = times[2 if 2 in times else max(times)], load_table("serving")
        whole = sum(stage.base_us for stage in base.stages)
        curve = {}
        for ranks in (1, 2, 4, 8, 16, 32, 64):
            even = ModelTimes(
                stages=[StageTimes(whole / ranks)],
                rows_us=base.rows_us,
                control_us=base.control_us,
                tensor_us=base.tensor_us,
            )
            many = workload(8 * ranks)
            limits = planning_limits(table, ranks, ranks, many, ROWS, TOKENS)
            curve[ranks] = plan(table, even, ranks, limits, many).tokens_per_second
        draw(arguments.plot, curve, plans, real)
    return 0


if __name__ == "__main__":
    sys.exit(main())
