"""Runs SPIN on an exported table: the verdict, and the exact number of states."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headway.verification.export.promela import promela
from headway.verification.model import Model


class SpinError(RuntimeError):
    """SPIN is missing or failed; the message says how."""


@dataclass(frozen=True)
class SpinResult:
    """What SPIN found: whether all holds; states stored and transitions taken, unreduced; seconds of the search."""

    holds: bool
    states: int
    transitions: int
    seconds: float


def spin_installed() -> bool:
    """Whether `spin` and a C compiler are there."""
    return shutil.which("spin") is not None and shutil.which("gcc") is not None


def run_spin(model: Model, *, memory_mb: int = 4096) -> SpinResult:
    """Check `model` with SPIN, twice: for the verdict, and unreduced for the number of states. Raises `SpinError`.

    Where the verdict is a violation, SPIN ends early and the counts are those of a search that goes on behind errors.
    """
    if not spin_installed():
        raise SpinError("spin or gcc is not installed (Debian: apt-get install spin gcc)")
    with tempfile.TemporaryDirectory(prefix="headway-spin-") as name:
        directory = Path(name)
        (directory / "model.pml").write_text(promela(model))
        _call(["spin", "-o1", "-o2", "-o3", "-DVERDICT", "-a", "model.pml"], directory)
        _compile(directory, [f"-DMEMLIM={memory_mb}"])
        verdict = _call(["./pan", "-m10000000", "-w24"], directory)
        _call(["spin", "-o1", "-o2", "-o3", "-a", "model.pml"], directory)
        _compile(directory, ["-DNOREDUCE", f"-DMEMLIM={memory_mb}"])
        counts = _call(["./pan", "-m10000000", "-w24", "-c0", "-E"], directory)
    return SpinResult(
        holds=_number(r"errors: (\d+)", verdict) == 0,
        states=_number(r"(\d+) states, stored", counts),
        transitions=_number(r"(\d+) transitions", counts) - 1,  # SPIN counts the way to the initial state
        seconds=float(found[1]) if (found := re.search(r"elapsed time ([\d.e+-]+)", counts)) else 0.0,
    )


def _compile(directory: Path, defines: list[str]) -> None:
    _call(["gcc", "-O2", "-w", "-DSAFETY", "-DNOFAIR", *defines, "-o", "pan", "pan.c"], directory)


def _call(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SpinError(f"{' '.join(command)}: {(done.stdout + done.stderr).strip()[-2000:]}")
    if "max search depth too small" in done.stdout or "out of memory" in done.stdout:
        raise SpinError(f"{' '.join(command)}: the search was not exhaustive: {done.stdout[-500:]}")
    return done.stdout


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise SpinError(f"SPIN's output has no {pattern!r}: {text[-500:]}")
    return int(found[1])
