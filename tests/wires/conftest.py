"""Runs scenarios in real processes: each rank is a process of its own, forked from a server that has torch loaded."""

from __future__ import annotations

import multiprocessing
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("child.py")
BOUND = 60.0
DIED = "died"


@pytest.fixture
def run_ranks(tmp_path: Path) -> Callable[..., list[Any]]:
    """`run_ranks(name, ranks, **arguments)`: what `name` of scenarios.py returned at each rank, or `DIED`."""

    def run_all(name: str, ranks: int = 2, **arguments: Any) -> list[Any]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "headway.engine.wiring"])
        processes, pipes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            job = (name, rank, ranks, tmp_path, arguments, theirs)
            processes.append(context.Process(target=runpy.run_path, args=(str(CHILD), {"JOB": job}), daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        outcomes = []
        try:
            for rank, pipe in enumerate(pipes):
                assert pipe.poll(BOUND), f"rank {rank} of {name} has not ended"
                try:
                    kind, value = pipe.recv()
                except EOFError:
                    kind, value = "value", DIED
                assert kind == "value", f"rank {rank} of {name}:\n{value}"
                outcomes.append(value)
        finally:
            for process in processes:
                process.kill()
                process.join()
        return outcomes

    return run_all
