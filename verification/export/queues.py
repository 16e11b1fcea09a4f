"""FIFOs as Promela arrays: what is on a wire, and what a receiver has put aside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


def integer_type(values: Sequence[int]) -> str:
    """The narrowest Promela type that holds the values."""
    low, high = min(values, default=0), max(values, default=0)
    if low >= 0 and high <= 255:
        return "bit" if high <= 1 else "byte"
    return "short"


@dataclass(frozen=True)
class Queue:
    """At most `size` messages of `width` fields each; `kinds` channels are told apart, `losable` ones may be lost.

    What is behind the last message is zero, so that equal queues are equal states.
    """

    name: str
    size: int
    width: int
    element: str = "byte"
    kinds: int = 1
    losable: bool = False

    @property
    def length(self) -> str:
        """Messages that will be delivered."""
        return f"{self.name}_len"

    @property
    def lost(self) -> str:
        """One bit for each channel of which a message is lost at the queue's end."""
        return f"{self.name}_lost" if self.losable else "0"

    def variables(self) -> Iterator[tuple[str, str, int]]:
        """Type, name and number of elements (0: no array) of each global variable."""
        yield "byte", self.length, 0
        if self.kinds > 1:
            yield "byte", f"{self.name}_kind", self.size
        if self.width:
            yield self.element, f"{self.name}_data", self.size * self.width
        if self.losable:
            yield "byte" if self.kinds <= 8 else "int", self.lost, 0

    def empty(self) -> str:
        """Whether nothing is under way, lost or not."""
        return f"({self.length} == 0 && {self.lost} == 0)" if self.losable else f"{self.length} == 0"

    def field(self, index: int) -> str:
        """A field of the first message."""
        return f"{self.name}_data[{index}]"

    def first_is(self, kind: int) -> str:
        """Whether the first message is of this kind."""
        return f"{self.name}_kind[0] == {kind}" if self.kinds > 1 else "1"

    def holds(self, place: int, kind: int) -> str:
        """Whether a message of this kind is at that place."""
        there = f"{self.length} > {place}"
        return f"({there} && {self.name}_kind[{place}] == {kind})" if self.kinds > 1 else f"({there})"

    def has(self, kinds: Sequence[int]) -> str:
        """Whether a message of one of these kinds is under way, lost or not."""
        if len(set(kinds)) == self.kinds:
            return f"(!({self.empty()}))"
        parts = [self.holds(place, kind) for kind in kinds for place in range(self.size)]
        if self.losable:
            parts.append(f"({self.lost} & {sum(1 << kind for kind in kinds)}) != 0")
        return f"({' || '.join(parts)})"

    def count(self, kind: int) -> str:
        """How many messages of this kind will be delivered."""
        return self.length if self.kinds == 1 else f"({' + '.join(self.holds(i, kind) for i in range(self.size))})"

    def append(self, values: Sequence[str], kind: int) -> list[str]:
        """Statements that put a message at the end."""
        lines = [f"{self.name}_kind[{self.length}] = {kind}"] if self.kinds > 1 else []
        for i, value in enumerate(values):
            lines.append(f"{self.name}_data[{self.length} * {self.width} + {i}] = {value}")
        return [*lines, f"{self.length} = {self.length} + 1"]

    def shift(self) -> list[str]:
        """Statements that take the first message away."""
        lines = [line for array, step in self._arrays() for line in _shifted(array, self.size * step, step)]
        return [*lines, f"{self.length} = {self.length} - 1"]

    def lose_last(self) -> list[str]:
        """Statements that lose the last message."""
        kind = f"(1 << {self.name}_kind[{self.length} - 1])" if self.kinds > 1 else "1"
        lines = [f"{self.lost} = {self.lost} | {kind}", f"{self.length} = {self.length} - 1"]
        for array, step in self._arrays():
            lines += [f"{array}[{self.length} * {step} + {i}] = 0" for i in range(step)]
        return lines

    def lose_from_last(self, kind: int) -> list[str]:
        """Statements that lose the last message of this kind and all behind it."""
        if self.kinds == 1:
            return self.lose_last()
        behind = f"{self.name}_kind[{self.length} - 1] != {kind}"
        return [f"do :: {behind} -> {'; '.join(self.lose_last())} :: else -> break od", *self.lose_last()]

    def _arrays(self) -> Iterator[tuple[str, int]]:
        if self.kinds > 1:
            yield f"{self.name}_kind", 1
        if self.width:
            yield f"{self.name}_data", self.width


def _shifted(array: str, size: int, step: int) -> list[str]:
    moved = [f"{array}[{i}] = {array}[{i + step}]" for i in range(size - step)]
    return [*moved, *(f"{array}[{i}] = 0" for i in range(size - step, size))]
