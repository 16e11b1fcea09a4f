"""Exhaustive search, compiled: a table becomes automata and lookup tables, which one set of kernels explores.

`explore` is the way in. What it finds is replayed in the reference model before it is reported.
"""

from headway.verification.explore.search import ENGINES, explore

__all__ = ["ENGINES", "explore"]
