"""Which layers each pipeline rank holds."""

from __future__ import annotations

import msgspec

from headway.models.errors import ModelError


class StageSpan(msgspec.Struct, frozen=True):
    """Layers `begin` up to `end` on one rank; the first rank embeds, the last one has final norm and head."""

    begin: int
    end: int
    first: bool
    last: bool

    @property
    def layers(self) -> int:
        return self.end - self.begin


def partition(layers: int, ranks: int) -> tuple[StageSpan, ...]:
    """Split `layers` over `ranks` as evenly as can be; the surplus goes to the lower ranks, as the last has the head.

    Raises ModelError when a rank would have no layer.
    """
    if not 1 <= ranks <= layers:
        raise ModelError(f"pp is {ranks}; it must be from 1 to the model's number of layers, {layers}")
    even, surplus = divmod(layers, ranks)
    begins = [rank * even + min(rank, surplus) for rank in range(ranks + 1)]
    return tuple(
        StageSpan(begins[rank], begins[rank + 1], first=rank == 0, last=rank == ranks - 1) for rank in range(ranks)
    )
