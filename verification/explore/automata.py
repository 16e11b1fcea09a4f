"""Each rank alone as a finite automaton: what it does in each of its own states, and where that leads.

Guards and effects are compiled to Python here, once a role, and evaluated once a local state; the kernels then only
look up tables. Messages are closed over all ranks: a receive is answered for every message that some rank can post and
whose expected fields fit, so the automata cover more than can be reached together, and never less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headway.spec.language import SpecError, Value
from headway.spec.table import Collective
from headway.verification.explore.source import role_source
from headway.verification.model import Model

MOVE, POST, AWAIT, RECEIVE, GATE, PROBE, COLLECTIVE, END = range(8)
VIOLATION = -1  # as a successor: the step breaks a law of this rank alone

Local = tuple[Value, ...]  # location number, pass, variables, history, held channels (bits), collective turns (bits)


@dataclass
class Automaton:
    """One rank. Lists are indexed by local state; `successors` are local states or `VIOLATION`.

    `target` is the edge (or collective) of the operation, `detail` the message number of a post, the handle treatment
    is `handle` (0 keep, 1 drop, 2 overwrite a live one); for gates and probes `detail` is 1 for the counter "sent" and
    `handle` is 1 for the scope "wire"; for a collective `detail` is the turn.
    """

    states: list[Local] = field(default_factory=list)
    numbers: dict[Local, int] = field(default_factory=dict)
    row: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    detail: list[int] = field(default_factory=list)
    handle: list[int] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)
    taken: dict[int, dict[int, int]] = field(default_factory=dict)  # receiving state -> message -> successor

    def number(self, state: Local) -> int:
        """The number of a local state, new ones appended (their operation is filled in by the closure)."""
        known = self.numbers.get(state)
        if known is None:
            known = self.numbers[state] = len(self.states)
            self.states.append(state)
        return known


@dataclass
class Automata:
    """All ranks of an instance, the messages of each wire, and who else matters.

    `messages[w]` lists the messages of wire w as (edge, values); `waiting` and `present` index receives and messages by
    expected fields while the closure runs.
    """

    model: Model
    ranks: list[Automaton]
    messages: list[list[tuple[int, tuple[Value, ...]]]]
    collectives: tuple[str, ...]


def build_automata(model: Model, limit: int = 4_000_000) -> Automata:
    """Close all ranks' automata; raises `SpecError` when they have more than `limit` local states in all."""
    return _Closure(model, limit).run()


class _Closure:
    def __init__(self, model: Model, limit: int) -> None:
        self.model, self.limit, network = model, limit, model.network
        self.collectives = tuple(
            dict.fromkeys(
                row.operation.name
                for role in model.protocol.roles
                for row in role.rows
                if isinstance(row.operation, Collective)
            )
        )
        self.automata = [Automaton() for _ in range(model.ranks)]
        self.messages: list[list[tuple[int, tuple[Value, ...]]]] = [[] for _ in network.wires]
        self.known: list[dict[tuple[int, tuple[Value, ...]], int]] = [{} for _ in network.wires]
        self.programs = [role_source(model, rank, self.collectives).load() for rank in range(model.ranks)]
        self.work: list[tuple[int, int]] = []
        # per (edge, positions of the expected fields): receives by expected values, messages by those fields
        self.receives: dict[tuple[int, tuple[int, ...]], dict[tuple[Value, ...], list[tuple[int, Take]]]] = {}
        self.present: dict[tuple[int, tuple[int, ...]], dict[tuple[Value, ...], list[int]]] = {}
        self.shapes: dict[int, list[tuple[int, ...]]] = {}

    def run(self) -> Automata:
        for rank, program in enumerate(self.programs):
            self._reach(rank, program.initial)
        while self.work:
            rank, number = self.work.pop()
            self._fill(rank, number)
        return Automata(self.model, self.automata, self.messages, self.collectives)

    def _reach(self, rank: int, state: Local | None) -> int:
        if state is None:
            return VIOLATION
        automaton = self.automata[rank]
        size = len(automaton.states)
        number = automaton.number(state)
        if number == size:
            self.work.append((rank, number))
            for column in (automaton.row, automaton.kind, automaton.target, automaton.detail, automaton.handle):
                column.append(0)
            automaton.successors.append([])
            if size >= self.limit:
                raise SpecError(
                    f"rank {rank} has more than {self.limit} states of its own; allowed: a smaller instance"
                )
        return number

    def _fill(self, rank: int, number: int) -> None:
        automaton = self.automata[rank]
        state = automaton.states[number]
        row, kind, target, detail, handle, after = self.programs[rank].at[int(state[0])](state)
        automaton.row[number], automaton.kind[number] = row, kind
        automaton.target[number], automaton.handle[number] = target, handle
        if kind == RECEIVE:
            shape, key, take = detail
            self._await_message(rank, number, target, shape, key, take)
            return
        automaton.detail[number] = self._message(target, detail) if kind == POST else detail
        automaton.successors[number] = [self._reach(rank, state) for state in after]

    def _message(self, edge: int, values: tuple[Value, ...]) -> int:
        wire = self.model.network.wire_of[edge]
        number = self.known[wire].get((edge, values))
        if number is None:
            number = self.known[wire][edge, values] = len(self.messages[wire])
            self.messages[wire].append((edge, values))
            for shape in self.shapes.get(edge, ()):
                self._offer(edge, shape, number, values)
        return number

    def _offer(self, edge: int, shape: tuple[int, ...], message: int, values: tuple[Value, ...]) -> None:
        key = tuple(values[i] for i in shape)
        self.present[edge, shape].setdefault(key, []).append(message)
        for number, take in self.receives[edge, shape].get(key, ()):
            self._take(edge, number, message, values, take)

    def _await_message(
        self, rank: int, number: int, edge: int, shape: tuple[int, ...], key: tuple[Value, ...], take: Take
    ) -> None:
        self.automata[rank].taken[number] = {}
        wire = self.model.network.wire_of[edge]
        if shape not in self.shapes.setdefault(edge, []):
            self.shapes[edge].append(shape)
            self.receives[edge, shape], self.present[edge, shape] = {}, {}
            for message, (of, values) in enumerate(self.messages[wire]):
                if of == edge:
                    self._offer(edge, shape, message, values)
        self.receives[edge, shape].setdefault(key, []).append((number, take))
        for message in self.present[edge, shape].get(key, ()):
            self._take(edge, number, message, self.messages[wire][message][1], take)

    def _take(self, edge: int, number: int, message: int, values: tuple[Value, ...], take: Take) -> None:
        rank = self.model.network.edges[edge].sink
        automaton = self.automata[rank]
        automaton.taken[number][message] = self._reach(rank, take(automaton.states[number], values))


Take = Callable[[Local, tuple[Value, ...]], Any]
