"""Other orders of a pass: what may be moved where, and the ones that are safe when every post is a rendezvous."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.spec.language import SpecError
from headway.spec.ordering import ordering
from headway.spec.serving import serving_table
from headway.spec.transports import POSTED, RENDEZVOUS
from headway.verification.prove import prove, prove_acyclic, unroll
from headway.verification.prove.synthesis import Costs, must_precede, orders, reordered, steps_of, timing

TABLE = serving_table()
EVERYTHING = {channel.name: RENDEZVOUS for channel in TABLE.channels}


def relayed_late() -> dict[str, tuple[str, ...]]:
    """Outputs first, and everything relayed after the launch."""
    first, middle = steps_of(TABLE.role("first")), steps_of(TABLE.role("middle"))
    late = ("post chain", "post decision")
    back = ("receive output", "apply output")
    rest = [step for step in first if step not in (*late, *back)]
    after = rest.index("launch") + 1
    head = (*back, *rest[:after], *late, *rest[after:])
    rest = [step for step in middle if step not in late]
    after = rest.index("launch") + 1
    return {"first": head, "middle": (*rest[:after], *late, *rest[after:])}


def test_the_tables_own_order_is_one_of_them() -> None:
    for name in ("first", "middle", "last"):
        role = TABLE.role(name)
        found = list(orders(TABLE, role))
        assert steps_of(role) in found
        assert len(set(found)) == len(found)
        assert reordered(role, steps_of(role)).rows == role.rows


def test_no_order_breaks_what_one_step_needs_of_another() -> None:
    role = TABLE.role("middle")
    before = must_precede(TABLE, role)
    assert ("launch", "post hidden states") in before
    assert ("honour", "post decision") in before
    for order in orders(TABLE, role):
        assert all(order.index(a) < order.index(b) for a, b in before)


def test_an_order_that_is_safe_when_every_post_is_a_rendezvous() -> None:
    """It exists, it is proved in full, and it costs a stall: rank 0 waits for an output before it may launch."""
    assert prove_acyclic(TABLE, EVERYTHING).potential is None
    late = relayed_late()
    roles = [reordered(role, late[role.name]) if role.name in late else role for role in TABLE.roles]
    table = replace(TABLE, roles=tuple(roles))
    proof = prove(table, EVERYTHING)
    assert [str(finding) for finding in proof.findings] == []
    assert unroll(table, EVERYTHING, most_ranks=4) is None
    posted = ordering(TABLE, {channel.name: POSTED for channel in TABLE.channels})
    assert proof.acyclic is not None
    assert proof.acyclic.ordering is not None
    costs = Costs(host=0.0, message=0.0)
    for ranks in (3, 4, 5):
        assert timing(posted, costs, ranks)[0] == pytest.approx(1.0)
        assert timing(proof.acyclic.ordering, costs, ranks)[0] == pytest.approx(ranks / (ranks - 1))


def test_a_pass_that_is_not_one_line_is_refused() -> None:
    role = TABLE.role("last")
    rows = [replace(row, to="post output") if row.name == "launch: pass by" else row for row in role.rows]
    with pytest.raises(SpecError, match="one line is needed"):
        steps_of(replace(role, rows=tuple(rows)))
