"""Fixtures for every test that runs ranks, as processes or simulated."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.spec.catalog import load_table
from headway.verification.conform import conform

# Traces of all tests are kept there, for `headway coverage`, when the variable is set.
KEPT = os.environ.get("HEADWAY_KEEP_TRACES", "")


@pytest.fixture
def replayed_traces(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Path]]:
    """`replayed_traces(table="serving")` gives a fresh folder for the traces of one run.

    When the test is over, each run's traces are replayed against its table; a test whose run broke the table fails.
    """
    runs: list[tuple[str, Path]] = []

    def folder(table: str = "serving") -> Path:
        path = tmp_path / f"traces{len(runs)}"
        path.mkdir()
        runs.append((table, path))
        return path

    yield folder
    for number, (table, path) in enumerate(runs):
        protocol = load_table(table)
        report = conform(protocol, path)
        if KEPT:
            name = "".join(c if c.isalnum() else "_" for c in request.node.nodeid)
            shutil.copytree(path, Path(KEPT) / protocol.name / f"{name}_{number}", dirs_exist_ok=True)
        assert report.holds, report.words()
        assert report.rows > 0
