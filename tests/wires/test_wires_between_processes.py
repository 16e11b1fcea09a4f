"""Wires between real processes: what arrives, in which order, when a wait returns, and what a dead peer looks like."""

from __future__ import annotations

import pytest


def test_gloo_posts_return_at_once_and_waits_return_when_the_receiver_has_come(run_ranks):
    seen, _ = run_ranks("posted_contract", sizes=[0, 1, 4 << 20])
    assert seen == [(1, 0)] * 3


def test_many_channels_of_one_pair_do_not_disturb_one_another(run_ranks):
    _, wrong = run_ranks("many_channels", channels=5, rounds=6)
    assert wrong == []


def test_a_dead_peer_is_an_error_and_no_hang(run_ranks):
    said, died = run_ranks("dead_peer")
    assert died == "died"
    assert said == ["ConnectionError", "RuntimeError", "RuntimeError"]


def test_pipes_keep_the_posted_contract_and_carry_bodies_of_any_size(run_ranks):
    sizes = [0, 1, 4000, 4096, 1 << 20]
    seen, wrong = run_ranks("pipe_messages", sizes=sizes)
    assert seen == [(1, 0)] * len(sizes)
    assert wrong == []


def test_a_dead_peer_of_a_pipe_is_an_error_at_once(run_ranks):
    errors, died = run_ranks("dead_pipe")
    assert died == "died"
    assert errors == 2


def test_a_slot_of_a_shared_ring_is_not_reused_while_its_reader_may_read(run_ranks):
    _, wrong = run_ranks("slots_are_not_reused_early", count=60)
    assert wrong == []


def test_a_pair_sends_header_and_payload_apart(run_ranks):
    seen, wrong = run_ranks("pair_over_gloo", count=60)
    assert seen == (1, 0)
    assert wrong == []


@pytest.mark.parametrize(
    "devices",
    [
        ["cpu", "cpu", "cpu"],
        ["cuda:0", "cuda:0", "cuda:1"],
        ["cuda:0", "cuda:1"],
        ["cuda:0", "cuda:0", "cuda:0", "cuda:0"],
    ],
    ids=["gloo", "ipc-and-nccl", "nccl", "ipc"],
)
def test_the_production_table_runs_over_every_kind_of_wire(run_ranks, devices):
    outcomes = run_ranks("production_table", ranks=len(devices), devices=devices, passes=40)
    assert [wrong for wrong, _ in outcomes] == [0] * len(devices)
    assert outcomes[0][1] == 40


def test_the_rank_that_plans_learns_the_least_capacity_of_all(run_ranks):
    devices = ["cuda:0", "cuda:0", "cuda:1"]
    assert run_ranks("connected", ranks=3, devices=devices, capacities=[7, 9, 5]) == [5, 7, 5]
