"""The script of the two-GPU run, on CPUs with gloo in NCCL's place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "two_gpus.py"


def test_the_script_runs_with_stand_ins():
    command = [sys.executable, str(SCRIPT), "--stand-in", "credits", "tokens"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 32 requests differ" in done.stdout
    assert done.stdout.endswith("all right\n")
