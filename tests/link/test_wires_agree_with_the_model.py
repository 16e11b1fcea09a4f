"""The compiled loop over simulated wires against the reference model, in lockstep along random walks.

Two independent meanings of table and transports: after every step each rank must stand at the same row, and the same
ranks must be able to go on.
"""

from __future__ import annotations

from random import Random

import pytest

from headway.engine.replay.simulated import SteppedRanks
from headway.spec.catalog import load_table
from headway.spec.edits import drop_handle, edit, overwrite_handle
from headway.spec.incidents import INCIDENTS
from headway.spec.table import Collective, Gate, Local, Probe
from headway.spec.transports import parse_transport
from headway.verification.model import Model
from headway.verification.states import Broken

CONTRACTS = (
    "posted",
    "rendezvous",
    "lazy",
    "credits(0)",
    "credits(1)",
    "credits(2)",
    "stream_ordered(0)",
    "stream_ordered(1)",
    "dropped",
)


def walk(model, seed, most=250):
    """One random walk in both; how many steps were taken together."""
    random = Random(seed)
    ranks = SteppedRanks(model.protocol, model.ranks, model.slots, model.network.transports)
    state = model.initial()
    try:
        for number in range(most):
            rows = [model.row_at(state, rank) for rank in range(model.ranks)]
            assert [ranks.row(r) for r in range(model.ranks)] == [row.name if row else "end" for row in rows], number
            able = [r for r, row in enumerate(rows) if row is not None and model.enabled(state, r, row)]
            assert [r for r in range(model.ranks) if ranks.enabled(r)] == able, (
                number,
                [row.name for row in rows if row],
            )
            if not able:
                return number
            rank = random.choice(able)
            row, before = rows[rank], state.ranks[rank]
            outcomes = list(model.outcomes(before, rank, row)) if isinstance(row.operation, Local) else [{}]
            choice = random.randrange(len(outcomes))
            _, after = list(model.successors(state, rank))[choice]
            error = ranks.step(rank, outcomes[choice])
            if isinstance(after, Broken):
                if after.law in ("message identity", "handle custody"):
                    assert error is not None, after
                return number
            assert error is None, (number, row.name, error)
            state = after
    finally:
        ranks.close()
    return most


def runs(protocol):
    """Whether ranks can run a table: it uses nothing that exists in models only."""
    operations = [row.operation for role in protocol.roles for row in role.rows]
    names = [v.name for role in protocol.roles for v in role.variables if not v.ghost] + [
        c.name for c in protocol.channels
    ]
    return all(name.isidentifier() for name in names) and not any(isinstance(o, Probe | Collective) for o in operations)


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("name", ["serving", "sglang", "sglang fork"])
def test_random_walks_go_the_same_way(name, contract):
    from headway.spec.incidents.incident import BASES, free, requests

    workload = requests(2, 2, 1) if name == "serving" else free(batches=3)
    table = workload.attach(BASES[name]())
    steps = 0
    for ranks, slots in ((2, 2), (3, 3), (3, 4)):
        model = Model(table, ranks, slots, parse_transport(contract))
        for seed in range(4):
            steps += walk(model, seed)
    assert steps > 100


@pytest.mark.parametrize("change", [drop_handle("decision"), overwrite_handle("decision"), drop_handle("output")])
def test_handles_that_are_not_kept(change):
    from headway.spec.incidents.incident import requests

    table = requests(2, 2).attach(edit(load_table("serving"), change, checked=False))
    for seed in range(10):
        assert walk(Model(table, 3, 3), seed) > 10


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.id)
def test_incidents_go_the_same_way(incident):
    if incident.expected.outcome == "refused":
        pytest.skip("a table that is refused does not run")
    table = incident.table()
    if not runs(table):
        pytest.skip("it uses what exists in models only")
    model = Model(table, incident.ranks, incident.slot_count, incident.transport, dict(incident.transports))
    for seed in range(3):
        assert walk(model, seed, 150) > 3
    assert any(isinstance(row.operation, Gate | Local) for role in table.roles for row in role.rows)
