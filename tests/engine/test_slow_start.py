"""A start that takes too long says where each rank stands."""

from __future__ import annotations

import os

import pytest

from headway.engine.config import RankConfig
from headway.engine.group import LaunchError, RankGroup
from headway.engine.recorder import RingRecorder, trace_path
from headway.engine.scheduling import Limits
from headway.engine.wiring import boot_directory
from headway.spec.boot import boot_table
from headway.spec.serving import serving_table


@pytest.fixture
def group(tmp_path):
    table = serving_table()
    limits = Limits(slots=2, pages=8, page_size=16, max_batch_tokens=16, max_batch_rows=2, max_context=64)
    configs = [
        RankConfig(
            rank=rank,
            ranks=2,
            directory=str(tmp_path),
            table="serving",
            fingerprint=table.fingerprint,
            model="nowhere",
            limits=limits,
            pages=8,
            devices=["cpu", "cpu"],
            intake=f"ipc://{tmp_path}/intake",
            reports=f"ipc://{tmp_path}/reports",
        )
        for rank in range(2)
    ]
    return RankGroup(table, configs, lambda reason: None)


def test_ranks_that_have_not_come_to_boot_are_named(group):
    with pytest.raises(LaunchError, match=r"within 0 s: not at the boot table yet: rank 0, 1"):
        group.start(bound=0.0)


def test_ranks_that_wait_for_one_another_at_boot_are_named(group, tmp_path):
    boot_directory(tmp_path).mkdir()
    table = boot_table()
    for rank, row in enumerate(("settle connect", "receive connect")):
        path, role = trace_path(boot_directory(tmp_path), rank), table.role_of(rank, 2)
        recorder = RingRecorder(path, table.fingerprint, rank, 2, 2, 0, os.getpid())
        recorder.enter([r.name for r in role.rows].index(row), 0)
    words = group._unready(1.0)
    assert "rank 0 waits at 'settle connect' (pass 0, slot 0) on rank 1" in words
    assert "rank 1 waits at 'receive connect' (pass 0, slot 0) on rank 0" in words
