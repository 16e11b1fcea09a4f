"""Replays a rank whose state is known: one generated Python function a row."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.spec.language import (
    TRUE,
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
    Range,
    Slot,
    SpecError,
    ThisPass,
    Var,
    show,
    static_value,
)
from headway.spec.table import Await, Local, Post, Protocol, Receive, Role, Row, history_depths
from headway.verification.conform.divergence import Divergence
from headway.verification.conform.trace import RankTrace

_INFIX = {"and": "and", "or": "or", "eq": "==", "lt": "<", "le": "<=", "add": "+", "sub": "-"}


class RankMemory:
    """A rank's variables `v_*`, their histories `h_*`, its handles `held_*`, and its pass `n`."""

    def __init__(self, protocol: Protocol, role: Role, parameters: Mapping[str, int]) -> None:
        self.n = 0
        values = self.__dict__
        for variable in role.variables:
            values[f"v_{variable.name}"] = variable.initial
        for name, depth in history_depths(role, dict(parameters)).items():
            values[f"h_{name}"] = deque([role.variable(name).initial] * depth, maxlen=depth)
        for channel in protocol.channels:
            values[f"held_{channel.name}"] = False

    def shown(self, expr: Expr) -> str:
        """The present values of what an expression reads."""
        names = [name for name in self.__dict__ if name.startswith(("v_", "held_"))]
        read = [name for name in names if name.split("_", 1)[1] in show(expr)]
        return ", ".join(f"{name.removeprefix('v_')} = {self.__dict__[name]}" for name in read)


@dataclass(frozen=True)
class Replayer:
    """The compiled check of each row of a role, and what it leads to."""

    protocol: Protocol
    role: Role
    parameters: Mapping[str, int]
    guards: tuple[Callable[[RankMemory], bool], ...]
    checks: tuple[Callable[[RankMemory, list[int]], None], ...]
    outcome: tuple[bool, ...]  # whether the row's operation records what it obtained

    @classmethod
    def of(cls, protocol: Protocol, rank: int, ranks: int, slots: int) -> Replayer:
        """For one rank of a pipeline."""
        role = protocol.role_of(rank, ranks)
        parameters = {"P": ranks, "L": slots, "R": rank}
        lines: list[str] = []
        for index, row in enumerate(role.rows):
            lines += [f"def guard_{index}(s):", f"    return {source(row.guard, parameters)}"]
            lines += [f"def check_{index}(s, f):", *(f"    {line}" for line in _body(protocol, role, row, parameters))]
        names: dict[str, Any] = {"wrong": wrong}
        exec(compile("\n".join(lines), f"<replay of {protocol.name}, {role.name}>", "exec"), names)
        indices = range(len(role.rows))
        return cls(
            protocol,
            role,
            parameters,
            tuple(names[f"guard_{index}"] for index in indices),
            tuple(names[f"check_{index}"] for index in indices),
            tuple(records_outcome(row) for row in role.rows),
        )

    def replay(self, trace: RankTrace, memory: RankMemory, first: int, location: str) -> None:
        """Replay from record `first`, where the rank is at `location`; raises `Divergence`."""
        role, guards, checks, outcome = self.role, self.guards, self.checks, self.outcome
        at, to = [row.at for row in role.rows], [row.to for row in role.rows]
        rows, passes = trace.rows[first:].tolist(), trace.passes[first:].tolist()
        done, fields = trace.done[first:].tolist(), trace.fields[first:].tolist()
        last = len(rows) - 1
        index = 0
        try:
            for index, row in enumerate(rows):
                if at[row] != location:
                    wrong_order(role, location, row)
                if passes[index] != memory.n:
                    raise Wrong(f"pass {memory.n}", f"pass {passes[index]}")
                if not guards[row](memory):
                    self._wrong_guard(memory, location, role.rows[row])
                if outcome[row] and not done[index]:
                    if index == last:
                        return  # the rank is inside this row
                    raise Wrong("what its operation obtained", "a row that was left without it")
                if index == last and not done[index] and isinstance(role.rows[row].operation, Await):
                    return
                checks[row](memory, fields[index])
                location = to[row]
        except Wrong as wrong:
            name = role.rows[rows[index]].name
            time = int(trace.times[first + index])
            raise Divergence(trace.header.rank, passes[index], name, wrong.expected, wrong.found, time) from None

    def _wrong_guard(self, memory: RankMemory, location: str, row: Row) -> None:
        pairs = zip(self.role.rows, self.guards, strict=True)
        held = [repr(other.name) for other, guard in pairs if other.at == location and guard(memory)]
        found = f"it, though not {show(row.guard, True)}: {memory.shown(row.guard)}"
        raise Wrong(f"row {held[0]}" if held else "no row", found)


class Wrong(Exception):
    """What was expected of a record, and what was found."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected, self.found = expected, found


def wrong_order(role: Role, location: str, row: int) -> None:
    """Raise what is wrong when a rank at `location` performs row `row` of another place."""
    expected = " or ".join(repr(r.name) for r in role.rows_at(location)) or "nothing, since the rank has ended"
    raise Wrong(expected, repr(role.rows[row].name))


def wrong(expected: str, found: object) -> None:
    """Raise `Wrong`."""
    raise Wrong(expected, str(found))


def records_outcome(row: Row) -> bool:
    """Whether the row's operation records what it obtained."""
    return isinstance(row.operation, Receive) or (isinstance(row.operation, Local) and bool(row.operation.returns))


def field_domains(protocol: Protocol, row: Row) -> tuple[tuple[str, Domain], ...]:
    """The recorded fields of a row, in order."""
    operation = row.operation
    if isinstance(operation, Post | Receive):
        return protocol.channel(operation.channel).fields
    return operation.returns if isinstance(operation, Local) else ()


def decoded(position: int, domain: Domain) -> str:
    """Source of a recorded field's value."""
    if isinstance(domain, Bool):
        return f"(f[{position}] == 1)"
    return f"{domain.names!r}[f[{position}]]" if isinstance(domain, Enum) else f"f[{position}]"


def _body(protocol: Protocol, role: Role, row: Row, parameters: Mapping[str, int]) -> list[str]:
    operation, lines = row.operation, []
    domains = field_domains(protocol, row)
    for position, (name, domain) in enumerate(domains):
        inside = _inside(f"f[{position}]", domain, parameters)
        if inside:
            lines.append(f"if not ({inside}): wrong('a value of {name}', f[{position}])")
    got = {name: decoded(position, domain) for position, (name, domain) in enumerate(domains)}
    if isinstance(operation, Post):
        for name, expr in operation.fields:
            lines += _compare(name, got[name], source(expr, parameters))
        if operation.handle == "keep":
            held = f"s.held_{operation.channel}"
            lines += [f"if {held}: wrong('the last handle awaited', 'it is still held')", f"{held} = True"]
    elif isinstance(operation, Receive):
        for name, expr in operation.expect:
            lines += _compare(name, got[name], source(expr, parameters, got))
    elif isinstance(operation, Await):
        held = f"s.held_{operation.channel}"
        lines += [f"if not {held}: wrong('a handle', 'none is held')", f"{held} = False"]
    if row.effects:
        targets = ", ".join(f"s.v_{name}" for name, _ in row.effects)
        lines.append(f"{targets} = {', '.join(source(expr, parameters, got) for _, expr in row.effects)}")
    if row.advances:
        lines += [f"s.h_{name}.appendleft(s.v_{name})" for name in history_depths(role, dict(parameters))]
        lines.append("s.n += 1")
    return lines or ["pass"]


def _compare(name: str, found: str, expected: str) -> list[str]:
    return [f"if {found} != {expected}: wrong('{name} = %s' % ({expected},), '{name} = %s' % ({found},))"]


def _inside(value: str, domain: Domain, parameters: Mapping[str, int]) -> str:
    if isinstance(domain, Bool):
        return f"0 <= {value} <= 1"
    if isinstance(domain, Enum):
        return f"0 <= {value} < {len(domain.names)}"
    if isinstance(domain, Range):
        return f"{static_value(domain.low, parameters)} <= {value} <= {static_value(domain.high, parameters)}"
    return ""


def source(expr: Expr, parameters: Mapping[str, int], got: Mapping[str, str] | None = None) -> str:
    """The expression in Python, over a `RankMemory` called `s`; `got` gives the source of each recorded field."""
    if expr == TRUE:
        return "True"
    if isinstance(expr, Const):
        return repr(expr.value)
    if isinstance(expr, Var):
        return f"s.v_{expr.name}"
    if isinstance(expr, Param):
        return str(parameters[expr.name])
    if isinstance(expr, Got):
        if got is None:
            raise SpecError(f"{show(expr)} is read before the operation")
        return got[expr.field]
    if isinstance(expr, Past):
        lag = static_value(expr.lag, parameters)
        return f"s.h_{expr.name}[{lag - 1}]" if lag else f"s.v_{expr.name}"
    if isinstance(expr, Posted):
        return f"s.held_{expr.channel}"
    if isinstance(expr, ThisPass):
        return "s.n"
    if isinstance(expr, Slot):
        return f"(s.n % {parameters['L']})"
    if isinstance(expr, Op):
        args = [source(arg, parameters, got) for arg in expr.args]
        if expr.kind == "not":
            return f"(not {args[0]})"
        if expr.kind == "ite":
            return f"({args[1]} if {args[0]} else {args[2]})"
        return f"({args[0]} {_INFIX[expr.kind]} {args[1]})"
    raise SpecError(f"not an expression: {expr!r}")
