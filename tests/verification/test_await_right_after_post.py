"""Awaiting the request chain right after posting it: safe for two and three ranks, a ring of waits from four on.

An output is a lap behind, so a short pipeline never waits for what it owes; a longer one does, and only there.
"""

import pytest

from headway.spec.edits import drop_step, edit, move
from headway.spec.serving import serving_table
from headway.spec.transports import POSTED
from headway.spec.workload import Workload
from headway.verification.explore import explore
from headway.verification.model import Model
from headway.verification.prove import prove, unroll


def own_feed_awaited():
    """The chain is awaited where it was posted, so no handle of it is left to settle at the stop."""
    return edit(
        serving_table(),
        move("flush chain", after="post chain", roles=["first", "middle"]),
        drop_step("settle chain", roles=["first", "middle"]),
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_short_pipelines_hold(ranks):
    verdict = explore(Model(Workload(2, 2, 1).attach(own_feed_awaited()), ranks, ranks), reduced=True)
    assert verdict.exhausted
    assert verdict.holds, verdict.counterexample


def test_four_ranks_wait_in_a_ring():
    example = explore(Model(Workload(3, 2, 0).attach(own_feed_awaited()), 4, 4), reduced=True).counterexample
    assert example is not None
    assert [(w.rank, w.row) for w in example.cycle] == [
        (0, "flush chain"),
        (1, "flush decision"),
        (2, "flush chain"),
        (3, "flush output"),
    ]


def test_there_is_no_proof_and_the_unrolled_ring_has_four_ranks():
    table = own_feed_awaited()
    posted = {channel.name: POSTED for channel in table.channels}
    assert not prove(table, posted).holds
    found = unroll(table, posted, 5)
    assert found is not None
    assert found.ranks == 4
