"""How tests of the link run schedules."""

from __future__ import annotations

import pytest

from headway.engine.simulation import Outcome, Schedule, run_schedule
from headway.engine.simulation.run import production
from headway.verification.conform import conform


def judged(schedule: Schedule, table=None, **replaced) -> Outcome:
    """A run with its traces replayed against the table."""
    protocol = table or production()

    def check(directory):
        report = conform(protocol, directory)
        return "" if report.holds else report.words()

    return run_schedule(schedule, protocol, check_traces=check, **replaced)


@pytest.fixture(scope="session", name="judged")
def _judged():
    return judged
