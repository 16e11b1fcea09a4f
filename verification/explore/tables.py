"""The lookup tables of an instance: local states, queue contents and edges as arrays; the layout of a packed state.

A state of the pipeline is a vector of small numbers: one local state a rank, one content a wire or stash, one bit a
lazy pair. They are packed into as many words of 62 bits as it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headway.spec.language import static_value
from headway.verification.explore.automata import GATE, POST, PROBE, RECEIVE, VIOLATION, Automata
from headway.verification.explore.columns import (
    ADVANCES,
    ALONE,
    CLOSING,
    FIRST,
    FLAGS,
    HANDLE,
    HELD,
    KIND,
    KINDS,
    MASK,
    SIZE,
    TARGET,
    TURNS,
)
from headway.verification.explore.contents import Contents, enumerate_contents, follow
from headway.verification.explore.joint import joint_tables
from headway.verification.model import Model
from headway.verification.reduction import Touching
from headway.verification.states import Message, RankState, State

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

WORD_BITS = 62
MARK = 1 << 62  # set in the first word of every state, so that a word of zeros is none


class Tables(NamedTuple):
    """What the kernels look up; the columns of each array are in `columns`.

    Local states, messages and contents are numbered within their rank, wire and queue; the `*_BASE` columns say where
    those numbers begin.
    """

    globals_: Ints
    fields: Ints
    rank_base: Ints  # first local state of each rank
    locals_: Array
    after: Array  # successors of local states; a receive has one for each message of its wire
    edges: Ints
    queues: Ints
    contents: Array
    by_channel: Array  # content * channels + channel
    pushed: Array  # push base + content * messages + message: contents after a post
    message_edge: Array  # message base + message: the edge that it is posted on
    joint: Array  # where the changes of a local state's step are, see `joint`
    change: Ints


@dataclass(frozen=True)
class Compiled:
    """An instance ready for the kernels."""

    model: Model
    automata: Automata
    tables: Tables
    contents: tuple[Contents, ...]  # of each wire, then of each stash
    stash_edges: tuple[int, ...]
    words: int
    most_successors: int

    @property
    def bits(self) -> int:
        """Bits of a packed state."""
        return sum(int(mask).bit_length() for mask in self.tables.fields[:, MASK])

    def initial(self) -> Ints:
        """The packed initial state: every field is numbered from its initial value."""
        state = np.zeros(self.words, np.int64)
        state[0] = MARK
        return state

    def ordered(self, order: list[int]) -> Ints:
        """An order of ranks for the kernels: the ranks, and by rank whether its closing steps count."""
        closing = Touching(self.model).closing(order)
        return np.array([order, [len(rows) > 0 for rows in closing]], np.int64)

    def unpack(self, state: Ints) -> State:
        """The state that a packed one stands for."""
        model = self.model
        values = [(int(state[w]) >> s) & m for w, s, m in self.tables.fields[:-1].tolist()]
        ranks = tuple(self._rank(rank, values[rank]) for rank in range(model.ranks))
        queues = values[model.ranks : model.ranks + len(self.contents)]
        wires = len(model.network.wires)
        on_wires = tuple(self._queue(q, c) for q, c in enumerate(queues[:wires]))
        stashes: list[tuple[Message, ...]] = [()] * len(model.network.edges)
        for i, edge in enumerate(self.stash_edges):
            stashes[edge] = self._queue(wires + i, queues[wires + i])
        opened = tuple(bool(bit) for bit in values[model.ranks + len(self.contents) :])
        return State(ranks, on_wires, tuple(stashes), opened)

    def _rank(self, rank: int, number: int) -> RankState:
        role, depths = self.model.roles[rank], self.model.depths[rank]
        location, this_pass, *rest, held, turns = self.automata.ranks[rank].states[number]
        variables = tuple(rest[: len(role.variables)])
        history, at = [], len(role.variables)
        for depth in depths.values():
            history.append(tuple(rest[at : at + depth]))
            at += depth
        channels = [c.name for c in self.model.protocol.channels]
        return RankState(
            role.locations[int(location)],
            int(this_pass),
            variables,
            tuple(history),
            tuple(sorted(name for i, name in enumerate(channels) if int(held) >> i & 1)),
            tuple(sorted(name for i, name in enumerate(self.automata.collectives) if int(turns) >> i & 1)),
        )

    def _queue(self, queue: int, content: int) -> tuple[Message, ...]:
        network, messages = self.model.network, self.contents[queue]
        live, lost = messages.items[content]
        wire = queue if queue < len(network.wires) else network.wire_of[self.stash_edges[queue - len(network.wires)]]
        known = self.automata.messages[wire]
        channels = network.wires[wire].channels
        return (
            *(Message(network.edges[known[m][0]].channel, known[m][1]) for m in live),
            *(Message(name, None) for name in sorted(channels[c] for c in lost)),
        )


def compile_tables(automata: Automata) -> Compiled:
    """Number everything and lay out the packed state."""
    model = automata.model
    network = model.network
    rank_base = _sums([len(a.states) for a in automata.ranks])
    locals_, after, most = _local_tables(automata)
    locals_[:, FLAGS] |= _alone(automata, rank_base, locals_, after)
    width = max([1, *(len(w.channels) for w in network.wires)])
    contents, stash_edges = _contents(automata, rank_base, locals_, after, width)
    fields = [len(a.states) for a in automata.ranks] + [len(c.items) for c in contents] + [2] * len(network.pairs)
    layout, words = _layout(fields)
    lossy = any(c.pushed.shape[2] > 1 for c in contents)
    arrays = (
        np.array([model.ranks, model.window, model.gate_timeouts, width], np.int64),
        layout,
        rank_base,
        locals_,
        after,
        _edges(automata, stash_edges, model.ranks + len(contents)),
        _queues(automata, contents, stash_edges),
        _joined([c.table for c in contents], 5),
        _joined([c.by_channel.reshape(-1, 2) for c in contents], 2),
        _joined([_widen(c.pushed, lossy) for c in contents], 3 if lossy else 1),
        np.array([edge for known in automata.messages for edge, _ in known] or [0], np.int32),
    )
    tables = Tables(*arrays, *joint_tables(*arrays))
    return Compiled(model, automata, tables, contents, stash_edges, words, most)


def _joined(parts: list[Array], columns: int) -> Array:
    return np.concatenate([np.zeros((0, columns), np.int32), *parts])


def _widen(pushed: Array, lossy: bool) -> Array:
    flat = pushed.reshape(-1, pushed.shape[2])
    return np.repeat(flat, 3, axis=1) if lossy and flat.shape[1] == 1 else flat


def _layout(sizes: list[int]) -> tuple[Ints, int]:
    """Word, shift and mask of each field, first fit from the widest, none across two words; and an empty field."""
    bits = [max(1, (size - 1).bit_length()) for size in sizes]
    used: list[int] = []
    fields = np.zeros((len(sizes), 3), np.int64)
    for i in sorted(range(len(sizes)), key=lambda i: -bits[i]):
        word = next((w for w, filled in enumerate(used) if filled + bits[i] <= WORD_BITS), len(used))
        if word == len(used):
            used.append(0)
        fields[i] = word, used[word], (1 << bits[i]) - 1
        used[word] += bits[i]
    return np.concatenate([fields, np.zeros((1, 3), np.int64)]), len(used)


def _local_tables(automata: Automata) -> tuple[Array, Array, int]:
    """Columns of all local states, their successors, and the most successors that a state of the pipeline can have."""
    network = automata.model.network
    rows: list[tuple[int, ...]] = []
    after: list[int] = []
    most = 0
    for automaton in automata.ranks:
        widest = 1
        for number, state in enumerate(automaton.states):
            first = len(after)
            if automaton.kind[number] == RECEIVE:
                row = [VIOLATION] * len(automata.messages[network.wire_of[automaton.target[number]]])
                for message, successor in automaton.taken[number].items():
                    row[message] = successor
            else:
                row = automaton.successors[number]
                widest = max(widest, len(row))
            after += row
            advances = any(a >= 0 and automaton.states[a][1] != state[1] for a in row)
            flags = HELD * (state[-2] != 0) | ADVANCES * advances | int(state[-1]) << TURNS
            columns = (automaton.kind, automaton.target, automaton.detail, automaton.handle)
            rows.append((*(column[number] for column in columns), first, len(row), int(state[1]), flags))
        most += widest
    return np.array(rows, np.int32), np.array(after or [0], np.int32), most


def _alone(automata: Automata, rank_base: Ints, locals_: Array, after: Array) -> Array:
    """For each local state the bits ALONE, if its step does not touch (for any message received), and CLOSING."""
    model, network = automata.model, automata.model.network
    facts = Touching(model)
    attempts = [edge for edge, attempted in facts.watched.items() if attempted]
    receives = [edge for edge, wire in enumerate(network.wire_of) if wire in facts.losing_wires]
    polls = [PROBE, GATE] if model.gate_timeouts else [PROBE]
    alone = np.zeros(len(locals_), np.int32)
    for rank, (base, automaton) in enumerate(zip(rank_base, automata.ranks, strict=True)):
        mine = locals_[base:][: len(automaton.states)]
        kind, target = mine[:, KIND], mine[:, TARGET]
        meets = ((kind == POST) & np.isin(target, [*facts.watched, *facts.losing])) | np.isin(kind, polls)
        meets |= (kind == RECEIVE) & np.isin(target, receives)
        standing = ((kind == POST) & np.isin(target, attempts)) | ((kind == RECEIVE) & np.isin(target, receives))
        closing = [i for i, row in enumerate(model.roles[rank].rows) if row.name in facts.closing_rows[rank]]
        touches = meets | _leading_to(mine, after, standing)
        alone[base : base + len(mine)] = ALONE * ~touches + CLOSING * np.isin(automaton.row, closing)
    return alone


def _leading_to(locals_: Array, after: Array, marked: Array) -> Array:
    """Which of a rank's local states have a successor that is marked."""
    first, count = locals_[:, FIRST].astype(np.int64), locals_[:, SIZE].astype(np.int64)
    owner = np.repeat(np.arange(len(first)), count)
    where = np.repeat(first, count) + np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    successor = after[where]
    hit = (successor >= 0) & marked[np.maximum(successor, 0)]
    found = np.zeros(len(first), np.bool_)
    found[owner[hit]] = True
    return found


def _contents(
    automata: Automata, rank_base: Ints, locals_: Array, after: Array, width: int
) -> tuple[tuple[Contents, ...], tuple[int, ...]]:
    """The contents of each wire, then of each stash, and the edges that have a stash."""
    model, network = automata.model, automata.model.network
    result = []
    for wire, (channels, source, _) in enumerate(network.wires):
        mine = locals_[rank_base[source] :][: len(automata.ranks[source].states)]
        edges = [network.outgoing[source, channel] for channel in channels]
        capacities = [_capacity(model, edge) for edge in edges]
        contract = network.transports[channels[0]]
        longest = sum(capacities)
        if contract.kind == "rendezvous" or (contract.kind == "stream_ordered" and contract.credits == 0):
            longest = 1
        elif contract.kind == "stream_ordered":
            longest = min(longest, contract.credits)
        channel_of = [channels.index(network.edges[edge].channel) for edge, _ in automata.messages[wire]]
        losing = [edge for edge in edges if network.cancels(edge)]
        loses = bool(np.any((mine[:, KIND] == POST) & np.isin(mine[:, TARGET], losing) & (mine[:, HANDLE] > 0)))
        relation = follow(mine, after, edges, len(channel_of))
        result.append(enumerate_contents(relation, channel_of, capacities, longest, loses, width))
    stash_edges = []
    for edge, (channel, source, _) in enumerate(network.edges):
        wire = network.wire_of[edge]
        shared = model.protocol.channel(channel).wire
        others = [c for c in network.wires[wire].channels if c != channel]
        if not shared or not any(model.protocol.channel(c).wire == shared for c in others):
            continue
        stash_edges.append(edge)
        mine = locals_[rank_base[source] :][: len(automata.ranks[source].states)]
        channel_of = [0 if e == edge else -1 for e, _ in automata.messages[wire]]
        relation = follow(mine, after, [edge], len(channel_of))
        capacity = _capacity(model, edge)
        result.append(enumerate_contents(relation, channel_of, [capacity], capacity, False, width))
    return tuple(result), tuple(stash_edges)


def _capacity(model: Model, edge: int) -> int:
    channel, source, _ = model.network.edges[edge]
    return static_value(model.protocol.channel(channel).capacity, model.parameters[source])


def _edges(automata: Automata, stash_edges: tuple[int, ...], first_pair: int) -> Ints:
    model, network = automata.model, automata.model.network
    groups = list(dict.fromkeys(c.wire for c in model.protocol.channels if c.wire))
    rows = []
    for i, edge in enumerate(network.edges):
        contract, wire, shared = network.transport(i), network.wire_of[i], model.protocol.channel(edge.channel).wire
        pair = (min(edge.source, edge.sink), max(edge.source, edge.sink))
        rows.append(
            (
                wire,
                network.wires[wire].channels.index(edge.channel),
                edge.source,
                edge.sink,
                KINDS.index(contract.kind),
                contract.credits,
                _capacity(model, i),
                len(network.wires) + stash_edges.index(i) if i in stash_edges else -1,
                groups.index(shared) if shared else -1,
                first_pair + network.pairs.index(pair) if contract.kind == "lazy" else -1,
                network.cancels(i),
            )
        )
    return np.array(rows, np.int64).reshape(-1, 11)


def _queues(automata: Automata, contents: tuple[Contents, ...], stash_edges: tuple[int, ...]) -> Ints:
    network = automata.model.network
    wires = [*range(len(network.wires)), *(network.wire_of[edge] for edge in stash_edges)]
    messages = [len(automata.messages[wire]) for wire in wires]
    sizes = [len(c.items) for c in contents]
    message_base = _sums([len(m) for m in automata.messages])
    columns = [
        _sums(sizes),
        _sums([n * m for n, m in zip(sizes, messages, strict=True)]),
        messages,
        [network.wires[w].sink for w in wires],
        [network.back_wires.get(w, -1) for w in wires],
        [network.transports[network.wires[w].channels[0]].credits for w in wires],
        [int(message_base[w]) for w in wires],
    ]
    return np.array(columns, np.int64).reshape(7, -1).T.copy()


def _sums(sizes: list[int]) -> Ints:
    """Where each part begins when parts of these sizes are joined."""
    return np.cumsum([0, *sizes])[:-1].astype(np.int64)
