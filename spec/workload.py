"""The environment of the production table in a model: requests that arrive, their passes, refusals, the stop.

A workload adds ghost variables to a table: they restrict what local steps may return, and no production row reads
them. It changes neither a guard nor an operation that the engine runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headway.spec.language import Bool, Expr, Got, Param, Past, Range, Var, conjunction, ite
from headway.spec.serving import OUTPUT_LAG
from headway.spec.table import Local, Protocol, Role, Row, Variable


@dataclass(frozen=True)
class Workload:
    """At most `requests` arrive, at any pass; each needs `passes` passes; each rank refuses at most `refusals` grants.

    When all have been served, the pipeline is stopped. A request's passes stand for its prefill chunks and decode
    steps, which the protocol does not tell apart.
    """

    requests: int = 2
    passes: int = 2
    refusals: int = 0

    def attach(self, protocol: Protocol) -> Protocol:
        """The table with this environment; raises `SpecError` if it lacks the rows that the environment drives."""
        return protocol.with_roles([self._role(role) for role in protocol.roles], checked=protocol.checked)

    def _role(self, role: Role) -> Role:
        if role.place in ("first", "solo"):
            return self._deciding(role)
        return self._following(role)

    def _deciding(self, role: Role) -> Role:
        waiting, arrivals = Var("waiting"), Var("arrivals")
        resident = Past("left", Param("L"))
        lost = Past("returned_void", Param("L") - OUTPUT_LAG)
        owed = ite(lost, resident + 1, resident)  # passes that this slot's request still needs
        arrived, launched = Got("arrived"), Got("launch")
        nothing = owed.eq(0) & (waiting.eq(0) | Var("quiet").lt(Param("L") - 1))
        may_plan = ite(launched, ~owed.eq(0) | ~waiting.eq(0), nothing & Got("digest").eq(0))
        starts = owed.eq(0)

        def arrival(row: Row) -> Row:
            may_come = ~arrived | ~arrivals.eq(0)
            if isinstance(row.operation, Local) and row.operation.nature == "idle":
                done = arrivals.eq(0) & waiting.eq(0)
                may_come = may_come & ite(Got("stop"), done & ~arrived, arrived)
            effects = (
                ("waiting", ite(arrived, waiting + 1, waiting)),
                ("arrivals", ite(arrived, arrivals - 1, arrivals)),
            )
            return _returning(row, ("arrived", Bool()), may_come, effects)

        edits: dict[str, Callable[[Row], Row]] = {
            "wait_for_requests": arrival,
            "poll_requests": arrival,
            "plan": lambda row: replace(
                row,
                assume=conjunction(row.assume, may_plan),
                effects=(
                    *row.effects,
                    ("left", ite(launched, ite(starts, self.passes - 1, owed - 1), 0)),
                    ("waiting", ite(launched & starts, waiting - 1, waiting)),
                ),
            ),
        }
        ghosts = (
            Variable("arrivals", Range(0, self.requests), self.requests, "requests still to come", ghost=True),
            Variable("waiting", Range(0, self.requests), 0, "requests in the queue", ghost=True),
            Variable(
                "left", Range(0, self.passes), 0, "passes that the planned slot's request still needs", ghost=True
            ),
        )
        return _edit(role, edits, ghosts)

    def _following(self, role: Role) -> Role:
        refusals = Var("refusals")
        honoured = Got("honoured")

        def refuse(row: Row) -> Row:
            may: Expr = honoured | (Var("launch") & ~Var("void") & ~refusals.eq(0)) if self.refusals else honoured
            effects = (("refusals", ite(honoured, refusals, refusals - 1)),) if self.refusals else ()
            return replace(row, assume=conjunction(row.assume, may), effects=(*row.effects, *effects))

        ghosts = (
            Variable("refusals", Range(0, self.refusals), self.refusals, "grants that may be refused", ghost=True),
        )
        return _edit(role, {"honour": refuse}, ghosts if self.refusals else ())


def _returning(row: Row, field: tuple[str, Bool], assume: Expr, effects: tuple[tuple[str, Expr], ...]) -> Row:
    operation = row.operation
    if not isinstance(operation, Local):
        return row
    operation = replace(operation, returns=(*operation.returns, field))
    return replace(row, operation=operation, assume=conjunction(row.assume, assume), effects=(*row.effects, *effects))


def _edit(role: Role, edits: dict[str, Callable[[Row], Row]], ghosts: tuple[Variable, ...]) -> Role:
    rows = tuple(
        edits[row.operation.binding](row)
        if isinstance(row.operation, Local) and row.operation.binding in edits
        else row
        for row in role.rows
    )
    return replace(role, rows=rows, variables=(*role.variables, *ghosts))
