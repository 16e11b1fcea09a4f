"""What the prover was asked, and what it answered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import z3

from headway.verification.prove.translate import Term, value_of


class Finding(NamedTuple):
    """Why an obligation does not hold: the law that breaks, the rows (`role: row`), what happens and when."""

    law: str
    rows: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.law}: {', '.join(self.rows)}: {self.text}"


@dataclass
class Obligation:
    """One obligation: the statements that were proved of it, those that failed, and the time it took in seconds.

    The theorem does not rest on one that is `apart`; a certificate demands it all the same.
    """

    name: str
    proved: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    apart: bool = False

    @property
    def holds(self) -> bool:
        """Whether everything that was asked was proved."""
        return not self.findings

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time spent inside to `seconds`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start


def refute(solver: z3.Solver, bad: Term) -> z3.ModelRef | None:
    """A model in which `bad` happens; None if it cannot. Raises `ArithmeticError` when Z3 gives no answer."""
    found = solver.check(bad)
    if found == z3.unsat:
        return None
    if found != z3.sat:
        raise ArithmeticError(f"Z3 gave no answer: {solver.reason_unknown()}")
    return solver.model()


def in_words(model: z3.ModelRef, terms: dict[str, Term]) -> str:
    """The values of some terms in a model."""
    values = {name: value_of(model.eval(term, model_completion=True)) for name, term in terms.items()}
    return ", ".join(f"{name} = {str(value).lower()}" for name, value in values.items())
