"""What the local steps of a counterexample returned, so that it can be taken again elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.spec.table import Local, Receive
from headway.verification.model import Model
from headway.verification.states import Broken, State, Step, show_value


def scripted(model: Model, steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Each step with `outcome` (what a local row returned) and `aside` (a receive that stashed another kind).

    Raises `ValueError` when they are not steps of this model.
    """
    state, script = model.initial(), list[dict[str, Any]]()
    for number, step in enumerate(steps):
        row = model.row_at(state, step.rank)
        outcome = {}
        if row is not None and isinstance(row.operation, Local):
            for got in model.outcomes(state.ranks[step.rank], step.rank, row):
                if ", ".join(f"{name} = {show_value(value)}" for name, value in got.items()) == step.detail:
                    outcome = got
        after = next((new for found, new in model.successors(state, step.rank) if found == step), None)
        if after is None:
            raise ValueError(f"rank {step.rank} cannot take step {step.row!r} ({step.detail}) in pass {step.this_pass}")
        aside = row is not None and isinstance(row.operation, Receive) and _stays(after, state, step.rank)
        script.append(
            {
                "rank": step.rank,
                "row": step.row,
                "this_pass": step.this_pass,
                "outcome": outcome,
                "aside": aside,
            }
        )
        if isinstance(after, Broken):
            if number != len(steps) - 1:
                raise ValueError(f"step {step.row!r} of rank {step.rank} already breaks a law: {after.finding}")
            break
        state = after
    return script


def _stays(after: State | Broken, before: State, rank: int) -> bool:
    return isinstance(after, State) and after.ranks[rank] == before.ranks[rank]
