"""Potentials: a number for every event of a pipeline that grows along every wait, so that no ranks wait in a ring.

The number of location s of role k, at rank r in pass n, is `a n + b r + c[k, s]`, where a, b and c may depend linearly
on P and L. If it grows along every wait, no set of ranks is stuck: of the blocked ones take the one at the least
number; what it waits for has a smaller number, so its owner is blocked at a still smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from headway.spec.ordering import Linear, Pipelines, Point, Wait

Weights: TypeAlias = tuple[Any, Any, Any]  # coefficients of 1, P and L: integers, or names of unknowns
Polynomial: TypeAlias = dict[str, list[tuple[int, Any]]]  # monomial in p and l: sum of integer times weight

# With P = least + p and L = P + l, where p and l are 0 or more, a linear expression is a sum over these monomials.
_PRODUCT = {
    ("1", "1"): "1",
    ("1", "p"): "p",
    ("p", "1"): "p",
    ("1", "l"): "l",
    ("l", "1"): "l",
    ("p", "p"): "pp",
    ("p", "l"): "pl",
    ("l", "p"): "pl",
    ("l", "l"): "ll",
}


@dataclass(frozen=True)
class Potential:
    """`per_pass` is a, `per_rank` is b, `steps` is c; each as coefficients of 1, P and L."""

    per_pass: Linear
    per_rank: Linear
    steps: Mapping[Point, Linear]

    def growth_at(self, wait: Wait, ranks: int, slots: int) -> int:
        """By how much the number grows along a wait, for given numbers of ranks and slots."""
        step = self.steps[wait.later].at(ranks, slots) - self.steps[wait.earlier].at(ranks, slots)
        passes, hop = wait.passes.at(ranks, slots), wait.hop.at(ranks, slots)
        return self.per_pass.at(ranks, slots) * passes + self.per_rank.at(ranks, slots) * hop + step

    def faults(self, waits: tuple[Wait, ...], most_ranks: int = 64, spare_slots: int = 2) -> Iterator[str]:
        """Waits along which it does not grow: symbolically for all P and L, and by numbers for P up to `most_ranks`."""
        for wait in waits:
            if wait.earlier not in self.steps or wait.later not in self.steps:
                yield f"{wait.name}: no number for {wait.earlier} or {wait.later}"
                continue
            if not self._grows(wait):
                yield f"{wait.name}: the number need not grow"
            for ranks in range(wait.pipelines.least, most_ranks + 1):
                if ranks in wait.pipelines:
                    for slots in range(ranks, ranks + spare_slots + 1):
                        if self.growth_at(wait, ranks, slots) < 1 or (
                            wait.aging and self.per_pass.at(ranks, slots) < 0
                        ):
                            yield f"{wait.name}: the number does not grow for P={ranks}, L={slots}"

    def _grows(self, wait: Wait) -> bool:
        coefficients = growth(
            _weights(self.per_pass),
            _weights(self.per_rank),
            _weights(self.steps[wait.later]),
            _weights(self.steps[wait.earlier]),
            wait,
        )
        least = {name: sum(factor * weight for factor, weight in terms) for name, terms in coefficients.items()}
        older = expand(_weights(self.per_pass), wait.pipelines) if wait.aging else {}
        return (
            least.pop("1", 0) >= 1
            and all(value >= 0 for value in least.values())
            and all(sum(factor * weight for factor, weight in terms) >= 0 for terms in older.values())
        )


def _weights(value: Linear) -> Weights:
    return (value.one, value.ranks, value.slots)


def expand(weights: Weights, pipelines: Pipelines) -> Polynomial:
    """A linear expression over P and L as a sum over p and l."""
    one, ranks, slots = weights
    least = pipelines.least
    result: Polynomial = {"1": [(1, one), (least, ranks), (least, slots)], "l": [(1, slots)]}
    if not pipelines.only:
        result["p"] = [(1, ranks), (1, slots)]
    return result


def growth(per_pass: Weights, per_rank: Weights, later: Weights, earlier: Weights, wait: Wait) -> Polynomial:
    """By how much a potential grows along a wait, as a sum over p and l.

    If its constant is at least 1 and its other coefficients are not negative, it is at least 1 for all P and L.
    """
    result: Polynomial = {}
    for weights, sign in ((later, 1), (earlier, -1)):
        for name, terms in expand(weights, wait.pipelines).items():
            result.setdefault(name, []).extend((sign * factor, weight) for factor, weight in terms)
    for weights, distance in ((per_pass, wait.passes), (per_rank, wait.hop)):
        number = {name: sum(f * w for f, w in t) for name, t in expand(_weights(distance), wait.pipelines).items()}
        for left, terms in expand(weights, wait.pipelines).items():
            for right, times in number.items():
                if times:
                    product = result.setdefault(_PRODUCT[left, right], [])
                    product.extend((factor * times, weight) for factor, weight in terms)
    return result
