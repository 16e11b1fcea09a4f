"""What a forked rank runs: one function of scenarios.py, whose value or traceback goes back to the test."""

import sys
import traceback
from pathlib import Path

import torch

HERE = Path(__file__).parent
name, rank, ranks, directory, arguments, answer = globals()["JOB"]
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "benchmarks")]
torch.set_num_threads(1)

import scenarios  # noqa: E402  # its folder is no package

try:
    answer.send(("value", getattr(scenarios, name)(rank, ranks, directory, **arguments)))
except Exception:
    answer.send(("error", traceback.format_exc()))
