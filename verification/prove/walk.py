"""One pass of one rank, executed symbolically: which rows fire when, what they post, and what is known at the end.

Paths that meet again are merged, so the terms grow with the number of rows and not with the number of paths. A rank's
history is a function of the pass ordinal; before pass 0 every variable has its initial value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import z3

from headway.spec.language import Domain, Expr, SpecError
from headway.spec.ordering import Linear, WireOperation, linear, uses
from headway.spec.table import Await, Collective, Gate, Local, Post, Probe, Protocol, Receive, Role, Row
from headway.verification.prove.translate import (
    FALSE,
    RANKS,
    SLOTS,
    TRUE,
    Reading,
    Term,
    choose,
    conj,
    disj,
    literal,
    negate,
    slot_facts,
    sort_of,
    translate,
    within,
)

Message = Mapping[str, Term]


def place_facts(role: Role, rank: Term) -> Term:
    """What the place and parity of a role say of its rank number and of the number of ranks."""
    facts = {
        "solo": [RANKS == 1, rank == 0],
        "first": [RANKS >= 2, rank == 0],
        "middle": [rank >= 1, rank <= RANKS - 2],
        "last": [RANKS >= 2, rank == RANKS - 1],
    }[role.place]
    if role.parity != "any":
        facts.append(rank % 2 == (1 if role.parity == "odd" else 0))
    return z3.And(SLOTS >= RANKS, *facts)


@dataclass
class Rank:
    """A rank of a role, with its history as functions of the pass. `tag` keeps its symbols apart from other ranks'."""

    protocol: Protocol
    role: Role
    tag: str
    facts: list[Term] = field(default_factory=list)
    used: dict[str, list[Term]] = field(default_factory=dict)  # pass ordinals at which a variable's history was read
    _asked: dict[tuple[str, int], tuple[Term, Term]] = field(default_factory=dict)

    @cached_property
    def number(self) -> Term:
        """This rank's number."""
        number = z3.Int(f"R.{self.tag}")
        self.facts.append(place_facts(self.role, number))
        return number

    @cached_property
    def channels(self) -> tuple[str, ...]:
        """The channels that this role posts on."""
        names = (row.operation.channel for row in self.role.rows if isinstance(row.operation, Post))
        return tuple(dict.fromkeys(names))

    def at_end_of(self, this_pass: Term, name: str) -> Term:
        """The value of a variable at the end of a pass; its initial value for a pass before the first."""
        asked = self._asked.get((name, this_pass.get_id()))
        if asked is not None:
            return asked[1]
        index = z3.simplify(this_pass)
        key = (name, index.get_id())
        if key not in self._asked:
            variable = self.role.variable(name)
            value = z3.Function(f"{self.tag}.{name}", z3.IntSort(), sort_of(variable.domain))(index)
            self._asked[key] = (index, value)
            self.used.setdefault(name, []).append(index)
            read = Reading({}, self.number, index, {}, lambda _, lag: lag, lambda _: FALSE)
            self.facts.append(within(value, variable.domain, read))
            self.facts.append(z3.Implies(index < 0, value == literal(variable.initial)))
        value = self._asked[key][1]
        self._asked[name, this_pass.get_id()] = (this_pass, value)  # the term is kept, so its number stays its own
        return value

    def any_message(self, channel: str, this_pass: Term) -> Message:
        """A message of which only the domains of its fields are known."""
        message: dict[str, Term] = {}
        read = Reading({}, self.number, this_pass, {}, lambda _, lag: lag, lambda _: FALSE)
        for name, domain in self.protocol.channel(channel).fields:
            message[name] = z3.Const(f"{self.tag}.{channel}.{name}@{this_pass}", sort_of(domain))
            self.facts.append(within(message[name], domain, read))
        return message

    def held_at_end_of(self, this_pass: Term, channel: str) -> Term:
        """Whether the handle on a channel is held at the end of a pass; none is before the first."""
        index = z3.simplify(this_pass)
        value = z3.Function(f"{self.tag}.held.{channel}", z3.IntSort(), z3.BoolSort())(index)
        self.facts.append(z3.Implies(index < 0, z3.Not(value)))
        return value


@dataclass(frozen=True)
class State:
    """What is known at a location: under which condition it is reached, and the values then."""

    reached: Term
    variables: Mapping[str, Term]
    held: Mapping[str, Term]
    done: Mapping[tuple[str, str], Term]  # ("post" or "receive", channel): whether this pass has done it


@dataclass(frozen=True)
class Firing:
    """One row in this pass: under which condition it fires, and what its expressions mean then."""

    row: Row
    when: Term
    before: State
    read: Reading
    fields: Message  # what a post carries, or what a receive expects


@dataclass(frozen=True)
class Fault:
    """A condition that must never hold, the law that it would break, and the row that would break it."""

    law: str
    row: str
    when: Term
    finding: str


@dataclass
class Pass:
    """The outcome of walking one pass."""

    rank: Rank
    this_pass: Term
    firings: dict[str, Firing]
    faults: list[Fault]
    unsettled: list[Fault]  # handles held where the rank ends
    misuses: list[Fault]  # registers read before they are written, or never
    advances: Term
    ends: Term
    after: Mapping[str, Term]  # variables when the pass advances
    held_after: Mapping[str, Term]

    def of(self, kind: WireOperation, channel: str) -> list[Firing]:
        """The firings of one kind of operation on a channel."""
        return [firing for firing in self.firings.values() if uses(firing.row, kind, channel)]

    def when(self, kind: WireOperation, channel: str) -> Term:
        """When this pass performs that kind of operation on the channel."""
        return disj(*(firing.when for firing in self.of(kind, channel)))

    def message(self, channel: str) -> Message:
        """The fields that this pass posts on a channel, provided that it posts."""
        posts = [post for post in self.of(Post, channel) if post.when is not FALSE]
        if not posts:
            return self.rank.any_message(channel, self.this_pass)
        merged = dict(posts[-1].fields)
        for firing in posts[-2::-1]:
            merged = {name: choose(firing.when, firing.fields[name], value) for name, value in merged.items()}
        return merged


def walk_pass(rank: Rank, this_pass: Term, incoming: Mapping[str, Message] | None = None) -> Pass:
    """Execute one pass; `incoming` gives the messages taken (any message, for channels left out).

    Raises `SpecError` if the rows of a pass form a loop.
    """
    return _Walk(rank, this_pass, incoming or {}).run()


class _Walk:
    def __init__(self, rank: Rank, this_pass: Term, incoming: Mapping[str, Message]) -> None:
        self.rank, self.role, self.this_pass, self.incoming = rank, rank.role, this_pass, incoming
        self.protocol = rank.protocol
        self.arrivals: dict[str, list[tuple[Term, State]]] = {}
        self.firings: dict[str, Firing] = {}
        self.faults: list[Fault] = []
        self.unsettled: list[Fault] = []
        self.misuses: list[Fault] = []
        self.over: list[tuple[Term, State]] = []  # states in which the pass advances
        self.ended: list[tuple[Term, State]] = []
        rank.facts.append(slot_facts(this_pass))

    def run(self) -> Pass:
        role, rank, last = self.role, self.rank, self.this_pass - 1
        variables = {v.name: rank.at_end_of(last, v.name) for v in role.variables}
        held = {channel: rank.held_at_end_of(last, channel) for channel in rank.channels}
        self.arrivals[role.start] = [(TRUE, State(TRUE, variables, held, {}))]
        for location in _order(role):
            if location in self.arrivals:
                self._leave(location, _merge(self.arrivals[location]))
        for _, state in self.ended:
            for channel, is_held in state.held.items():
                finding = f"the rank ends while the handle on {channel!r} is not awaited"
                self.unsettled.append(Fault("handle custody", "end", conj(state.reached, is_held), finding))
        start = State(FALSE, variables, held, {})
        after = _merge(self.over) if self.over else start
        ends = disj(*(when for when, _ in self.ended))
        return Pass(
            rank,
            self.this_pass,
            self.firings,
            self.faults,
            self.unsettled,
            self.misuses,
            after.reached,
            ends,
            after.variables,
            after.held,
        )

    def _leave(self, location: str, state: State) -> None:
        rows = self.role.rows_at(location)
        single = len({(row.to, row.advances) for row in rows}) == 1
        outcomes = [self._fire(row, state, alone=len(rows) == 1) for row in rows]
        if single:  # all rows lead to one place: the choice between them needs their guards only
            guards = [translate(row.guard, self.firings[row.name].read) for row in rows]
            merged = _merge(list(zip(guards, outcomes, strict=True)))
            merged = State(state.reached, merged.variables, merged.held, merged.done)
            self._arrive(rows[0], state.reached, merged)
        else:
            for row, outcome in zip(rows, outcomes, strict=True):
                self._arrive(row, outcome.reached, outcome)

    def _arrive(self, row: Row, when: Term, state: State) -> None:
        if row.advances or row.to == self.role.end:
            self._unread(row, state)
        if row.advances:
            self.over.append((when, state))
        elif row.to == self.role.end:
            self.ended.append((when, state))
        else:
            self.arrivals.setdefault(row.to, []).append((when, state))

    def _fire(self, row: Row, state: State, alone: bool) -> State:
        rank, operation = self.rank, row.operation
        got: dict[str, Term] = {}
        read = Reading(
            state.variables,
            rank.number,
            self.this_pass,
            got,
            lambda name, lag: rank.at_end_of(self.this_pass - lag, name),
            lambda channel: state.held.get(channel, FALSE),
        )
        when = conj(state.reached, TRUE if alone else translate(row.guard, read))
        held, done = dict(state.held), dict(state.done)
        fields: Message = {}
        self._registers(row, when, done)
        if isinstance(operation, Local):
            for name, domain in operation.returns:
                got[name] = z3.Const(f"{rank.tag}.{row.name}.{name}@{self.this_pass}", sort_of(domain))
                rank.facts.append(within(got[name], domain, read))
            rank.facts.append(z3.Implies(when, translate(row.assume, read)))
        elif isinstance(operation, Probe):
            got["ready"] = z3.Bool(f"{rank.tag}.{row.name}.ready@{self.this_pass}")
        elif isinstance(operation, Collective):
            self.faults.append(Fault("models only", row.name, when, "enters a collective, which no wire provides"))
        elif isinstance(operation, Post):
            if operation.handle != "keep":
                self._fault("handle custody", row, when, f"{operation.handle}s the handle of its post", "")
            fields = self._translated(operation.fields, read)
            for name, domain in self.protocol.channel(operation.channel).fields:
                if name not in fields:
                    raise SpecError(f"row {row.name!r}: posts on {operation.channel!r} without field {name!r}")
                self._in_domain(row, name, fields[name], domain, read, when)
            self._fault(
                "handle custody", row, conj(when, held[operation.channel]), "posts", "before the last is awaited"
            )
            self._once("post", row, operation.channel, when, done)
            held[operation.channel] = TRUE
        elif isinstance(operation, Receive):
            got.update(self._taken(row, operation))
            fields = self._translated(operation.expect, read)
            self._once("receive", row, operation.channel, when, done)
        elif isinstance(operation, Await):
            is_held = held.get(operation.channel, FALSE)
            self._fault("handle custody", row, conj(when, negate(is_held)), "awaits", "while no handle is held")
            if operation.channel in held:
                held[operation.channel] = FALSE
        elif isinstance(operation, Gate):
            taken = done.get(("receive", operation.channel), FALSE)
            self._fault("one message a pass", row, conj(when, taken), "gates", "after its receive")
        variables = {**state.variables, **self._effects(row, read, when)}
        self.firings[row.name] = Firing(row, when, state, read, fields)
        return State(when, variables, held, done)

    def _registers(self, row: Row, when: Term, done: dict[tuple[str, str], Term]) -> None:
        """What is read was written in this pass; what a control message brought or the model computed is read in it."""
        operation = row.operation
        reads: list[str] = []
        if isinstance(operation, Local):
            reads = [read for read in operation.reads if isinstance(read, str)]
        elif isinstance(operation, Post):
            channel = self.protocol.channel(operation.channel)
            if channel.payload and (channel.path == "closing" or linear(channel.lag) == Linear()):
                reads = [channel.payload]  # what is relayed in a later pass is older
        for register in reads:
            unwritten = negate(done.get(("written", register), FALSE))
            finding = f"reads {register!r}, which this pass has not written"
            self.misuses.append(Fault("registers", row.name, conj(when, unwritten), finding))
            done["unread", register] = FALSE
        if isinstance(operation, Local):
            for register in operation.writes:
                lost = conj(when, done.get(("unread", register), FALSE))
                finding = f"writes {register!r} over what nobody has read"
                self.misuses.append(Fault("registers", row.name, lost, finding))
                done["written", register] = TRUE
                if operation.nature == "compute":
                    done["unread", register] = TRUE
        elif isinstance(operation, Receive):
            channel = self.protocol.channel(operation.channel)
            done["written", channel.payload] = TRUE
            if channel.kind == "control" and channel.payload:
                done["unread", channel.payload] = TRUE

    def _unread(self, row: Row, state: State) -> None:
        for (kind, register), unread in state.done.items():
            if kind == "unread":
                finding = f"ends the pass in which {register!r} was received or computed and not read"
                self.misuses.append(Fault("registers", row.name, conj(state.reached, unread), finding))

    def _translated(self, fields: tuple[tuple[str, Expr], ...], read: Reading) -> Message:
        return {name: translate(expr, read) for name, expr in fields}

    def _effects(self, row: Row, read: Reading, when: Term) -> dict[str, Term]:
        new = self._translated(row.effects, read)
        for name, value in new.items():
            self._in_domain(row, name, value, self.role.variable(name).domain, read, when)
        return dict(new)

    def _in_domain(self, row: Row, name: str, value: Term, domain: Domain, read: Reading, when: Term) -> None:
        allowed = within(value, domain, read)
        if allowed is not TRUE:
            finding = f"{name} leaves its domain"
            self.faults.append(Fault("domains", row.name, conj(when, negate(allowed)), finding))

    def _fault(self, law: str, row: Row, when: Term, verb: str, why: str) -> None:
        channel = row.operation.channel if isinstance(row.operation, Post | Receive | Await | Gate) else ""
        if when is not FALSE:
            self.faults.append(Fault(law, row.name, when, f"{verb} on {channel!r} {why}"))

    def _once(self, verb: str, row: Row, channel: str, when: Term, done: dict[tuple[str, str], Term]) -> None:
        before = done.get((verb, channel), FALSE)
        self._fault("one message a pass", row, conj(when, before), f"{verb}s", "twice in one pass")
        done[verb, channel] = TRUE

    def _taken(self, row: Row, operation: Receive) -> Message:
        if operation.channel in self.incoming:
            return self.incoming[operation.channel]
        return self.rank.any_message(operation.channel, self.this_pass)


def _order(role: Role) -> list[str]:
    before: dict[str, set[str]] = {location: set() for location in role.locations}
    for row in role.rows:
        if not row.advances:
            before[row.to].add(row.at)
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError as error:
        raise SpecError(f"role {role.name!r}: the locations {error.args[1]} form a loop within a pass") from error
    return [location for location in order if location != role.end]


def _merge(arrivals: list[tuple[Term, State]]) -> State:
    """One state for several arrivals; the last one's values hold where no other's condition does."""
    when, merged = arrivals[-1]
    reached = when
    variables, held, done = dict(merged.variables), dict(merged.held), dict(merged.done)
    for when, state in arrivals[-2::-1]:
        reached = disj(when, reached)
        variables = {name: choose(when, value, variables[name]) for name, value in state.variables.items()}
        held = {name: choose(when, value, held[name]) for name, value in state.held.items()}
        keys = dict.fromkeys([*state.done, *done])
        done = {key: choose(when, state.done.get(key, FALSE), done.get(key, FALSE)) for key in keys}
    return State(reached, variables, held, done)
