"""Which device each rank gets, what joins two ranks, and how memory is shared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.engine.placement import link_between, memory_shares, place_ranks
from headway.engine.wiring import edges, link_of, transports
from headway.spec.certificate import find, shipped
from headway.spec.serving import serving_table


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


def test_every_kind_of_pipeline_has_wires_of_a_proved_contract():
    table = serving_table()
    for devices in (["cpu"], ["cpu"] * 3, ["cuda:0"] * 4, ["cuda:0", "cuda:0", "cuda:1"]):
        assert set(transports(table, devices)) == {channel.name for channel in table.channels}
        find(shipped(), table, len(devices), len(devices), transports(table, devices))


def test_channels_are_carried_by_what_joins_the_two_devices():
    table, devices = serving_table(), ["cuda:0", "cuda:0", "cuda:1"]
    proxy, decision = table.channel("proxy"), table.channel("decision")
    assert [link_of(proxy, devices, *edge) for edge in edges(proxy, 3)] == ["cuda_ipc", "nccl"]
    assert [link_of(decision, devices, *edge) for edge in edges(decision, 3)] == ["pipe", "pipe"]
    assert link_of(proxy, ["cpu", "cpu"], 0, 1) == "gloo"
    with pytest.raises(ValueError, match="a tensor channel on the closing edge"):
        link_of(replace(proxy, path="closing"), devices, 2, 0)
