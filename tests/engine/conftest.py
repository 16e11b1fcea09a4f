"""The seed of the tests that choose at random."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def seed() -> int:
    """`HEADWAY_SEED` sets another one. Printed, so that a failure shows it."""
    value = int(os.environ.get("HEADWAY_SEED", "20240607"))
    print(f"HEADWAY_SEED={value}")
    return value
