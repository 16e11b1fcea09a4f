"""Which device each rank gets, what joins two ranks, and how memory is shared."""

from __future__ import annotations

import pytest

from headway.engine.placement import link_between, memory_shares, place_ranks


@pytest.mark.parametrize(
    ("device", "ranks", "visible", "placed"),
    [
        ("cpu", 3, 8, ["cpu", "cpu", "cpu"]),
        ("auto", 2, 0, ["cpu", "cpu"]),
        ("auto", 2, 4, ["cuda:0", "cuda:1"]),
        ("cuda", 4, 1, ["cuda:0"] * 4),
        ("cuda", 4, 2, ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]),
        ("cuda", 5, 3, ["cuda:0", "cuda:0", "cuda:1", "cuda:1", "cuda:2"]),
        ("cuda", 2, 8, ["cuda:0", "cuda:1"]),
        ("cuda:1,cuda:0", 2, 2, ["cuda:1", "cuda:0"]),
    ],
)
def test_ranks_are_spread_in_blocks_of_neighbours(device, ranks, visible, placed):
    assert place_ranks(device, ranks, visible) == placed


@pytest.mark.parametrize(
    ("device", "ranks", "visible", "words"),
    [
        ("cuda", 2, 0, "no GPU is visible"),
        ("cuda:0,cuda:2", 2, 2, "'cuda:2'"),
        ("cuda:0", 2, 2, "1 devices for 2 ranks"),
        ("gpu", 1, 1, "'gpu'"),
        ("cuda:-1", 1, 1, "'cuda:-1'"),
    ],
)
def test_devices_that_are_not_there_are_refused(device, ranks, visible, words):
    with pytest.raises(ValueError, match=words):
        place_ranks(device, ranks, visible)


def test_ranks_on_one_gpu_share_it_by_ipc_and_others_by_nccl():
    assert link_between("cpu", "cpu") == "gloo"
    assert link_between("cuda:0", "cuda:0") == "cuda_ipc"
    assert link_between("cuda:0", "cuda:1") == "nccl"
    with pytest.raises(ValueError, match="no wire joins cpu and cuda:0"):
        link_between("cpu", "cuda:0")


def test_ranks_on_one_device_share_its_memory_evenly():
    assert memory_shares(["cuda:0", "cuda:0", "cuda:1"], 0.9) == [0.45, 0.45, 0.9]
    with pytest.raises(ValueError, match=r"--gpu-memory-utilization is 1\.5"):
        memory_shares(["cuda:0"], 1.5)
