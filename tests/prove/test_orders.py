"""Which orders of SGLang's and our pass have a potential under which transports, and the deadlocks of those without."""

from __future__ import annotations

import pytest

from headway.spec.edits import Edit, edit, move
from headway.spec.serving import serving_table
from headway.spec.sglang.fork import fork_table
from headway.spec.sglang.loop import sglang_table
from headway.spec.table import Protocol
from headway.spec.transports import DROPPED, LAZY, POSTED, RENDEZVOUS, Transport, credits, stream_ordered
from headway.verification.prove import prove_acyclic, unroll

ODD, EVEN = ("middle odd", "last odd"), ("first", "middle even", "last even")
SENDERS = ("first", "middle odd", "middle even")
SEND_FIRST = move("post output", before="receive output", roles=ODD)
RECEIVE_FIRST = move("post output", after="receive output", roles=EVEN)


def transports(protocol: Protocol, **contracts: Transport) -> dict[str, Transport]:
    """By channel name or kind; posted where nothing is said."""
    return {c.name: contracts.get(c.name, contracts.get(c.kind, POSTED)) for c in protocol.channels}


def exchange_first(protocol: Protocol) -> Protocol:
    steps = ("await output", "post output", "receive output", "apply output")
    for role in protocol.roles:
        order = [step for step in dict.fromkeys(row.at for row in role.rows) if step in steps]
        protocol = edit(protocol, *(move(step, before="launch", roles=(role.name,)) for step in order))
    return protocol


@pytest.mark.parametrize(
    ("edits", "contracts", "template"),
    [
        ((), {}, "constants"),
        ((SEND_FIRST,), {}, "constants"),
        ((), {"tensor": RENDEZVOUS}, "affine in P"),
        ((move("await chain", before="post proxy", roles=SENDERS),), {}, "affine in P"),
        ((move("await chain", after="post proxy", roles=SENDERS),), {}, "affine in P"),
    ],
    ids=["parity", "send first", "parity, tensor rendezvous", "chain awaited before proxy", "chain awaited at the end"],
)
def test_orders_with_a_potential(edits: tuple[Edit, ...], contracts: dict[str, Transport], template: str) -> None:
    table = edit(sglang_table(), *edits)
    found = prove_acyclic(table, transports(table, **contracts))
    assert found.template == template
    assert found.potential is not None
    assert found.ordering is not None
    assert list(found.potential.faults(found.ordering.waits, most_ranks=8)) == []


def test_exchanging_outputs_before_the_launch_has_a_potential() -> None:
    table = exchange_first(sglang_table())
    assert [row.at for row in table.role("last odd").rows].index("launch") > 0
    assert prove_acyclic(table, transports(table)).potential is not None


@pytest.mark.parametrize(
    ("edits", "contracts", "ring"),
    [
        ((RECEIVE_FIRST,), {}, {"receive output"}),
        ((SEND_FIRST,), {"tensor": RENDEZVOUS}, {"post output"}),
        ((), {"chain": RENDEZVOUS}, {"post chain", "receive output"}),
        ((), {"control": RENDEZVOUS, "tensor": RENDEZVOUS}, {"post chain", "post output"}),
        ((move("await chain", after="post chain", roles=SENDERS),), {}, {"await chain", "receive output"}),
        ((move("await chain", before="launch", roles=SENDERS),), {}, {"await chain", "receive output"}),
        ((move("await chain", before="await output", roles=SENDERS),), {}, {"await chain", "receive output"}),
    ],
    ids=[
        "receive first",
        "send first, tensor rendezvous",
        "chain rendezvous",
        "all rendezvous",
        "chain awaited at once",
        "chain awaited before the launch",
        "chain awaited before the exchange",
    ],
)
def test_orders_that_deadlock(edits: tuple[Edit, ...], contracts: dict[str, Transport], ring: set[str]) -> None:
    table = edit(sglang_table(), *edits)
    contract = transports(table, **contracts)
    found = prove_acyclic(table, contract)
    assert found.potential is None
    assert found.core, "the waits that exclude a potential are named"
    stuck = unroll(table, contract, most_ranks=3)
    assert stuck is not None
    assert stuck.counterexample.law == "deadlock"
    assert {waiting.row for waiting in stuck.counterexample.cycle} == ring


@pytest.mark.parametrize("place", [{"after": "plan"}, {"before": "await chain"}, {"after": "await chain"}])
def test_a_decision_may_be_posted_anywhere_after_the_plan(place: dict[str, str]) -> None:
    """A story told of the fork says that posting it after its own flush deadlocks; it does not."""
    table = fork_table()
    steps = [row.at for row in table.role("first").rows]
    assert steps.index("await decision") < steps.index("await chain")
    table = edit(
        table,
        move("await decision", after="await chain", roles=("first",)),
        move("post decision", **place, roles=("first",)),
    )
    found = prove_acyclic(table, transports(table))
    assert found.potential is not None


@pytest.mark.parametrize("tensor", [RENDEZVOUS, LAZY, credits(1), stream_ordered(0), stream_ordered(3)])
def test_the_production_table_under_every_contract_of_its_tensor_channel(tensor: Transport) -> None:
    table = serving_table()
    assert prove_acyclic(table, transports(table, tensor=tensor)).potential is not None
    assert unroll(table, transports(table, tensor=tensor), most_ranks=3) is None


def test_hidden_states_posted_before_the_output_exchange() -> None:
    """It deadlocks only where the outputs, too, are a rendezvous; the production order does not even then."""
    table = serving_table()
    moved = edit(table, move("post hidden states", before="receive output", roles=("first",)))
    tensors, both = transports(table, tensor=RENDEZVOUS), transports(table, tensor=RENDEZVOUS, output=RENDEZVOUS)
    assert prove_acyclic(table, both).potential is not None
    assert prove_acyclic(moved, tensors).potential is not None
    assert unroll(moved, tensors, most_ranks=3) is None
    assert prove_acyclic(moved, both).potential is None
    stuck = unroll(moved, both, most_ranks=2)
    assert stuck is not None
    assert {waiting.row for waiting in stuck.counterexample.cycle} == {"post hidden states", "post output"}


def test_a_contract_that_promises_no_delivery_proves_nothing() -> None:
    table = serving_table()
    found = prove_acyclic(table, transports(table, proxy=DROPPED))
    assert found.potential is None
    assert "dropped" in found.obligation.findings[0].text


def test_no_potential_is_not_called_a_deadlock() -> None:
    """A template may be too weak: with constants alone the production table has none, and no run of it gets stuck."""
    table = serving_table()
    found = prove_acyclic(table, transports(table), ladder=1)
    assert found.potential is None
    assert found.obligation.findings[0].law == "no certificate"
    assert unroll(table, transports(table), most_ranks=3) is None


def test_a_channel_without_a_transport_is_named() -> None:
    found = prove_acyclic(serving_table(), {"chain": POSTED})
    assert found.potential is None
    assert found.obligation.findings[0].text == "channel 'decision': no transport is given for it"
