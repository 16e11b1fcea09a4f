"""A counterexample as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from headway.verification.model import Model
from headway.verification.report.story import waiting_words
from headway.verification.verdict import Counterexample


def words(model: Model, example: Counterexample) -> Iterator[str]:
    """The steps by rank, who stands where at their end, and the ring of ranks that wait for one another."""
    yield f"violated: {example.law}: {example.finding}"
    width = len(str(len(example.steps)))
    for number, step in enumerate(example.steps, start=1):
        detail = f": {step.detail}" if step.detail else ""
        yield f"  {number:{width}}. rank {step.rank}, pass {step.this_pass}, slot {step.slot}, {step.row}{detail}"
    yield "then:"
    for waiting in example.positions:
        yield f"  {waiting_words(model, waiting)}"
    if example.cycle:
        ring = [f"rank {w.rank} waits at {w.row!r} on rank {w.on}" for w in example.cycle]
        yield "cycle: " + ", and ".join(ring)
