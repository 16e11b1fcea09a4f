"""The transition table: channels, rows, roles, and the protocol that they make up.

A rank is always at one location of its role. Of the rows at that location exactly one has a true guard; the rank
performs that row's operation (which may block), then its effects all at once, and goes to the row's next
location. A row that `advances` ends the pass: the variables' values enter the history and the pass ordinal grows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from headway.spec.language import (
    TRUE,
    Bool,
    Const,
    Domain,
    Enum,
    Expr,
    Identity,
    Past,
    Range,
    Scope,
    SpecError,
    Value,
    show,
    static_value,
    walk,
)

Fields: TypeAlias = tuple[tuple[str, Expr], ...]
Place: TypeAlias = Literal["solo", "first", "middle", "last"]
Path: TypeAlias = Literal["forward", "closing"]
Kind: TypeAlias = Literal["control", "tensor"]


@dataclass(frozen=True)
class Variable:
    """A protocol variable of a rank. `ghost` variables exist in models only: no production row may read one."""

    name: str
    domain: Domain
    initial: Value
    doc: str = ""
    ghost: bool = False


@dataclass(frozen=True)
class Channel:
    """A FIFO of messages between neighbours.

    `path` is "forward" (rank r to r+1, for each r < P-1) or "closing" (rank P-1 to 0). The receiver's pass n takes
    what the sender posted in its pass n - `lag`. `fields` are the protocol facts that a message carries;
    `payload` names the register of opaque data that travels with them, or is empty. `capacity` bounds the
    messages posted and not yet received; exceeding it is a violation.

    Channels that name the same `wire` share one FIFO between two ranks, each channel a kind of message on it. A receive
    takes whatever comes next: its own kind it returns, another kind it stashes for the receive of that kind. A handle
    is done when its message was taken off the wire, stashed or not.
    """

    name: str
    path: Path
    kind: Kind
    fields: tuple[tuple[str, Domain], ...]
    payload: str = ""
    lag: Expr = field(default=Const(0))
    capacity: Expr = field(default=Const(2))
    wire: str = ""
    doc: str = ""

    def source_places(self) -> frozenset[str]:
        """The places whose ranks post on this channel."""
        return frozenset({"first", "middle"} if self.path == "forward" else {"last"})

    def sink_places(self) -> frozenset[str]:
        """The places whose ranks receive from this channel."""
        return frozenset({"middle", "last"} if self.path == "forward" else {"first"})


# --- operations --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Receive:
    """Block until the next message of `channel` is here and take it.

    `expect` is the identity that it must carry; another value is a broken law: the rank stops and says so.
    """

    channel: str
    expect: Fields = ()


@dataclass(frozen=True)
class Post:
    """Start sending a message on `channel` and keep the handle; what this may wait for is the transport's contract.

    Posting while the last handle is still held breaks custody. Two faulty ways to treat handles exist for models:
    "drop" keeps none, "overwrite" forgets the last one for the new one. A send whose handle is forgotten before its
    receive is posted is lost (see `transports`).
    """

    channel: str
    fields: Fields
    handle: Literal["keep", "drop", "overwrite"] = "keep"


@dataclass(frozen=True)
class Await:
    """Block until the handle held on `channel` is done, and release it."""

    channel: str


@dataclass(frozen=True)
class Gate:
    """Block until the sender of `channel` has attempted the message that this rank will receive next.

    Waiting beyond the bound of the gate is a fail-stop that names the sender. `counter` is the evidence: "attempted"
    counts a message when the sender is at its post, "sent" when the post has returned. With the scope "wire", messages
    of every channel on the wire count (wrong evidence, for models).
    """

    channel: str
    counter: Literal["attempted", "sent"] = "attempted"
    scope: Literal["channel", "wire"] = "channel"


@dataclass(frozen=True)
class Probe:
    """Look, without blocking, whether a gate with these parameters would be open: returns the condition `ready`.

    What comes back depends on timing, so a table with a probe is not confluent. Models only.
    """

    channel: str
    counter: Literal["attempted", "sent"] = "attempted"
    scope: Literal["channel", "wire"] = "channel"


@dataclass(frozen=True)
class Collective:
    """Block until every rank has entered the collective of this name as often as this one. Models only."""

    name: str


@dataclass(frozen=True)
class Local:
    """Call one binding with the declared inputs. It touches no wire.

    `reads` are registers (by name) and expressions over this rank's variables; `writes` are registers. `returns` are
    the declared outcomes: the values that may come back, each within its domain. `nature` says what it waits for:
    "step" nothing, "compute" this rank's model, "idle" the outside world (it may block without bound).
    """

    binding: str
    reads: tuple[str | Expr, ...] = ()
    writes: tuple[str, ...] = ()
    returns: tuple[tuple[str, Domain], ...] = ()
    nature: Literal["step", "compute", "idle"] = "step"


Operation: TypeAlias = Receive | Post | Await | Gate | Probe | Collective | Local | None


@dataclass(frozen=True)
class Row:
    """One transition. `assume` restricts, in models only, what a local step may return."""

    name: str
    at: str
    guard: Expr
    operation: Operation
    to: str
    effects: Fields = ()
    advances: bool = False
    assume: Expr = TRUE
    doc: str = ""


@dataclass(frozen=True)
class Role:
    """What the ranks of one place (and parity of the rank number, where the order depends on it) do."""

    name: str
    place: Place
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    start: str
    end: str = "end"
    parity: Literal["any", "even", "odd"] = "any"

    @cached_property
    def locations(self) -> tuple[str, ...]:
        """All locations in order of first mention, the end last."""
        seen = dict.fromkeys([self.start, *(row.at for row in self.rows)])
        seen.pop(self.end, None)
        return (*seen, self.end)

    def rows_at(self, location: str) -> tuple[Row, ...]:
        """The rows of one location, in the table's order."""
        return tuple(row for row in self.rows if row.at == location)

    def row(self, name: str) -> Row:
        """The row of that name; raises `SpecError`."""
        for row in self.rows:
            if row.name == name:
                return row
        raise SpecError(f"role {self.name!r} has no row {name!r}; it has: {', '.join(r.name for r in self.rows)}")

    def variable(self, name: str) -> Variable:
        """The variable of that name; raises `SpecError`."""
        for variable in self.variables:
            if variable.name == name:
                return variable
        raise SpecError(f"role {self.name!r} has no variable {name!r}")

    def covers(self, rank: int, ranks: int) -> bool:
        """Whether rank `rank` of `ranks` has this role."""
        return self.place == place_of(rank, ranks) and self.parity in ("any", "odd" if rank % 2 else "even")


def place_of(rank: int, ranks: int) -> Place:
    """The place of a rank in a pipeline of `ranks` ranks."""
    if not 0 <= rank < ranks:
        raise SpecError(f"rank {rank} is not one of {ranks} ranks")
    if ranks == 1:
        return "solo"
    return "first" if rank == 0 else "last" if rank == ranks - 1 else "middle"


@dataclass(frozen=True)
class Protocol:
    """A whole table. Building one checks that it is well-formed and raises `SpecError` naming the row if not."""

    name: str
    channels: tuple[Channel, ...]
    registers: tuple[str, ...]
    roles: tuple[Role, ...]
    doc: str = field(default="", compare=False)
    checked: bool = field(default=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.checked:
            from headway.spec.wellformed import check

            check(self)

    def channel(self, name: str) -> Channel:
        """The channel of that name; raises `SpecError`."""
        for channel in self.channels:
            if channel.name == name:
                return channel
        raise SpecError(f"unknown channel {name!r}; known: {', '.join(c.name for c in self.channels)}")

    def role(self, name: str) -> Role:
        """The role of that name; raises `SpecError`."""
        for role in self.roles:
            if role.name == name:
                return role
        raise SpecError(f"unknown role {name!r}; known: {', '.join(r.name for r in self.roles)}")

    def role_of(self, rank: int, ranks: int) -> Role:
        """The role of one rank of a pipeline; raises `SpecError` when the table has none for it."""
        for role in self.roles:
            if role.covers(rank, ranks):
                return role
        raise SpecError(f"table {self.name!r} has no role for rank {rank} of {ranks}")

    def scope(self, role: Role, row: Row | None = None) -> Scope:
        """The names that an expression of this role (in this row) may use."""
        fields: dict[str, Domain] = {}
        if row is not None and isinstance(row.operation, Receive):
            fields = dict(self.channel(row.operation.channel).fields)
        elif row is not None and isinstance(row.operation, Local):
            fields = dict(row.operation.returns)
        elif row is not None and isinstance(row.operation, Probe):
            fields = {"ready": Bool()}
        return Scope(
            {variable.name: variable.domain for variable in role.variables},
            fields,
            frozenset(channel.name for channel in self.channels),
        )

    @cached_property
    def canonical(self) -> str:
        """The table as canonical JSON text: equal text, equal behaviour; prose is left out."""
        return json.dumps(_plain(self), sort_keys=True, separators=(",", ":"))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical form, in hexadecimal."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    def with_roles(self, roles: Iterable[Role], name: str | None = None, checked: bool = True) -> Protocol:
        """A copy with other roles, for edits."""
        return replace(self, roles=tuple(roles), name=name or self.name, checked=checked)


def row_expressions(row: Row) -> Iterator[Expr]:
    """Every expression of a row."""
    yield row.guard
    yield row.assume
    for _, expr in row.effects:
        yield expr
    if isinstance(row.operation, Post):
        for _, expr in row.operation.fields:
            yield expr
    if isinstance(row.operation, Receive):
        for _, expr in row.operation.expect:
            yield expr
    if isinstance(row.operation, Local):
        yield from (read for read in row.operation.reads if isinstance(read, Expr))


def gated_channels(protocol: Protocol) -> frozenset[str]:
    """Channels whose receivers wait at a readiness gate."""
    return frozenset(r.operation.channel for role in protocol.roles for r in role.rows if isinstance(r.operation, Gate))


def record_width(protocol: Protocol) -> int:
    """The most fields that any row posts, receives or returns."""
    returns = [len(r.operation.returns) for role in protocol.roles for r in role.rows if isinstance(r.operation, Local)]
    return max([0, *returns, *(len(channel.fields) for channel in protocol.channels)])


def history_depths(role: Role, parameters: dict[str, int]) -> dict[str, int]:
    """For each variable that some row reads from the past: how many passes back, at most."""
    depths: dict[str, int] = {}
    for row in role.rows:
        for expr in row_expressions(row):
            for node in walk(expr):
                if isinstance(node, Past):
                    lag = static_value(node.lag, parameters)
                    if lag < 0:
                        raise SpecError(f"row {row.name!r} of role {role.name!r}: {show(node)} looks ahead")
                    depths[node.name] = max(depths.get(node.name, 0), lag)
    return {name: depth for name, depth in depths.items() if depth > 0}


def domain_values(domain: Domain, parameters: dict[str, int], window: int = 0) -> tuple[Value, ...]:
    """All values of a domain in a finite model (`window` bounds pass numbers)."""
    if isinstance(domain, Bool):
        return (False, True)
    if isinstance(domain, Enum):
        return domain.names
    if isinstance(domain, Range):
        return tuple(range(static_value(domain.low, parameters), static_value(domain.high, parameters) + 1))
    if isinstance(domain, Identity):
        return tuple(range(domain.model_values))
    return tuple(range(window))


def pass_window(protocol: Protocol, ranks: int, slots: int) -> int:
    """The modulus of pass numbers in a finite model.

    A multiple of L (so that the slot is exact) beyond twice what any two live pass numbers can differ by; the
    explorer checks at every advance that no two ranks are half a window apart, so comparing modulo it is exact.
    """
    lags = [static_value(c.lag, {"P": ranks, "L": slots, "R": 0}) for c in protocol.channels]
    reach = 2 * (ranks + 1 + max([0, *lags]))
    return slots * -(-(reach + 1) // slots)


def _plain(thing: Any) -> Any:
    if isinstance(thing, tuple):
        return [_plain(item) for item in thing]
    if isinstance(thing, bool | int | str) or thing is None:
        return thing
    names = [name for name in thing.__dataclass_fields__ if name not in ("doc", "checked")]
    return {"type": type(thing).__name__, **{name: _plain(getattr(thing, name)) for name in names}}
