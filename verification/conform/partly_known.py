"""Replays a rank whose ring wrapped: what it knew at the start is unknown, and is learned from what it does.

Values are three-valued (`None` is unknown). A row whose guard cannot be decided is taken to be right, and its guard to
be true from then on; so nothing is called a divergence that some past could explain.
"""

from __future__ import annotations

from collections.abc import Mapping

from headway.spec.language import (
    Bool,
    Const,
    Domain,
    Enum,
    Expr,
    Got,
    Op,
    Param,
    Past,
    Posted,
    Slot,
    SpecError,
    ThisPass,
    Value,
    Var,
    show,
    static_value,
)
from headway.spec.table import Await, Post, Protocol, Receive, Role, history_depths
from headway.verification.conform.divergence import Divergence
from headway.verification.conform.known import RankMemory, Wrong, field_domains, records_outcome, wrong_order
from headway.verification.conform.trace import RankTrace

Maybe = Value | None


class PartialReplay:
    """The state of one rank as far as it is known, from the first pass boundary of a wrapped trace."""

    def __init__(self, protocol: Protocol, role: Role, parameters: Mapping[str, int], this_pass: int) -> None:
        self._protocol, self._role, self._parameters = protocol, role, parameters
        self.n = this_pass
        self.variables: dict[str, Maybe] = {variable.name: None for variable in role.variables if not variable.ghost}
        depths = history_depths(role, dict(parameters))
        self.history: dict[str, list[Maybe]] = {name: [None] * depth for name, depth in depths.items()}
        self.held: dict[str, bool | None] = {
            channel.name: None if role.place in channel.source_places() else False for channel in protocol.channels
        }

    @property
    def complete(self) -> bool:
        """Whether everything is known."""
        values = (*self.variables.values(), *self.held.values(), *(v for past in self.history.values() for v in past))
        return None not in values

    def memory(self) -> RankMemory:
        """The state for the fast replay; only when complete."""
        memory = RankMemory(self._protocol, self._role, self._parameters)
        memory.n = self.n
        values = memory.__dict__
        values.update({f"v_{name}": value for name, value in self.variables.items()})
        values.update({f"held_{name}": value for name, value in self.held.items()})
        for name, past in self.history.items():
            values[f"h_{name}"].clear()
            values[f"h_{name}"].extend(past)
        return memory

    def replay(self, trace: RankTrace, first: int) -> tuple[int, str]:
        """Replay from record `first` until all is known: the next record and location there. Raises `Divergence`."""
        location = self._role.start
        for index in range(first, len(trace)):
            if self.complete:
                return index, location
            row = self._role.rows[int(trace.rows[index])]
            try:
                if row.at != location:
                    wrong_order(self._role, location, int(trace.rows[index]))
                if int(trace.passes[index]) != self.n:
                    raise Wrong(f"pass {self.n}", f"pass {int(trace.passes[index])}")
                self._decide(location, row.name)
                last = index == len(trace) - 1
                waits = isinstance(row.operation, Await) or records_outcome(row)
                if last and waits and not trace.done[index]:
                    break
                if records_outcome(row) and not trace.done[index]:
                    raise Wrong("what its operation obtained", "a row that was left without it")
                self._perform(row.name, trace.fields[index].tolist())
            except Wrong as wrong:
                time, this_pass = int(trace.times[index]), int(trace.passes[index])
                raise Divergence(trace.header.rank, this_pass, row.name, wrong.expected, wrong.found, time) from None
            location = row.to
        return len(trace), location

    def _decide(self, location: str, name: str) -> None:
        """The guard of row `name` may be true and those of the others at `location` false; learn that it is so."""
        for row in self._role.rows_at(location):
            value = self._value(row.guard, {})
            if row.name == name and value is False:
                raise Wrong("a row whose guard holds", f"its guard {show(row.guard)} is false")
            if row.name != name and value is True:
                raise Wrong(f"row {row.name!r}", f"row {name!r}")
            self._learn(row.guard, row.name == name)

    def _perform(self, name: str, fields: list[int]) -> None:
        row = self._role.row(name)
        domains = field_domains(self._protocol, row)
        got: dict[str, Value] = {
            field: _decode(domain, fields[position]) for position, (field, domain) in enumerate(domains)
        }
        operation = row.operation
        wanted = operation.fields if isinstance(operation, Post) else ()
        wanted = operation.expect if isinstance(operation, Receive) else wanted
        for field, expr in wanted:
            expected = self._value(expr, got)
            if expected is not None and expected != got[field]:
                raise Wrong(f"{field} = {expected}", f"{field} = {got[field]}")
            self._learn(Op("eq", (expr, Const(got[field]))), True)
        if isinstance(operation, Post) and operation.handle == "keep":
            if self.held[operation.channel] is True:
                raise Wrong("the last handle awaited", "it is still held")
            self.held[operation.channel] = True
        if isinstance(operation, Await):
            if self.held[operation.channel] is False:
                raise Wrong("a handle", "none is held")
            self.held[operation.channel] = False
        self.variables |= {target: self._value(expr, got) for target, expr in row.effects if target in self.variables}
        if row.advances:
            for variable, past in self.history.items():
                past.insert(0, self.variables[variable])
                past.pop()
            self.n += 1

    def _learn(self, expr: Expr, truth: bool) -> None:
        """Take over what follows from `expr` being `truth`, where it is plain."""
        if isinstance(expr, Var) and self.variables[expr.name] is None:
            self.variables[expr.name] = truth
        elif isinstance(expr, Posted) and self.held[expr.channel] is None:
            self.held[expr.channel] = truth
        elif isinstance(expr, Past):
            self._learn_past(expr, truth)
        elif isinstance(expr, Op) and expr.kind == "not":
            self._learn(expr.args[0], not truth)
        elif isinstance(expr, Op) and expr.kind == ("and" if truth else "or"):
            for part in expr.args:
                self._learn(part, truth)
        elif isinstance(expr, Op) and expr.kind == "eq" and truth:
            for left, right in (expr.args, expr.args[::-1]):
                value = self._value(right, {})
                if value is not None and isinstance(left, Var) and self.variables[left.name] is None:
                    self.variables[left.name] = value
                elif value is not None and isinstance(left, Past):
                    self._learn_past(left, value)

    def _learn_past(self, expr: Past, value: Value) -> None:
        lag = static_value(expr.lag, self._parameters)
        if lag and self.history[expr.name][lag - 1] is None:
            self.history[expr.name][lag - 1] = value
        elif not lag and self.variables[expr.name] is None:
            self.variables[expr.name] = value

    def _value(self, expr: Expr, got: Mapping[str, Maybe]) -> Maybe:
        if isinstance(expr, Const):
            return expr.value
        if isinstance(expr, Var):
            return self.variables[expr.name]
        if isinstance(expr, Param):
            return self._parameters[expr.name]
        if isinstance(expr, Got):
            return got[expr.field]
        if isinstance(expr, Past):
            lag = static_value(expr.lag, self._parameters)
            return self.history[expr.name][lag - 1] if lag else self.variables[expr.name]
        if isinstance(expr, Posted):
            return self.held[expr.channel]
        if isinstance(expr, ThisPass):
            return self.n
        if isinstance(expr, Slot):
            return self.n % self._parameters["L"]
        if isinstance(expr, Op):
            return _operate(expr.kind, [self._value(arg, got) for arg in expr.args])
        raise SpecError(f"not an expression: {expr!r}")


def _operate(kind: str, values: list[Maybe]) -> Maybe:
    """An operator over values that may be unknown."""
    first = values[0]
    if kind == "ite":
        if first is None:
            return values[1] if values[1] == values[2] else None
        return values[1] if first else values[2]
    if kind == "and" and False in [value for value in values if value is not None]:
        return False
    if kind == "or" and True in [value for value in values if value is not None]:
        return True
    if None in values:
        return None
    if kind == "not":
        return not first
    if kind in ("and", "or"):
        return kind == "and"
    second = values[1]
    if kind == "eq":
        return first == second
    left, right = int(first or 0), int(second or 0)
    return {"lt": left < right, "le": left <= right, "add": left + right, "sub": left - right}[kind]


def _decode(domain: Domain, value: int) -> Value:
    if isinstance(domain, Bool):
        return value == 1
    return domain.names[value] if isinstance(domain, Enum) else value


def first_boundary(trace: RankTrace) -> int:
    """The first record after a row that ended a pass; the number of records when there is none."""
    ends = [index for index, row in enumerate(trace.role.rows) if row.advances]
    found = [int(i) for i in (trace.rows[:, None] == ends).any(axis=1).nonzero()[0][:1]]
    return found[0] + 1 if found else len(trace)
