"""The environment of SGLang's tables in a model: in which passes there is work, and when the pipeline stops."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.spec.language import TRUE, Expr, Got, Param, Range, Var, conjunction, ite
from headway.spec.table import Fields, Local, Protocol, Role, Row, Variable


@dataclass(frozen=True)
class Traffic:
    """When the replicated planner makes a batch.

    `batches`: at most so many, None for no bound. `gaps`: whether passes without a batch may come between batches;
    without gaps the first pass has one, and so on until all are used up. With `stops` the pipeline may stop when it has
    been idle for so long (L + 1 passes) that every output has come home. `retractions`: how often a rank of the fork's
    table may fail to honour an admission, at most; `retracting`: which rank, 0 for any.
    """

    batches: int | None = None
    gaps: bool = True
    stops: bool = True
    retractions: int = 0
    retracting: int = 0

    def attach(self, protocol: Protocol) -> Protocol:
        """The table with this environment."""
        roles = [self._first(role) if role.place == "first" else self._follower(role) for role in protocol.roles]
        return protocol.with_roles(roles, checked=protocol.checked)

    def _first(self, role: Role) -> Role:
        drained = Param("L") + 1
        idle, left, works, stops = Var("idle"), Var("left"), Got("work"), Got("stop")
        assume: Expr = ~stops | (idle.eq(drained) & ~works) if self.stops else ~stops
        ghosts = [Variable("idle", Range(0, drained), 0, "passes since the last batch, at most L + 1", ghost=True)]
        effects = [("idle", ite(works, 0, ite(idle.eq(drained), drained, idle + 1)))]
        if self.batches == 0:
            assume = assume & ~works
        elif self.batches is not None:
            assume = assume & (~works | ~left.eq(0))
            if not self.gaps:
                assume = assume & (works | left.eq(0))
            ghosts.append(Variable("left", Range(0, self.batches), self.batches, "batches still to come", ghost=True))
            effects.append(("left", ite(works, left - 1, left)))
        elif not self.gaps:
            assume = works & ~stops

        return _drive(role, "take_requests", assume, tuple(effects), tuple(ghosts))

    def _follower(self, role: Role) -> Role:
        left, honoured = Var("retractions"), Got("honoured")
        if not self.retractions:
            return _drive(role, "honour", honoured, (), ())
        here: Expr = Param("R").eq(self.retracting) if self.retracting else TRUE
        may = honoured | (Var("work") & Var("retracted").eq(0) & ~left.eq(0) & here)
        ghost = Variable("retractions", Range(0, self.retractions), self.retractions, "retractions to come", ghost=True)
        return _drive(role, "honour", may, (("retractions", ite(honoured, left, left - 1)),), (ghost,))


def _drive(role: Role, binding: str, assume: Expr, effects: Fields, ghosts: tuple[Variable, ...]) -> Role:
    """The role with what its step that calls `binding` may return restricted; unchanged if it has no such step."""

    def drives(row: Row) -> bool:
        return isinstance(row.operation, Local) and row.operation.binding == binding

    if not any(map(drives, role.rows)):
        return role
    rows = tuple(
        replace(row, assume=conjunction(row.assume, assume), effects=(*row.effects, *effects)) if drives(row) else row
        for row in role.rows
    )
    return replace(role, rows=rows, variables=(*role.variables, *ghosts))
