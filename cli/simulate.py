"""`headway simulate`: run the production ranks in one process under virtual time, schedule after schedule."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli import USAGE_ERROR

if TYPE_CHECKING:
    from headway.engine.simulation import Outcome, Schedule
    from headway.spec.table import Protocol

SUMMARY = "simulate the production ranks deterministically: delays, stops, aborts, refusals, kills"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add = parser.add_argument
    add("--seed", type=int, default=0, help="the first schedule's seed; the next ones count up")
    add("--steps", type=int, default=10_000, metavar="N", help="stop after N passes in all (default 10000)")
    add("--until-failure", action="store_true", help="go on until something is found")
    add("--pp", type=int, metavar="P", help="ranks (default: drawn, 1 to 5)")
    add("--slots", type=int, metavar="L", help="slots (default: drawn, P or P + 1)")
    add("--transport", metavar="T", help="contract of tensor channels, such as posted or credits(2) (default: drawn)")
    add("--control", metavar="T", default="posted", help="contract of control channels (default posted)")
    add("--table", default="serving", help="table name, module:function or file.py:function")
    add("--schedule", type=Path, metavar="FILE", help="run this one schedule instead of drawing any")
    add("--save", type=Path, metavar="FILE", help="where to write the schedule of a failure, shrunk")
    add("--model-times", type=Path, metavar="FILE", help="plan: predict throughput and latency from these times (JSON)")
    add("--requests", type=int, default=32, help="plan: how many requests")
    add("--prompt", type=int, default=32, help="plan: tokens of a prompt")
    add("--generate", type=int, default=64, help="plan: tokens that each request generates")
    add("--every-us", type=float, default=0.0, help="plan: microseconds between arrivals (default 0: all at once)")
    add("--max-batch-rows", type=int, default=32, help="plan: requests of one pass")
    add("--max-batch-tokens", type=int, default=256, help="plan: tokens of one pass")
    add("--trace-dir", type=Path, metavar="DIR", help="with --schedule: keep the traces there")


def run(arguments: argparse.Namespace) -> int:
    """Simulate; exit status 1 when a law broke, 2 for wrong usage."""
    import msgspec

    from headway.engine.simulation import TENSOR_TRANSPORTS, Schedule, draw
    from headway.spec.catalog import load_table
    from headway.spec.transports import parse_transport

    try:
        table = load_table(arguments.table)
        if arguments.pp is not None and arguments.pp < 1:
            raise ValueError(f"--pp is {arguments.pp}; allowed: 1 or more")
        if arguments.slots is not None and arguments.slots < (arguments.pp or 1):
            raise ValueError(f"--slots is {arguments.slots}; allowed: the number of ranks or more")
        if arguments.slots is not None and arguments.pp is None:
            raise ValueError("--slots needs --pp")
        for name in (arguments.transport, arguments.control):
            if name is not None:
                parse_transport(name)
        if arguments.model_times is not None:
            return _plan(table, arguments)
        if arguments.schedule is not None:
            one = msgspec.json.decode(arguments.schedule.read_bytes(), type=Schedule)
            return _one(one, table, arguments)
    except (ValueError, OSError, msgspec.MsgspecError) as error:
        print(f"headway simulate: {error}", file=sys.stderr)
        return USAGE_ERROR
    tensor = (arguments.transport,) if arguments.transport else TENSOR_TRANSPORTS
    seed, passes, rows = arguments.seed, 0, 0
    started = shown = time.perf_counter()
    while arguments.until_failure or passes < arguments.steps:
        schedule = draw(seed, ranks=arguments.pp, slots=arguments.slots, tensor=tensor)
        schedule = msgspec.structs.replace(schedule, control=arguments.control)
        outcome = _run(schedule, table, None)
        if outcome.law:
            return _report(outcome, table, arguments)
        seed, passes, rows = seed + 1, passes + outcome.passes, rows + outcome.rows
        now = time.perf_counter()
        if now - shown > 2:
            shown = now
            speed = passes / (now - started)
            print(f"seed {seed}: {passes} passes, {rows} rows, {speed:.0f} passes/s", file=sys.stderr, flush=True)
    elapsed = time.perf_counter() - started
    print(
        f"{seed - arguments.seed} schedules (seeds {arguments.seed} to {seed - 1}), {passes} passes, {rows} rows: "
        f"every law held, every trace conforms ({passes / elapsed:.0f} passes/s)"
    )
    return 0


def _plan(table: Protocol, arguments: argparse.Namespace) -> int:
    import msgspec

    from headway.engine.messages import Submit
    from headway.engine.simulation.plan import ModelTimes, plan, planning_limits

    ranks = arguments.pp or 1
    slots = arguments.slots or ranks
    times = msgspec.json.decode(arguments.model_times.read_bytes(), type=ModelTimes)
    requests = [Submit(n, [1] * arguments.prompt, arguments.generate) for n in range(arguments.requests)]
    limits = planning_limits(table, ranks, slots, requests, arguments.max_batch_rows, arguments.max_batch_tokens)
    print(plan(table, times, ranks, limits, requests, arguments.every_us).words())
    return 0


def _run(schedule: Schedule, table: Protocol, directory: Path | None) -> Outcome:
    from headway.engine.simulation import run_schedule
    from headway.verification.conform import conform

    def check(traces: Path) -> str:
        report = conform(table, traces)
        return "" if report.holds else report.words()

    return run_schedule(schedule, table, directory, check)


def _one(schedule: Schedule, table: Protocol, arguments: argparse.Namespace) -> int:
    if arguments.trace_dir is not None:
        arguments.trace_dir.mkdir(parents=True, exist_ok=True)
    outcome = _run(schedule, table, arguments.trace_dir)
    if outcome.law:
        _print(outcome)
        return 1
    print(f"{outcome.passes} passes, {outcome.rows} rows: every law held{_stopped(outcome)}")
    return 0


def _stopped(outcome: Outcome) -> str:
    return f"; the group stopped: {outcome.stopped}" if outcome.stopped else ""


def _report(outcome: Outcome, table: Protocol, arguments: argparse.Namespace) -> int:
    import msgspec

    from headway.engine.simulation import shrink

    print(f"seed {outcome.schedule.seed}: {outcome.law}: {outcome.finding}", file=sys.stderr, flush=True)
    small, runs = shrink(outcome, lambda schedule: _run(schedule, table, None))
    print(f"shrunk in {runs} runs to:")
    text = msgspec.json.format(msgspec.json.encode(small.schedule), indent=2).decode()
    if arguments.save is not None:
        arguments.save.write_text(text + "\n")
    print(text)
    _print(small)
    return 1


def _print(outcome: Outcome) -> None:
    print(f"\n{outcome.law}: {outcome.finding}{_stopped(outcome)}\n")
    for position in outcome.positions:
        print(position.words())
    print(f"\n{outcome.diagram}")
