"""Run incidents: search each table under its transports, and compare what is found with what must be found."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from headway.spec.incidents import Incident
from headway.spec.language import SpecError
from headway.spec.laws import OUTCOMES
from headway.spec.table import Protocol
from headway.verification.explore import explore
from headway.verification.explore.search import Bounds
from headway.verification.livelock import Lasso, check_progress
from headway.verification.model import Model
from headway.verification.verdict import Counterexample

Report = Callable[[int, int], None]


@dataclass(frozen=True)
class Found:
    """What came of an incident: `outcome` is one of `spec.incidents.incident.Outcome`, or "not exhausted".

    `words` says it in full. `disagreement` is empty when it is what was expected. `counterexample` or `lasso` is the
    way to a violation that a search found.
    """

    incident: Incident
    outcome: str
    words: str
    disagreement: str
    states: int
    seconds: float
    counterexample: Counterexample | None = None
    lasso: Lasso | None = None

    @property
    def agrees(self) -> bool:
        """Whether it is what was expected."""
        return not self.disagreement


def incident_model(incident: Incident) -> Model:
    """The instance that an incident describes. Raises `SpecError` when its table is refused."""
    return _model(incident, incident.table())


def _model(incident: Incident, table: Protocol) -> Model:
    return Model(table, incident.ranks, incident.slot_count, incident.transport, dict(incident.transports))


def run_incident(incident: Incident, *, bounds: Bounds | None = None, progress: Report | None = None) -> Found:
    """Search one incident within `bounds`. `progress` is called now and then with states and depth.

    Raises `SpecError` for an edit that does not fit the base table; a table that is refused as a whole is a verdict.
    """
    start = time.perf_counter()
    table = replace(incident, unchecked=True).table()
    try:
        model = _model(incident, replace(table, checked=not incident.unchecked))
    except SpecError as error:
        return _found(incident, "refused", f"refused: {error}", 0, start)
    verdict = explore(model, reduced=True, bounds=bounds, progress=progress)
    states = verdict.states
    if verdict.counterexample is not None:
        example = verdict.counterexample
        return _found(incident, OUTCOMES[example.law], _in_words(example), states, start, example)
    if not verdict.exhausted:
        return _found(incident, "not exhausted", f"not exhausted: {states} states", states, start)
    if incident.pending is None:
        return _found(incident, "pass", "pass", states, start)
    round_trip = check_progress(model, incident.pending, progress=progress)
    states += round_trip.states
    if round_trip.lasso is None:
        return _found(incident, "pass", "pass", states, start)
    words = f"livelock: {len(round_trip.lasso.cycle)} steps round, after {len(round_trip.lasso.prefix)}"
    return _found(incident, "livelock", words, states, start, lasso=round_trip.lasso)


def _in_words(example: Counterexample) -> str:
    outcome = OUTCOMES[example.law]
    if outcome == "dead":
        return "dead: " + ", ".join(f"{w.rank} {w.row}" for w in example.positions)
    where = f"{example.steps[-1].rank} {example.steps[-1].row}: " if example.steps else ""
    return f"{outcome}: {where}{example.finding}"


def _found(
    incident: Incident,
    outcome: str,
    words: str,
    states: int,
    start: float,
    example: Counterexample | None = None,
    lasso: Lasso | None = None,
) -> Found:
    disagreement = _disagreement(incident, outcome, words, example)
    return Found(incident, outcome, words, disagreement, states, time.perf_counter() - start, example, lasso)


def _disagreement(incident: Incident, outcome: str, words: str, example: Counterexample | None) -> str:
    """How what was found differs from what was expected; empty when it does not."""
    expected = incident.expected
    if outcome != expected.outcome:
        return f"expected {expected.describe()}, found {words}"
    if example is None or not expected.stuck:
        return ""
    if outcome != "dead":
        last = example.steps[-1]
        same = last.row == expected.stuck[0] and expected.rank in (None, last.rank)
        return "" if same else f"expected {expected.describe()}, found {words}"
    rows = tuple(w.row for w in example.positions)
    if rows != expected.stuck:
        return f"expected {expected.describe()}, found {words}"
    cycle = tuple(w.rank for w in example.cycle)
    if expected.cycle and cycle != expected.cycle:
        return f"expected a ring of ranks {expected.cycle}, found {cycle}"
    return ""
