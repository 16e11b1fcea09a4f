"""For every test that runs ranks, as processes or simulated."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.spec.catalog import TABLES, load_table
from headway.verification.conform import Conformance, conform

# The traces of processes are kept there, for `headway coverage`, when the variable is set.
KEPT = os.environ.get("HEADWAY_KEEP_TRACES", "")


@pytest.fixture(scope="session")
def replayed_traces() -> Callable[..., Conformance]:
    """`replayed_traces(directory, table)` fails when the ranks' traces in `directory` are not what the table says."""
    count = 0

    def replay(directory: Path, table: str = "serving") -> Conformance:
        nonlocal count
        protocol = load_table(table)
        report = conform(protocol, directory)
        if KEPT:
            count += 1
            shutil.copytree(directory, Path(KEPT) / (table if table in TABLES else "other") / f"{os.getpid()}-{count}")
        assert report.holds, report.words()
        assert report.rows > 0
        return report

    return replay
