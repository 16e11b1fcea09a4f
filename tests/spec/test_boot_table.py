"""The boot table: safe however much its posts wait for, for small pipelines by search and for all by proof."""

from __future__ import annotations

import pytest

from headway.engine.loop import compile_program
from headway.spec.boot import boot_table
from headway.spec.transports import LAZY, POSTED, RENDEZVOUS, credits, stream_ordered
from headway.verification.model import Model
from headway.verification.prove.certificate import prove_table, with_transports
from headway.verification.reference import search

TRANSPORTS = [POSTED, RENDEZVOUS, LAZY, credits(1), stream_ordered(0)]


@pytest.mark.parametrize("ranks", range(1, 7))
@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda t: t.name)
def test_no_order_of_events_hangs(ranks, transport):
    verdict = search(Model(boot_table(), ranks, ranks, transport))
    assert verdict.exhausted
    assert verdict.holds


def test_any_number_of_ranks_is_proved_even_when_every_post_is_a_rendezvous():
    table = boot_table()
    proof = with_transports(table, prove_table(table), {channel.name: RENDEZVOUS for channel in table.channels})
    assert proof.holds


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_rank_has_a_program(ranks):
    for rank in range(ranks):
        compile_program(boot_table(), rank, ranks, ranks)
