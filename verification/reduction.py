"""Which steps commute with every step of every other rank: those may be expanded alone (singleton persistent sets).

Every wire has one sender and one receiver, and a step that is enabled stays so until its rank takes it. So the enabled
steps of any one rank form a persistent set, unless what they do depends on when they are done. Such steps *touch*:

- a probe, and a gate that may time out, read whether a message has been posted: they touch, and so do the posts that
  they look for, and for the counter "attempted" the steps that lead to such a post;
- a post that keeps no handle, or overwrites one, loses its message or not: posts on that edge touch, and so do the
  receives of its wire and the steps that lead to them.

A state is expanded by one rank only if that rank's step does not touch and leads to a state not seen before this
level (else a cycle could ignore the other ranks for ever); if there is none, by all ranks. This keeps every deadlock
and every law that one rank breaks alone. Two laws compare ranks: bounded channels and bounded lead. They are at their
worst when one rank lags as far as it can, so a reduced search is done once for each rank, with that rank last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from headway.spec.table import Gate, Post, Probe, Receive, Row
from headway.verification.model import Model
from headway.verification.states import Broken, State


def orders(ranks: int) -> list[list[int]]:
    """The orders of ranks of a reduced search: each rank once last, the last rank first."""
    return [[rank for rank in range(ranks) if rank != last] + [last] for last in reversed(range(ranks))]


@dataclass(frozen=True)
class Touching:
    """The edges and wires of a model on which steps do not commute."""

    model: Model

    @cached_property
    def watched(self) -> dict[int, bool]:
        """Edges whose posts somebody looks for without waiting; whether also for attempts."""
        network = self.model.network
        result: dict[int, bool] = {}
        for rank, row in self._rows():
            operation = row.operation
            if isinstance(operation, Probe) or (isinstance(operation, Gate) and self.model.gate_timeouts):
                edge = network.incoming[rank, operation.channel]
                wire = network.wire_of[edge]
                for other in range(len(network.edges)):
                    if other == edge or (operation.scope == "wire" and network.wire_of[other] == wire):
                        result[other] = result.get(other, False) or operation.counter == "attempted"
        return result

    @cached_property
    def losing(self) -> frozenset[int]:
        """Edges on which a post may lose a message."""
        network = self.model.network
        posts = (
            (network.outgoing[rank, op.channel], op)
            for rank, row in self._rows()
            if isinstance(op := row.operation, Post)
        )
        return frozenset(
            edge
            for edge, post in posts
            if network.cancels(edge) and (network.forgets(edge, post) or post.handle == "overwrite")
        )

    @cached_property
    def losing_wires(self) -> frozenset[int]:
        """The wires of those edges."""
        return frozenset(self.model.network.wire_of[edge] for edge in self.losing)

    def _rows(self) -> list[tuple[int, Row]]:
        return [(rank, row) for rank, role in enumerate(self.model.roles) for row in role.rows if self.model.ranks > 1]

    def reasons(self) -> tuple[str, ...]:
        """The rows that cannot be expanded alone and why, in words; empty when the reduction applies everywhere."""
        found: dict[str, None] = {}
        for rank, row in self._rows():
            operation, where = row.operation, f"row {row.name!r} of role {self.model.roles[rank].name!r}"
            if isinstance(operation, Probe):
                found[f"{where} polls {operation.channel!r}"] = None
            elif isinstance(operation, Gate) and self.model.gate_timeouts:
                found[f"{where} may time out"] = None
            elif isinstance(operation, Post) and self.model.network.outgoing[rank, operation.channel] in self.losing:
                found[f"{where} may lose its message"] = None
        return tuple(found)

    def touches(self, state: State, rank: int) -> bool:
        """Whether the step of `rank` does not commute with those of other ranks (the reference meaning)."""
        row = self.model.row_at(state, rank)
        if row is None:
            return False
        operation = row.operation
        if isinstance(operation, Probe) or (isinstance(operation, Gate) and self.model.gate_timeouts):
            return True
        if self._meets(rank, row, attempts=False):
            return True
        for _, after in self.model.successors(state, rank):
            if not isinstance(after, Broken) and after.ranks:
                following = self.model.row_at(after, rank)
                if following is not None and self._meets(rank, following, attempts=True):
                    return True
        return False

    def _meets(self, rank: int, row: Row, attempts: bool) -> bool:
        """Whether the row is a post or receive that touches; with `attempts`, whether merely standing at it does."""
        network, operation = self.model.network, row.operation
        if isinstance(operation, Post):
            edge = network.outgoing[rank, operation.channel]
            return self.watched.get(edge, False) if attempts else edge in self.watched or edge in self.losing
        if isinstance(operation, Receive):
            return network.wire_of[network.incoming[rank, operation.channel]] in self.losing_wires
        return False
