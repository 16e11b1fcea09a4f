"""Compiles the table for one rank into Python: one function a location, one branch a row.

The generated source is the whole loop body; `Program.source` shows it. Each function performs the operation of the row
whose guard holds, applies its effects at once, and returns the next location's function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from headway.engine.loop.expressions import python_source
from headway.spec.language import TRUE, Bool, Domain, Enum, Expr, Range, SpecError, static_value
from headway.spec.table import Await, Gate, Local, Post, Protocol, Receive, Role, Row, history_depths


@dataclass(frozen=True)
class Program:
    """The table for rank `rank` of `ranks` with `slots` slots, compiled from `protocol`."""

    protocol: Protocol
    role: Role
    rank: int
    ranks: int
    slots: int
    source: str

    @cached_property
    def parameters(self) -> dict[str, int]:
        """The parameters of this instance."""
        return {"P": self.ranks, "L": self.slots, "R": self.rank}

    @cached_property
    def bindings(self) -> tuple[str, ...]:
        """Names of the bindings that the role's local rows call."""
        return tuple(dict.fromkeys(row.operation.binding for row in self.role.rows if isinstance(row.operation, Local)))

    @cached_property
    def posts(self) -> tuple[str, ...]:
        """Channels that this rank posts on."""
        return self._channels(Post)

    @cached_property
    def receives(self) -> tuple[str, ...]:
        """Channels that this rank receives from."""
        return self._channels(Receive)

    def _channels(self, kind: type[Post] | type[Receive]) -> tuple[str, ...]:
        used = {row.operation.channel for row in self.role.rows if isinstance(row.operation, kind)}
        return tuple(channel.name for channel in self.protocol.channels if channel.name in used)

    def row_index(self, name: str) -> int:
        """Index of a row in the role, as the recorder writes it."""
        return [row.name for row in self.role.rows].index(name)


def compile_program(protocol: Protocol, rank: int, ranks: int, slots: int, faulty: bool = False) -> Program:
    """Compile; raises `SpecError` when slots are below ranks or the table cannot run (it reads a ghost variable).

    A post that does not keep its handle, and fewer slots than ranks, are allowed in a `faulty` table that is replayed.
    """
    role = protocol.role_of(rank, ranks)
    if not faulty:
        if slots < ranks:
            raise SpecError(f"slots = {slots} is below ranks = {ranks}; allowed: {ranks} or more")
        for row in role.rows:
            if isinstance(row.operation, Post) and row.operation.handle != "keep":
                raise SpecError(f"row {row.name!r}: a post that does not keep its handle exists in models only")
    ghosts = [variable.name for variable in role.variables if variable.ghost]
    if ghosts:
        raise SpecError(f"table {protocol.name!r}: variable {ghosts[0]!r} exists in models only; it cannot run")
    _check_names(protocol, role)
    parameters = {"P": ranks, "L": slots, "R": rank}
    depths = history_depths(role, parameters)
    lines = _state_source(protocol, role, depths)
    numbers = {location: number for number, location in enumerate(role.locations)}
    for location in role.locations:
        if location != role.end:
            lines += _location_source(protocol, role, location, numbers, parameters, depths)
    lines += ["", f"at_{numbers[role.end]} = None", f"start = at_{numbers[role.start]}"]
    return Program(protocol, role, rank, ranks, slots, "\n".join(lines) + "\n")


def _check_names(protocol: Protocol, role: Role) -> None:
    """Names become parts of Python names."""
    local = [row.operation for row in role.rows if isinstance(row.operation, Local)]
    for what, names in (
        ("channel", [channel.name for channel in protocol.channels]),
        ("field", [name for channel in protocol.channels for name, _ in channel.fields]),
        ("register", protocol.registers),
        ("variable", [variable.name for variable in role.variables]),
        ("binding", [operation.binding for operation in local]),
        ("field", [name for operation in local for name, _ in operation.returns]),
    ):
        for name in names:
            if not name.isidentifier():
                raise SpecError(f"table {protocol.name!r}, {what} {name!r}: not a name that can be compiled")


def _state_source(protocol: Protocol, role: Role, depths: Mapping[str, int]) -> list[str]:
    held = [f"held_{channel.name}" for channel in protocol.channels]
    registers = [f"r_{name}" for name in protocol.registers]
    variables = [f"v_{variable.name}" for variable in role.variables]
    histories = [f"h_{name}" for name in depths]
    return [
        "class State:",
        f"    __slots__ = {('n', *variables, *histories, *held, *registers)!r}",
        "    def __init__(self):",
        "        self.n = 0",
        *(f"        self.v_{variable.name} = {variable.initial!r}" for variable in role.variables),
        *(
            f"        self.h_{name} = deque([{role.variable(name).initial!r}] * {depth}, maxlen={depth})"
            for name, depth in depths.items()
        ),
        *(f"        self.{name} = False" for name in held),
        *(f"        self.{name} = None" for name in registers),
    ]


def _location_source(
    protocol: Protocol,
    role: Role,
    location: str,
    numbers: Mapping[str, int],
    parameters: Mapping[str, int],
    depths: Mapping[str, int],
) -> list[str]:
    lines = ["", f"def at_{numbers[location]}(s):", f"    # {location}"]
    rows = role.rows_at(location)
    for row in rows:
        body = [*_row_source(protocol, role, row, parameters, depths), f"return at_{numbers[row.to]}"]
        if row.guard == TRUE:
            return [*lines, *(f"    {line}" for line in body)]
        lines += [f"    if {python_source(row.guard, parameters)}:", *(f"        {line}" for line in body)]
    return [*lines, f"    broken({role.rows.index(rows[-1])}, s.n, 'no guard holds')"]


def _row_source(
    protocol: Protocol, role: Role, row: Row, parameters: Mapping[str, int], depths: Mapping[str, int]
) -> list[str]:
    index = role.rows.index(row)
    operation = row.operation
    if isinstance(operation, Post):
        lines = _post_source(protocol, operation, index, parameters)
    elif isinstance(operation, Receive):
        lines = _receive_source(protocol, operation, index, parameters)
    elif isinstance(operation, Await):
        name = operation.channel
        lines = [f"enter({index}, s.n)"]
        if not _drops(role, name):
            lines.append(f"if not s.held_{name}: broken({index}, s.n, 'no handle is held')")
        lines += [f"wait_{name}()", f"s.held_{name} = False"]
    elif isinstance(operation, Gate):
        lines = [f"enter({index}, s.n)", f"gate_{operation.channel}({index}, s.n)"]
    elif isinstance(operation, Local):
        lines = _local_source(operation, index, parameters)
    elif operation is None:
        lines = [f"enter({index}, s.n)"]
    else:
        raise SpecError(f"row {row.name!r}: {type(operation).__name__} exists in models only; no engine runs it")
    if row.effects:
        targets = ", ".join(f"s.v_{name}" for name, _ in row.effects)
        values = ", ".join(python_source(expr, parameters) for _, expr in row.effects)
        lines.append(f"{targets} = {values}")
    if row.advances:
        lines += [f"s.h_{name}.appendleft(s.v_{name})" for name in depths]
        lines.append("s.n += 1")
    return lines


def _post_source(protocol: Protocol, operation: Post, index: int, parameters: Mapping[str, int]) -> list[str]:
    channel = protocol.channel(operation.channel)
    given = dict(operation.fields)
    fields = "".join(f"{_encode(python_source(given[name], parameters), domain)}, " for name, domain in channel.fields)
    payload = f"s.r_{channel.payload}" if channel.payload else "None"
    return [
        f"fields = ({fields})",
        f"enter({index}, s.n, *fields)",
        *_custody(operation, index),
        f"post_{channel.name}(fields, {payload})",
        *([f"forget_{channel.name}()"] if operation.handle == "drop" else ()),
    ]


def _custody(operation: Post, index: int) -> list[str]:
    """What becomes of the last handle, and of the new one."""
    held = f"s.held_{operation.channel}"
    if operation.handle == "drop":
        return []
    if operation.handle == "overwrite":
        return [f"if {held}: forget_{operation.channel}()", f"{held} = True"]
    return [f"if {held}: broken({index}, s.n, 'the last handle is not awaited')", f"{held} = True"]


def _drops(role: Role, channel: str) -> bool:
    """Whether some post of the role on `channel` keeps no handle."""
    operations = [row.operation for row in role.rows]
    return any(isinstance(o, Post) and o.channel == channel and o.handle == "drop" for o in operations)


def _receive_source(protocol: Protocol, operation: Receive, index: int, parameters: Mapping[str, int]) -> list[str]:
    channel = protocol.channel(operation.channel)
    payload = f"s.r_{channel.payload}" if channel.payload else "_"
    names = [name for name, _ in channel.fields]
    lines = [f"enter({index}, s.n)", f"fields, payload = receive_{channel.name}()"]
    lines += [f"got_{name} = {_decode(f'fields[{i}]', domain)}" for i, (name, domain) in enumerate(channel.fields)]
    lines.append(f"done({', '.join(f'fields[{i}]' for i in range(len(names)))})")
    for name, expr in operation.expect:
        source = python_source(expr, parameters)
        lines.append(f"if got_{name} != {source}: broken({index}, s.n, wrong({name!r}, got_{name}, {source}))")
    return [*lines, f"{payload} = payload"]


def _local_source(operation: Local, index: int, parameters: Mapping[str, int]) -> list[str]:
    inputs = [python_source(read, parameters) if isinstance(read, Expr) else f"s.r_{read}" for read in operation.reads]
    outputs = [f"s.r_{name}" for name in operation.writes] + [f"got_{name}" for name, _ in operation.returns]
    call = f"call_{operation.binding}({', '.join(inputs)})"
    lines = [f"enter({index}, s.n)", f"{', '.join(outputs)} = {call}" if outputs else call]
    for name, domain in operation.returns:
        check = _domain_check(f"got_{name}", domain, parameters)
        lines.append(f"if not ({check}): broken({index}, s.n, outside({name!r}, got_{name}))")
    if operation.returns:
        lines.append(f"done({', '.join(_encode(f'got_{name}', domain) for name, domain in operation.returns)})")
    return lines


def _encode(source: str, domain: Domain) -> str:
    """Source that turns a value into the integer that travels and is recorded."""
    if isinstance(domain, Enum):
        return f"{ {name: code for code, name in enumerate(domain.names)}!r}[{source}]"
    return f"int({source})" if isinstance(domain, Bool) else source


def _decode(source: str, domain: Domain) -> str:
    if isinstance(domain, Enum):
        return f"{domain.names!r}[{source}]"
    return f"{source} == 1" if isinstance(domain, Bool) else source


def _domain_check(source: str, domain: Domain, parameters: Mapping[str, int]) -> str:
    if isinstance(domain, Bool):
        return f"{source} is True or {source} is False"
    if isinstance(domain, Enum):
        return f"{source} in {domain.names!r}"
    if isinstance(domain, Range):
        low, high = static_value(domain.low, parameters), static_value(domain.high, parameters)
        return f"type({source}) is int and {low} <= {source} <= {high}"
    return f"type({source}) is int"
