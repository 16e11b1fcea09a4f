"""Why a row or outcome of the table cannot be executed by a running pipeline, where that is so."""

from __future__ import annotations

from headway.spec.table import Protocol
from headway.verification.conform.coverage import Item

# By row and outcome. An item that is neither executed nor named here is a gap in the tests.
_REASONS: dict[tuple[str, str], str] = {
    ("settle output", ""): "rank 0 stops only after L passes without a launch; in the first of them the last rank has "
    "awaited its output",
}


def reason_not_executed(protocol: Protocol, item: Item) -> str:
    """The reason, or an empty text when there is none."""
    protocol.role(item.role).row(item.row)
    return _REASONS.get((item.row, item.outcome), "")
