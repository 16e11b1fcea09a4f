"""Other orders of a pass: which of them have a certificate under a contract, and how long a pass takes in each.

The steps that post, and the exchange of outputs, are moved to every place that what they read and write allows; calls
into the engine keep their order among themselves. An order is tried on runs of 2 to 4 ranks first, which
refuse most of them in milliseconds, and proved if it survives.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from headway.spec.language import SpecError, Var, walk
from headway.spec.ordering import Ordering, Point
from headway.spec.table import Await, Gate, Local, Post, Protocol, Receive, Role, Row, row_expressions
from headway.spec.transports import Transport
from headway.verification.model import Model
from headway.verification.prove.acyclic import prove_acyclic
from headway.verification.prove.unroll import LOADS, run

Order = tuple[str, ...]


@dataclass(frozen=True)
class Costs:
    """Time units of a step that computes, of a step on the host, and of a message on its way."""

    compute: float = 1.0
    host: float = 0.1
    message: float = 0.05


@dataclass(frozen=True)
class Candidate:
    """An order with a certificate. `period` is the time of a pass under full load, `latency` from plan to output."""

    protocol: Protocol
    orders: Mapping[str, Order]
    template: str
    period: float
    latency: float


# --- the steps of a role -----------------------------------------------------------------------------------


def steps_of(role: Role) -> Order:
    """The locations of a full pass in order; raises `SpecError` for a role whose pass is not one line."""
    order = [role.start]
    while True:
        onward = {row.to for row in role.rows_at(order[-1]) if not row.advances and completes(role, row.to)}
        if not onward:
            return tuple(order)
        if len(onward) > 1:
            raise SpecError(f"role {role.name!r}: {order[-1]!r} leads to {len(onward)} places; one line is needed")
        order.append(onward.pop())


def completes(role: Role, location: str) -> bool:
    """Whether a pass that comes to a location may yet be completed."""
    seen, todo = {location}, [location]
    while todo:
        for row in role.rows_at(todo.pop()):
            if row.advances:
                return True
            if row.to not in seen:
                seen.add(row.to)
                todo.append(row.to)
    return False


def reordered(role: Role, order: Order) -> Role:
    """The role with its steps in another order; what was done before the pipeline's end is still done before it."""
    old = steps_of(role)
    follows = dict(zip(order, [*order[1:], order[0]], strict=True))
    leaving = [row for row in role.rows if row.at in old and not row.advances and row.to not in old]
    missing = {
        row.name: [
            step for step in old[: old.index(row.at)] if order.index(step) > order.index(row.at) and _posts(role, step)
        ]
        for row in leaving
    }
    rows: list[Row] = []
    for row in role.rows:
        if row.at not in old:
            rows.append(row)
        elif row in leaving:
            to = row.to
            for step in reversed(missing[row.name]):
                post = next(r for r in role.rows_at(step) if isinstance(r.operation, Post))
                at = f"{step} at the end"
                rows.append(replace(post, name=at, at=at, to=to))
                to = at
            rows.append(replace(row, to=to))
        else:
            rows.append(replace(row, to=follows[row.at], advances=row.at == order[-1]))
    if order[-1] != old[-1]:
        raise SpecError(f"role {role.name!r}: the last step {old[-1]!r} stays the last")
    return replace(role, rows=tuple(rows), start=order[0])


def _posts(role: Role, step: str) -> bool:
    return any(isinstance(row.operation, Post) for row in role.rows_at(step))


def must_precede(protocol: Protocol, role: Role) -> frozenset[tuple[str, str]]:
    """Pairs of steps whose order matters: what one writes the other reads or writes, or both call the engine."""
    steps = steps_of(role)
    reads = {step: set().union(*(_reads(protocol, row) for row in role.rows_at(step))) for step in steps}
    writes = {step: set().union(*(_writes(protocol, row) for row in role.rows_at(step))) for step in steps}
    return frozenset(
        (a, b)
        for a, b in itertools.combinations(steps, 2)
        if writes[a] & (reads[b] | writes[b]) or reads[a] & writes[b]
    )


def _reads(protocol: Protocol, row: Row) -> set[str]:
    names = {node.name for expr in row_expressions(row) for node in walk(expr) if isinstance(node, Var)}
    operation = row.operation
    if isinstance(operation, Local):
        names |= {f"register {read}" for read in operation.reads if isinstance(read, str)}
    if isinstance(operation, Post | Await | Gate | Receive):
        names.add(f"handle {operation.channel}")
    if isinstance(operation, Post):
        names.add(f"register {protocol.channel(operation.channel).payload}")
    return names


def _writes(protocol: Protocol, row: Row) -> set[str]:
    names = {name for name, _ in row.effects}
    operation = row.operation
    if isinstance(operation, Local):
        names |= {f"register {name}" for name in operation.writes}
        if operation.binding != "apply_output":
            names.add("engine")  # calls into the engine keep their order; an output may be applied at any time
    if isinstance(operation, Post | Await | Receive):
        names.add(f"handle {operation.channel}")
    if isinstance(operation, Receive):
        names.add(f"register {protocol.channel(operation.channel).payload}")
    return names


def orders(protocol: Protocol, role: Role) -> Iterator[Order]:
    """Every order that moves the posts, and the receive of what comes over the closing edge with its use.

    A step that nothing ties to the one before it goes ahead of it, if that one neither computes nor sends or receives:
    to be late there helps nobody.
    """
    steps = steps_of(role)
    blocks: list[Order] = []
    for step in steps[:-1]:
        operations = [row.operation for row in role.rows_at(step)]
        if any(isinstance(operation, Post) for operation in operations) and step != role.start:
            blocks.append((step,))
        elif role.place == "first" and any(isinstance(operation, Receive) for operation in operations):
            blocks.append((step, *(s for s in steps if _applies(role, s))))
    before = must_precede(protocol, role)
    busy = frozenset(
        row.at
        for row in role.rows
        if isinstance(row.operation, Post | Receive | Gate)
        or (isinstance(row.operation, Local) and row.operation.nature == "compute")
    )
    fixed = tuple(step for step in steps if not any(step in block for block in blocks))
    for order in dict.fromkeys(_inserted(fixed, blocks, before)):
        if order == steps or not any(_idly_late(order, block, busy, before) for block in blocks):
            yield order


def _idly_late(order: Order, block: Order, busy: frozenset[str], before: frozenset[tuple[str, str]]) -> bool:
    place = order.index(block[0])
    ahead = order[place - 1]
    return place > 0 and ahead not in busy and not any((ahead, step) in before for step in block)


def _applies(role: Role, step: str) -> bool:
    return any(isinstance(r.operation, Local) and r.operation.binding == "apply_output" for r in role.rows_at(step))


def _inserted(done: Order, blocks: list[Order], before: frozenset[tuple[str, str]]) -> Iterator[Order]:
    if not blocks:
        yield done
        return
    block, rest = blocks[0], blocks[1:]
    for place in range(len(done)):  # never after the last step, which ends the pass
        ahead, behind = done[:place], done[place:]
        if not any((step, other) in before for step in block for other in ahead) and not any(
            (other, step) in before for step in block for other in behind
        ):
            yield from _inserted((*ahead, *block, *behind), rest, before)


# --- the search --------------------------------------------------------------------------------------------


def synthesize(
    protocol: Protocol, transports: Mapping[str, Transport], costs: Costs, most: int = 100_000
) -> Iterator[Candidate]:
    """Orders of all roles together that have a certificate. `most` bounds how many combinations are tried."""
    roles = [role for role in protocol.roles if role.place != "solo"]
    choices = {role.name: [reordered(role, order) for order in orders(protocol, role)] for role in roles}
    others = tuple(role for role in protocol.roles if role.place == "solo")
    first, middle, last = (next(r.name for r in roles if r.place == place) for place in ("first", "middle", "last"))
    tried = 0
    for head, tail in itertools.product(choices[first], choices[last]):
        if not _runs(replace(protocol, roles=(*others, head, tail), checked=False), transports, (2,)):
            continue
        for body in choices[middle]:
            tried += 1
            if tried > most:
                return
            table = replace(protocol, roles=(*others, head, body, tail), checked=False)
            if not _runs(table, transports, (3, 4)):
                continue
            found = prove_acyclic(table, transports)
            if found.potential is not None and found.ordering is not None:
                period, latency = timing(found.ordering, costs)
                line = {role.name: steps_of(role) for role in (head, body, tail)}
                yield Candidate(table, line, found.template, period, latency)


def _runs(protocol: Protocol, transports: Mapping[str, Transport], sizes: tuple[int, ...]) -> bool:
    load = LOADS["work in every pass"]
    return all(run(Model(protocol, n, n, transports=transports), load, 2 * n + 2) is None for n in sizes)


# --- time --------------------------------------------------------------------------------------------------


def timing(order: Ordering, costs: Costs, ranks: int = 4) -> tuple[float, float]:
    """Period of a pass and latency of one under full load, as longest paths through the waits of `ranks` ranks."""
    passes = 4 * ranks * (ranks - 1)  # stalls recur every P or P - 1 passes
    protocol = order.protocol
    roles = [protocol.role_of(rank, ranks) for rank in range(ranks)]
    ends: dict[tuple[int, int, str], float] = {}
    into: dict[Point, list[tuple[Point, int, int]]] = {}
    for wait in order.waits:
        if ranks in wait.pipelines:
            distance = (wait.passes.at(ranks, ranks), wait.hop.at(ranks, ranks))
            into.setdefault(wait.later, []).append((wait.earlier, *distance))

    def end(rank: int, number: int, location: str) -> float:
        key = (rank, number, location)
        if number < 0 or not 0 <= rank < ranks:
            return 0.0
        if key not in ends:
            begin = 0.0
            for earlier, back, hop in into.get(Point(roles[rank].name, location), ()):
                source = rank - hop
                if 0 <= source < ranks and roles[source].name == earlier.role:
                    travel = costs.message if hop else 0.0
                    begin = max(begin, end(source, number - back, earlier.location) + travel)
            ends[key] = begin + _cost(roles[rank], location, costs)
        return ends[key]

    first = roles[0]
    steps = steps_of(first)
    planned = next(step for step in steps if any(_calls(row, "plan") for row in first.rows_at(step)))
    applied = next(step for step in steps if _applies(first, step))
    for number in range(passes):  # in order, so that the recursion stays shallow
        for rank in range(ranks):
            for location in steps_of(roles[rank]):
                end(rank, number, location)
    half = passes // 2
    period = (end(0, passes - 1, steps[-1]) - end(0, half - 1, steps[-1])) / half
    latency = end(0, half + ranks - 1, applied) - end(0, half, planned)
    return period, latency


def _calls(row: Row, binding: str) -> bool:
    return isinstance(row.operation, Local) and row.operation.binding == binding


def _cost(role: Role, location: str, costs: Costs) -> float:
    found = 0.0
    for row in role.rows_at(location):
        if isinstance(row.operation, Local):
            found = max(found, costs.compute if row.operation.nature == "compute" else costs.host)
    return found
