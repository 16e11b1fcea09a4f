"""The search against SPIN, and against its own goals, in one run: medians of interleaved repetitions, ratios last.

    python benchmarks/search.py [--repeat 3]

Ring K=3 (4 ranks, endless passes, 8,285,652 states), unreduced: SPIN as its exporter compiles it (-O2 -DSAFETY
-DNOREDUCE), ours with one thread and with two. Then the default configurations of `headway verify` and the incidents.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

from headway.spec.catalog import load_table, table_transport
from headway.verification.export import run_spin, spin_installed
from headway.verification.model import Model

OURS = """
import json, resource, time
from headway.spec.catalog import load_table, table_transport
from headway.verification.explore import explore
from headway.verification.explore.search import Bounds
from headway.verification.model import Model
def search(k, threads):
    model = Model(load_table("ring", {{"K": k}}), 4, 4, table_transport("ring", {{"K": k}}))
    begin = time.perf_counter()
    verdict = explore(model, bounds=Bounds(threads=threads))
    return verdict.states, time.perf_counter() - begin
search(1, {threads})  # compiles
states, seconds = search(3, {threads})
print(json.dumps([states, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


def ours(threads: int) -> tuple[int, float, float]:
    """States, seconds, and most resident MB, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", OURS.format(threads=threads)], capture_output=True, text=True, check=True
    )
    states, seconds, kilobytes = json.loads(done.stdout)
    return states, seconds, kilobytes / 1024


def spin() -> tuple[int, float, float]:
    """The same of SPIN's unreduced search; its memory is the most that any child of this process has held."""
    found = run_spin(Model(load_table("ring", {"K": 3}), 4, 4, table_transport("ring", {"K": 3})), memory_mb=16384)
    return found.states, found.seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def command(*words: str) -> float:
    """Seconds that a `headway` command takes."""
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "headway", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    cases = {"headway, 1 thread": lambda: ours(1), "headway, 2 threads": lambda: ours(2)}
    if spin_installed():
        cases = {"SPIN": spin, **cases}
    runs: dict[str, list[tuple[int, float, float]]] = {name: [] for name in cases}
    for _ in range(repeat):
        for name, case in cases.items():
            runs[name].append(case())
    rates = {}
    for name, found in runs.items():
        rates[name] = statistics.median(states / seconds for states, seconds, _ in found)
        spread = [states / seconds / 1e6 for states, seconds, _ in found]
        memory = statistics.median(mb for _, _, mb in found)
        low, high = min(spread), max(spread)
        print(
            f"{name:20} {found[0][0]:,} states {rates[name] / 1e6:6.2f} M/s ({low:.2f} to {high:.2f}) {memory:6.0f} MB"
        )
    for name in runs:
        if "SPIN" in rates and name != "SPIN":
            print(f"{name:20} {rates[name] / rates['SPIN']:.1f} times SPIN")
    for words, goal in (
        (("verify",), 30),
        (("verify", "--ranks", "8", "--slots", "8", "--refusals", "0", "--engine", "dfs"), 60),
        (("incidents",), 60),
    ):
        print(f"headway {' '.join(words)}: {command(*words):.1f} s (goal {goal} s)")


if __name__ == "__main__":
    main()
