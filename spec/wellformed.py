"""What every table must satisfy before anything reads it; each fault is an error that names the row.

Checked here by enumeration over small instances; the prover shows the same for all values.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import get_args

import networkx

from headway.spec.language import (
    Domain,
    Environment,
    Expr,
    Got,
    Past,
    Posted,
    Scope,
    Slot,
    SpecError,
    ThisPass,
    Value,
    Var,
    domain_type,
    evaluate,
    show,
    static_value,
    type_of,
    unify,
    walk,
)
from headway.spec.table import (
    Await,
    Channel,
    Fields,
    Gate,
    Kind,
    Local,
    Path,
    Post,
    Probe,
    Protocol,
    Receive,
    Role,
    Row,
    domain_values,
    row_expressions,
)

_INSTANCES = ({"P": 2, "L": 2}, {"P": 3, "L": 4})
_MOST_VALUATIONS = 1 << 20


def check(protocol: Protocol) -> None:
    """Raise `SpecError` for the first fault found, naming table, role and row."""
    _unique("channel", [channel.name for channel in protocol.channels], protocol.name)
    _unique("role", [role.name for role in protocol.roles], protocol.name)
    for channel in protocol.channels:
        try:
            _check_declaration(protocol, channel)
        except SpecError as error:
            raise SpecError(f"table {protocol.name!r}, channel {channel.name!r}: {error}") from error
    for role in protocol.roles:
        try:
            _check_role(protocol, role)
        except SpecError as error:
            raise SpecError(f"table {protocol.name!r}, role {role.name!r}: {error}") from error
    _check_channels(protocol)


def _check_declaration(protocol: Protocol, channel: Channel) -> None:
    for what, value, literal in (("path", channel.path, Path), ("kind", channel.kind, Kind)):
        if value not in get_args(literal):
            raise SpecError(f"{what} {value!r}; allowed: {', '.join(get_args(literal))}")
    _unique("field", [name for name, _ in channel.fields], "fields")
    if channel.payload and channel.payload not in protocol.registers:
        known = ", ".join(protocol.registers) or "none"
        raise SpecError(f"its payload {channel.payload!r} is no register; known: {known}")
    for what, expr in (("lag", channel.lag), ("capacity", channel.capacity)):
        if type_of(expr, Scope({}, {}, frozenset())) != "int":
            raise SpecError(f"the {what} {show(expr)} is no integer")


def _unique(what: str, names: list[str], where: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise SpecError(f"{where}: {what} {twice[0]!r} is defined twice")


def _check_role(protocol: Protocol, role: Role) -> None:
    _unique("variable", [variable.name for variable in role.variables], "variables")
    _unique("row", [row.name for row in role.rows], "rows")
    for variable in role.variables:
        _value_in_domain(variable.initial, variable.domain, f"initial value of variable {variable.name!r}")
    for row in role.rows:
        try:
            _check_row(protocol, role, row)
        except SpecError as error:
            raise SpecError(f"row {row.name!r}: {error}") from error
    _check_shape(role)
    for location in role.locations:
        if location != role.end:
            _check_guards(role, location)
    posted = {row.operation.channel for row in role.rows if isinstance(row.operation, Post)}
    awaited = {row.operation.channel for row in role.rows if isinstance(row.operation, Await)}
    for row in role.rows:
        if isinstance(row.operation, Post) and row.operation.handle != "drop" and row.operation.channel not in awaited:
            raise SpecError(f"row {row.name!r}: posts on {row.operation.channel!r}, which no row awaits")
        if isinstance(row.operation, Await) and row.operation.channel not in posted:
            raise SpecError(f"row {row.name!r}: awaits {row.operation.channel!r}, which no row posts")


def _value_in_domain(value: Value, domain: Domain, what: str) -> None:
    values = domain_values(domain, {"P": 3, "L": 4, "R": 1}, window=1)
    if value not in values or type(value) is not type(values[0]):
        raise SpecError(f"{what} is {value!r}; allowed: {', '.join(map(str, values))}")


def _check_row(protocol: Protocol, role: Role, row: Row) -> None:
    before, after = protocol.scope(role), protocol.scope(role, row)
    ghosts = {variable.name for variable in role.variables if variable.ghost}
    if type_of(row.guard, before) != "bool":
        raise SpecError(f"the guard {show(row.guard)} is not a condition")
    if type_of(row.assume, after) != "bool":
        raise SpecError(f"the assumption {show(row.assume)} is not a condition")
    _unique("effect on", [name for name, _ in row.effects], "effects")
    for name, expr in row.effects:
        target = role.variable(name)
        _fits(expr, type_of(expr, after), target.domain, f"effect on {name!r}")
        if not target.ghost:
            _no_ghost(expr, ghosts, f"the effect on {name!r}")
    _no_ghost(row.guard, ghosts, "the guard")
    operation = row.operation
    if isinstance(operation, Post | Receive | Await | Gate | Probe):
        channel = protocol.channel(operation.channel)
        sends = isinstance(operation, Post | Await)
        if role.place not in (channel.source_places() if sends else channel.sink_places()):
            end = "sender" if sends else "receiver"
            raise SpecError(f"{type(operation).__name__} on {channel.name!r}, of which a {role.place} rank is no {end}")
        if isinstance(operation, Post):
            _check_fields(operation.fields, channel, before, complete=True)
            for _, expr in operation.fields:
                _no_ghost(expr, ghosts, "a posted field")
        elif isinstance(operation, Receive):
            _check_fields(operation.expect, channel, before, complete=False)
    elif isinstance(operation, Local):
        _unique("field", [name for name, _ in operation.returns], "returns")
        for read in operation.reads:
            if isinstance(read, Expr):
                type_of(read, before)
                _no_ghost(read, ghosts, "the binding's input")
            elif read not in protocol.registers:
                raise SpecError(f"reads {read!r}, which is no register; known: {', '.join(protocol.registers)}")
        for name in operation.writes:
            if name not in protocol.registers:
                raise SpecError(f"writes {name!r}, which is no register; known: {', '.join(protocol.registers)}")
    for expr in row_expressions(row):
        for node in walk(expr):
            if isinstance(node, Past):
                for instance in _INSTANCES:
                    if static_value(node.lag, {**instance, "R": 0}) < 0:
                        raise SpecError(f"{show(node)} looks ahead for P={instance['P']}, L={instance['L']}")


def _no_ghost(expr: Expr, ghosts: set[str], what: str) -> None:
    for node in walk(expr):
        if isinstance(node, Var | Past) and node.name in ghosts:
            raise SpecError(f"{what} reads {node.name!r}, which exists in models only")


def _fits(expr: Expr, actual: str, domain: Domain, what: str) -> None:
    try:
        unify(actual, domain_type(domain))
    except SpecError as error:
        raise SpecError(f"{what}: {show(expr)} is {actual}, not {domain_type(domain)}") from error


def _check_fields(fields: Fields, channel: Channel, scope: object, complete: bool) -> None:
    declared = dict(channel.fields)
    _unique("field", [name for name, _ in fields], f"fields of {channel.name!r}")
    for name, expr in fields:
        if name not in declared:
            raise SpecError(f"channel {channel.name!r} has no field {name!r}; it has: {', '.join(declared)}")
        _fits(expr, type_of(expr, scope), declared[name], f"field {name!r}")  # type: ignore[arg-type]
    missing = [name for name in declared if name not in dict(fields)]
    if complete and missing:
        raise SpecError(f"posts on {channel.name!r} without field {missing[0]!r}")


def _check_shape(role: Role) -> None:
    if not role.rows_at(role.start):
        raise SpecError(f"location {role.start!r}: there is no row")
    graph = networkx.DiGraph()
    graph.add_nodes_from(role.locations)
    for row in role.rows:
        if row.at == role.end:
            raise SpecError(f"row {row.name!r}: leaves {role.end!r}, where a rank is done")
        if row.to not in role.locations:
            raise SpecError(f"row {row.name!r}: goes to {row.to!r}, where there is no row")
        graph.add_edge(row.at, row.to)
    reached = {role.start} | networkx.descendants(graph, role.start)
    for row in role.rows:
        if row.at not in reached:
            raise SpecError(f"row {row.name!r}: nothing leads to {row.at!r}")
    advancing = {row.at for row in role.rows if row.advances}
    for location in reached - {role.end}:
        onward = {location} | networkx.descendants(graph, location)
        if not onward & (advancing | {role.end}):
            raise SpecError(f"location {location!r}: no way to the end of a pass")


def guard_atoms(rows: tuple[Row, ...]) -> tuple[Expr, ...]:
    """The independent values that the guards of some rows read."""
    atoms: dict[Expr, None] = {}
    for row in rows:
        for node in walk(row.guard):
            if isinstance(node, Var | Past | Posted | Slot | ThisPass):
                atoms[node] = None
            elif isinstance(node, Got):
                raise SpecError(f"row {row.name!r}: a guard cannot read {show(node)}; store it by an effect first")
    return tuple(atoms)


def _check_guards(role: Role, location: str) -> None:
    rows = role.rows_at(location)
    atoms = guard_atoms(rows)
    for instance in _INSTANCES:
        parameters = {
            **instance,
            "R": {"solo": 0, "first": 0, "middle": 1, "last": instance["P"] - 1}[role.place],
        }
        choices = [_atom_values(role, atom, parameters) for atom in atoms]
        size = 1
        for values in choices:
            size *= len(values)
        if size > _MOST_VALUATIONS:
            raise SpecError(f"location {location!r}: its guards read too many values to enumerate ({size})")
        for values in itertools.product(*choices):
            held = [row for row in rows if _holds(row.guard, dict(zip(atoms, values, strict=True)), parameters)]
            if len(held) != 1:
                at = ", ".join(f"{show(atom)} = {value}" for atom, value in zip(atoms, values, strict=True))
                fault = "no guard holds" if not held else "overlapping guards"
                names = ", ".join(repr(row.name) for row in (held or rows))
                raise SpecError(f"rows {names} at {location!r}: {fault} when {at or 'always'} ({parameters})")


def _atom_values(role: Role, atom: Expr, parameters: dict[str, int]) -> tuple[Value, ...]:
    if isinstance(atom, Var | Past):
        return domain_values(role.variable(atom.name).domain, parameters, window=2)
    if isinstance(atom, Posted):
        return (False, True)
    return tuple(range(parameters["L"]))


def _holds(guard: Expr, atoms: dict[Expr, Value], parameters: dict[str, int]) -> bool:
    lags = {
        (atom.name, static_value(atom.lag, parameters)): value
        for atom, value in atoms.items()
        if isinstance(atom, Past)
    }
    variables = {atom.name: value for atom, value in atoms.items() if isinstance(atom, Var)}
    held = {atom.channel: bool(value) for atom, value in atoms.items() if isinstance(atom, Posted)}
    this_pass = next((int(value) for atom, value in atoms.items() if isinstance(atom, Slot | ThisPass)), 0)
    for (name, lag), value in lags.items():
        if lag == 0:
            variables[name] = value
    env = Environment(
        variables,
        parameters,
        {},
        lambda name, lag: lags[(name, lag)],
        lambda channel: held[channel],
        this_pass,
    )
    return bool(evaluate(guard, env))


def _check_channels(protocol: Protocol) -> None:
    places = {role.place for role in protocol.roles}
    for channel in protocol.channels:
        if not {"first", "last"} & places:
            continue
        for kind, ends in ((Post, channel.source_places()), (Receive, channel.sink_places())):
            for role in protocol.roles:
                has = any(isinstance(r.operation, kind) and r.operation.channel == channel.name for r in role.rows)
                if role.place in ends and not has:
                    verb, other = ("post", Receive) if kind is Post else ("receive", Post)
                    rows = [
                        f"{r.name!r} of role {o.name!r}"
                        for o in protocol.roles
                        for r in o.rows
                        if isinstance(r.operation, other) and r.operation.channel == channel.name
                    ]
                    raise SpecError(
                        f"table {protocol.name!r}: row {rows[0] if rows else '(none)'} uses "
                        f"{channel.name!r}, but role {role.name!r} has no row to {verb} it"
                    )
