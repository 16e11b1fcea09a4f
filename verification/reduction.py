"""Which steps commute with every step of every other rank: those may be expanded alone (singleton persistent sets).

Every wire has one sender and one receiver, and a step that is enabled stays so until its rank takes it. So the enabled
steps of any one rank form a persistent set, unless what they do depends on when they are done. Such steps *touch*:

- a probe, and a gate that may time out, read whether a message has been posted: they touch, and so do the posts that
  they look for, and for the counter "attempted" the steps that lead to such a post;
- a post that keeps no handle, or overwrites one, loses its message or not: posts on that edge touch, and so do the
  receives of its wire and the steps that lead to them.

A state is expanded by the first rank in a given order that has an enabled step, if that step does not touch and does
not close a round of its role; else by all ranks. Only so many ranks count as closing rounds that every cycle of states
has a closing step, so that no cycle ignores a rank for ever. This keeps every deadlock and every law that one rank
breaks alone. Two laws compare ranks: bounded channels and bounded lead. They are at their worst when one rank lags as
far as it can, so a reduced search is done once for each rank, with that rank last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx

from headway.spec.table import Gate, Post, Probe, Receive, Row
from headway.verification.model import Model
from headway.verification.states import Broken, State


def orders(ranks: int) -> list[list[int]]:
    """The orders of ranks of a reduced search: each rank once last, the others from the last to the first."""
    return [[rank for rank in reversed(range(ranks)) if rank != last] + [last] for last in range(ranks)]


def closing_rows(rows: tuple[Row, ...]) -> frozenset[str]:
    """Rows that close a round: those that end a pass, and enough others that every cycle of locations has one."""
    closing = {row.name for row in rows if row.advances}
    while True:
        graph = networkx.DiGraph([(row.at, row.to) for row in rows if row.name not in closing])
        try:
            at, to = networkx.find_cycle(graph)[-1][:2]
        except networkx.NetworkXNoCycle:
            return frozenset(closing)
        closing |= {row.name for row in rows if (row.at, row.to) == (at, to)}


@dataclass(frozen=True)
class Touching:
    """The edges and wires of a model on which steps do not commute."""

    model: Model

    def closing(self, order: Sequence[int]) -> tuple[frozenset[str], ...]:
        """The rows of each rank that count as closing a round in this order: those of as few and late ranks as do."""
        counted: list[int] = []
        covered: set[int] = set()
        for late in reversed(order):
            if late in covered:
                continue
            counted.append(late)
            covered.add(late)
            while more := {r for r in order if r not in covered and any(self._needs(r, c) for c in covered)}:
                covered |= more
        rows = self.closing_rows
        return tuple(rows[rank] if rank in counted else frozenset() for rank in range(self.model.ranks))

    @cached_property
    def closing_rows(self) -> tuple[frozenset[str], ...]:
        """The rows of each rank that close a round."""
        return tuple(closing_rows(role.rows) for role in self.model.roles)

    def _needs(self, rank: int, other: int) -> bool:
        """Whether `rank` cannot go round for ever unless `other` does.

        Each of its rounds receives from it, or posts to it: posts fill the channel, unless they are lost.
        """
        rows = [row for row in self.model.roles[rank].rows if not self._meets(rank, row, other)]
        graph = networkx.DiGraph([(row.at, row.to) for row in rows])
        return bool(networkx.is_directed_acyclic_graph(graph))

    def _meets(self, rank: int, row: Row, other: int) -> bool:
        network, operation = self.model.network, row.operation
        if isinstance(operation, Receive):
            return network.edges[network.incoming[rank, operation.channel]].source == other
        if isinstance(operation, Post):
            edge = network.outgoing[rank, operation.channel]
            return network.edges[edge].sink == other and network.wire_of[edge] not in self.losing_wires
        return False

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

    def touches(self, state: State, rank: int, row: Row) -> bool:
        """Whether the step of `rank`, at `row`, does not commute with those of other ranks."""
        operation = row.operation
        if isinstance(operation, Probe) or (isinstance(operation, Gate) and self.model.gate_timeouts):
            return True
        if self._touching_row(rank, row, attempts=False):
            return True
        for _, after in self.model.successors(state, rank):
            if not isinstance(after, Broken) and after.ranks:
                following = self.model.row_at(after, rank)
                if following is not None and self._touching_row(rank, following, attempts=True):
                    return True
        return False

    def _touching_row(self, rank: int, row: Row, attempts: bool) -> bool:
        """Whether the row is a post or receive that touches; with `attempts`, whether merely standing at it does."""
        network, operation = self.model.network, row.operation
        if isinstance(operation, Post):
            edge = network.outgoing[rank, operation.channel]
            return self.watched.get(edge, False) if attempts else edge in self.watched or edge in self.losing
        if isinstance(operation, Receive):
            return network.wire_of[network.incoming[rank, operation.channel]] in self.losing_wires
        return False
