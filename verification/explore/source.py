"""A role compiled to Python for one rank of an instance: one function a location, and one for each receive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.spec.language import (
    Bool,
    Const,
    Domain,
    Enum,
    Expr,
    Got,
    Identity,
    Op,
    Param,
    Past,
    Posted,
    Range,
    Slot,
    SpecError,
    ThisPass,
    Value,
    Var,
    static_value,
)
from headway.spec.table import Await, Collective, Gate, Local, Post, Probe, Receive, Row, domain_values
from headway.verification.model import Model

_INFIX = {"and": "and", "or": "or", "eq": "==", "lt": "<", "le": "<=", "add": "+", "sub": "-"}
_HANDLES = {"keep": 0, "drop": 1, "overwrite": 2}


@dataclass(frozen=True)
class Program:
    """`at[k](state)` says what the rank does at location k: (row, kind, target, detail, handle, states after)."""

    initial: tuple[Value, ...]
    at: tuple[Callable[[Any], Any], ...]


@dataclass(frozen=True)
class RoleSource:
    """The Python text of a program and the state it starts from."""

    text: str
    initial: tuple[Value, ...]
    locations: int

    def load(self) -> Program:
        """Compile the text."""
        scope: dict[str, Any] = {}
        exec(compile(self.text, "<role>", "exec"), scope)  # the text is ours: expressions of a checked table
        return Program(self.initial, tuple(scope[f"at_{i}"] for i in range(self.locations)))


def role_source(model: Model, rank: int, collectives: tuple[str, ...]) -> RoleSource:
    """Compile the role of one rank."""
    return _Compiler(model, rank, collectives).compile()


class _Compiler:
    def __init__(self, model: Model, rank: int, collectives: tuple[str, ...]) -> None:
        self.model, self.rank, self.role = model, rank, model.roles[rank]
        self.parameters, self.depths = model.parameters[rank], model.depths[rank]
        self.names = [variable.name for variable in self.role.variables]
        self.channels = [channel.name for channel in model.protocol.channels]
        self.collectives = collectives
        self.lines: list[str] = []

    def compile(self) -> RoleSource:
        locations = {name: i for i, name in enumerate(self.role.locations)}
        for name, i in locations.items():
            self._location(name, i, locations)
        initial: list[Value] = [locations[self.role.start], 0, *(v.initial for v in self.role.variables)]
        for name, depth in self.depths.items():
            initial += [self.role.variable(name).initial] * depth
        return RoleSource("\n".join(self.lines), (*initial, 0, 0), len(locations))

    # --- layout of a local state -----------------------------------------------------------------------------

    def _state(self, location: str, effects: dict[str, str], row: Row, held: str, turns: str) -> str:
        """The tuple after a row, from the unpacked names of the state before it."""
        after = {name: effects.get(name, f"v{i}") for i, name in enumerate(self.names)}
        history = []
        for name, depth in self.depths.items():
            old = [f"h{self.names.index(name)}_{lag}" for lag in range(1, depth + 1)]
            history += [after[name], *old[:-1]] if row.advances else old
        this_pass = f"(n + 1) % {self.model.window}" if row.advances else "n"
        return f"({', '.join([location, this_pass, *after.values(), *history, held, turns])},)"

    def _unpack(self) -> str:
        history = [
            f"h{self.names.index(name)}_{lag}" for name, depth in self.depths.items() for lag in range(1, depth + 1)
        ]
        return ", ".join(["_", "n", *(f"v{i}" for i in range(len(self.names))), *history, "held", "turns"])

    def _bit(self, channel: str) -> int:
        return 1 << self.channels.index(channel)

    # --- rows ------------------------------------------------------------------------------------------------

    def _location(self, name: str, number: int, locations: dict[str, int]) -> None:
        rows = self.role.rows_at(name) if name != self.role.end else ()
        for row in rows:
            if isinstance(row.operation, Receive):
                self._take(row, locations)
        self.lines += [f"def at_{number}(s):", f"    {self._unpack()} = s"]
        if not rows:
            self.lines.append("    return -1, 7, 0, 0, 0, ()")
            return
        for i, row in enumerate(rows):
            self.lines.append(f"    r{i} = bool({self._expr(row.guard)})")
        total = " + ".join(f"r{i}" for i in range(len(rows)))
        self.lines += [f"    if {total} != 1:", f"        raise ValueError({f'guards at {name!r} overlap or miss'!r})"]
        for i, row in enumerate(rows):
            self.lines.append(f"    if r{i}:")
            index = self.role.rows.index(row)
            body = [line.replace("return ", f"return {index}, ") for line in self._row(row, locations)]
            self.lines += [f"        {line}" for line in body]

    def _row(self, row: Row, locations: dict[str, int]) -> list[str]:
        operation, network, to = row.operation, self.model.network, str(locations[row.to])
        if isinstance(operation, Receive):
            edge = network.incoming[self.rank, operation.channel]
            fields = [name for name, _ in self.model.protocol.channel(operation.channel).fields]
            shape = tuple(fields.index(name) for name, _ in operation.expect)
            key = "".join(f"{self._expr(expr)}, " for _, expr in operation.expect)
            return [f"return 3, {edge}, ({shape}, ({key}), take_{self.role.rows.index(row)}), 0, ()"]
        if isinstance(operation, Post):
            return self._post(row, operation, to)
        if isinstance(operation, Await):
            edge, bit = network.outgoing[self.rank, operation.channel], self._bit(operation.channel)
            held = self._after(row, to, f"held & ~{bit}", "turns")
            missing = (
                self._after(row, to, "held", "turns")
                if self.model.forgetful(self.rank, operation.channel)
                else ["after = None"]
            )
            return [
                f"if held & {bit}:",
                *(f"    {line}" for line in held),
                f"    return 2, {edge}, 0, 0, (after,)",
                *missing,
                "return 0, 0, 0, 0, (after,)",
            ]
        if isinstance(operation, Gate | Probe):
            edge = network.incoming[self.rank, operation.channel]
            facts = f"{edge}, {int(operation.counter == 'sent')}, {int(operation.scope == 'wire')}"
            if isinstance(operation, Gate):
                return [*self._after(row, to, "held", "turns"), f"return 4, {facts}, (after,)"]
            lines = []
            for ready in (False, True):
                lines += [f"g_ready = {ready}", *self._after(row, to, "held", "turns"), f"after_{ready} = after"]
            return [*lines, f"return 5, {facts}, (after_False, after_True)"]
        if isinstance(operation, Collective):
            index = self.collectives.index(operation.name)
            return [
                *self._after(row, to, "held", f"turns ^ {1 << index}"),
                f"return 6, {index}, (turns >> {index}) & 1, 0, (after,)",
            ]
        if isinstance(operation, Local) and operation.returns:
            return self._local(row, operation, to)
        lines = self._after(row, to, "held", "turns")
        if isinstance(operation, Local):
            return [f"if not ({self._expr(row.assume)}):", "    return 0, 0, 0, 0, ()", *lines, _MOVED]
        return [*lines, _MOVED]

    def _local(self, row: Row, operation: Local, to: str) -> list[str]:
        lines, indent = ["out = []"], ""
        for name, domain in operation.returns:
            values = domain_values(domain, self.parameters, self.model.window)
            lines.append(f"{indent}for g_{name} in {values!r}:")
            indent += "    "
        body = [f"if {self._expr(row.assume)}:"]
        body += [f"    {line}" for line in [*self._after(row, to, "held", "turns"), "out.append(after)"]]
        return [*lines, *(indent + line for line in body), "return 0, 0, 0, 0, out"]

    def _post(self, row: Row, operation: Post, to: str) -> list[str]:
        network, channel = self.model.network, operation.channel
        edge, bit, given = network.outgoing[self.rank, channel], self._bit(channel), dict(operation.fields)
        fields = "".join(f"{self._expr(given[name])}, " for name, _ in self.model.protocol.channel(channel).fields)
        forgets = network.forgets(edge, operation)
        after = self._after(row, to, "held" if forgets else f"held | {bit}", "turns")
        handle = f"2 if held & {bit} else {int(forgets)}" if operation.handle == "overwrite" else f"{int(forgets)}"
        custody = [] if operation.handle == "overwrite" else [f"if held & {bit}:", "    after = None"]
        return [*after, *custody, f"return 1, {edge}, ({fields}), {handle}, (after,)"]

    def _take(self, row: Row, locations: dict[str, int]) -> None:
        operation = row.operation
        if not isinstance(operation, Receive):
            raise SpecError(f"row {row.name!r} receives nothing")
        fields = [f"g_{name}" for name, _ in self.model.protocol.channel(operation.channel).fields]
        self.lines += [f"def take_{self.role.rows.index(row)}(s, m):", f"    {self._unpack()} = s"]
        if fields:
            self.lines.append(f"    {', '.join(fields)}, = m")
        self.lines += [f"    {line}" for line in self._after(row, str(locations[row.to]), "held", "turns")]
        self.lines.append("    return after")

    def _after(self, row: Row, to: str, held: str, turns: str) -> list[str]:
        """Lines that set `after` to the state after the row, or to None when a value leaves its domain."""
        lines, effects, checks = [], {}, []
        for i, (name, expr) in enumerate(row.effects):
            lines.append(f"e{i} = {self._expr(expr)}")
            effects[name] = f"e{i}"
            check = self._within(f"e{i}", self.role.variable(name).domain)
            if check:
                checks.append(check)
        state = self._state(to, effects, row, held, turns)
        if checks:
            return [*lines, f"after = {state} if {' and '.join(checks)} else None"]
        return [*lines, f"after = {state}"]

    def _within(self, value: str, domain: Domain) -> str:
        if isinstance(domain, Bool):
            return ""
        if isinstance(domain, Enum):
            return f"{value} in {domain.names!r}"
        if isinstance(domain, Range):
            low, high = static_value(domain.low, self.parameters), static_value(domain.high, self.parameters)
            return f"{low} <= {value} <= {high}"
        if isinstance(domain, Identity):
            return f"0 <= {value} < {domain.model_values}"
        return f"0 <= {value} < {self.model.window}"

    # --- expressions -----------------------------------------------------------------------------------------

    def _expr(self, expr: Expr) -> str:
        if isinstance(expr, Const):
            return repr(expr.value)
        if isinstance(expr, Var):
            return f"v{self.names.index(expr.name)}"
        if isinstance(expr, Param):
            return str(self.parameters[expr.name])
        if isinstance(expr, Got):
            return f"g_{expr.field}"
        if isinstance(expr, Past):
            lag, index = static_value(expr.lag, self.parameters), self.names.index(expr.name)
            return f"h{index}_{lag}" if lag else f"v{index}"
        if isinstance(expr, Posted):
            return f"(held & {self._bit(expr.channel)} != 0)"
        if isinstance(expr, ThisPass):
            return "n"
        if isinstance(expr, Slot):
            return f"(n % {self.parameters['L']})"
        if isinstance(expr, Op):
            return self._operator(expr)
        raise SpecError(f"not an expression: {expr!r}")

    def _operator(self, expr: Op) -> str:
        args = [self._expr(arg) for arg in expr.args]
        if expr.kind == "not":
            return f"(not {args[0]})"
        if expr.kind == "ite":
            return f"({args[1]} if {args[0]} else {args[2]})"
        text = f"({args[0]} {_INFIX[expr.kind]} {args[1]})"
        return f"({text} % {self.model.window})" if expr.kind in ("add", "sub") and _is_pass(expr) else text


def _is_pass(expr: Expr) -> bool:
    while isinstance(expr, Op) and expr.kind in ("add", "sub"):
        expr = expr.args[0]
    return isinstance(expr, ThisPass)


_MOVED = "return 0, 0, 0, 0, (after,)"
