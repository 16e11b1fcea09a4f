"""SGLang's loops as tables: their steps in order, their lags, and the verdict of every transport and order."""

import pytest

from headway.spec.laws import OUTCOMES
from headway.spec.sglang import Traffic, fork_table, sglang_table
from headway.spec.sglang.disaggregation import LISTS, disaggregated_table, list_channels
from headway.spec.sglang.verdicts import CELLS
from headway.spec.table import Post, Receive
from headway.verification.explore import explore
from headway.verification.explore.search import Bounds
from headway.verification.model import Model

BOUNDS = Bounds(threads=1)
PASS_OF_MIDDLE_RANK = [
    "receive chain",
    "handle requests",
    "await chain",
    "post chain",
    "stop here",
    "plan",
    "receive proxy",
    "await proxy",
    "launch",
    "await output",
    "receive output",
    "post output",
    "apply output",
    "post proxy",
    "rotate",
]


def steps(protocol, role):
    return list(dict.fromkeys(row.at for row in protocol.role(role).rows if not row.at.startswith("settle")))


def test_a_pass_of_the_main_loop_has_the_steps_of_its_source_in_order():
    table = sglang_table()
    assert steps(table, "middle odd") == PASS_OF_MIDDLE_RANK
    for role in ("first", "middle even", "last even"):
        order = steps(table, role)
        assert order.index("post output") < order.index("receive output")
    order = steps(table, "last odd")
    assert order.index("receive output") < order.index("post output")


def test_hidden_states_and_outputs_share_a_wire():
    assert {channel.name for channel in sglang_table().channels if channel.wire} == {"proxy", "relay", "output"}


def test_every_rank_of_every_pipeline_has_a_role():
    for table in (sglang_table(), fork_table(), disaggregated_table("prefill"), disaggregated_table("decode")):
        for ranks in range(2, 8):
            places = [table.role_of(rank, ranks).place for rank in range(ranks)]
            assert places == ["first", *["middle"] * (ranks - 2), "last"]


@pytest.mark.parametrize("kind", LISTS)
def test_lists_are_posted_and_received_by_their_channels(kind):
    table = disaggregated_table(kind)
    used = {
        row.operation.channel for role in table.roles for row in role.rows if isinstance(row.operation, Post | Receive)
    }
    assert set(list_channels(kind)) | {"proxy", "relay", "output"} == used


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("table", [sglang_table, fork_table])
def test_last_rank_posts_each_output_once_and_every_rank_takes_it(table, ranks):
    """One batch, no idle tail cut short: nothing is left on a wire when the pipeline stops."""
    model = Model(Traffic(batches=1, retractions=int(table is fork_table)).attach(table()), ranks, ranks)
    verdict = explore(model, reduced=True, bounds=BOUNDS)
    assert verdict.holds
    assert verdict.exhausted


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name.replace(" ", "-"))
def test_verdict(cell):
    model = Model(cell.table(), cell.ranks, cell.ranks + cell.depth, transports=cell.transports)
    verdict = explore(model, reduced=True, bounds=BOUNDS)
    example = verdict.counterexample
    if example is None:
        assert verdict.exhausted
        assert "pass" in cell.outcomes
        return
    assert OUTCOMES[example.law] in cell.outcomes, example.finding
    if cell.stuck:
        assert tuple(w.row for w in example.positions) == cell.stuck


def test_verdict_table_covers_every_assumption_of_its_source():
    names = [cell.name for cell in CELLS]
    for words in (
        ("posted, parity", "posted, send first", "posted, flush in the step of the send", "never waited for"),
        ("everything rendezvous", "chain rendezvous", "tensors rendezvous, parity", "tensors rendezvous, send first"),
        ("one queue a pair, no credit, send first, P = 2", "one credit, send first", "no credit, parity, P = 3"),
        ("lazy, any", "lazy, gate on sent", "lazy, gate on attempted"),
        ("presence: one batch fewer", "presence: one batch more", "flush top", "flush before proxy", "flush end"),
        ("exchange before launch on ranks but the last", "prefill, one posted FIFO", "decode, lists rendezvous"),
    ):
        for word in words:
            assert any(word in name for name in names), word
