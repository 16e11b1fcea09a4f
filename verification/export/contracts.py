"""Transport contracts in Promela: `verification.network`, condition by condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headway.spec.language import Expr, static_value
from headway.spec.table import Collective, Gate, Post, Probe, Receive, Row, domain_values
from headway.verification.export.expressions import Names, promela_expression
from headway.verification.export.queues import Queue, integer_type
from headway.verification.model import Model


class Contracts:
    """The wires of a model as queues, and what its operations wait for as Promela conditions."""

    def __init__(self, model: Model, names: Names) -> None:
        self.model, self.network, self._names = model, model.network, names
        self.queues = tuple(self._queue(wire) for wire in range(len(self.network.wires)))
        self.stashes = {edge: self._stash(edge) for edge in range(len(self.network.edges)) if self._may_stash(edge)}

    # --- queues ------------------------------------------------------------------------------------------------

    def _queue(self, wire: int) -> Queue:
        channels, source, _ = self.network.wires[wire]
        width = max(len(self.model.protocol.channel(name).fields) for name in channels)
        size = sum(self._capacity(name, source) for name in channels)
        losable = any(self._may_lose(edge) for edge, of in enumerate(self.network.wire_of) if of == wire)
        return Queue(f"q{wire}", max(1, size), width, self._element(channels, source), len(channels), losable)

    def _stash(self, edge: int) -> Queue:
        channel, source, _ = self.network.edges[edge]
        width = len(self.model.protocol.channel(channel).fields)
        return Queue(f"s{edge}", max(1, self._capacity(channel, source)), width, self._element((channel,), source))

    def _capacity(self, channel: str, source: int) -> int:
        return static_value(self.model.protocol.channel(channel).capacity, self.model.parameters[source])

    def _element(self, channels: tuple[str, ...], source: int) -> str:
        model = self.model
        domains = [domain for name in channels for _, domain in model.protocol.channel(name).fields]
        values = [v for domain in domains for v in domain_values(domain, model.parameters[source], model.window)]
        return integer_type([self._names.number(value) for value in values])

    def _may_stash(self, edge: int) -> bool:
        """Whether a receiver may put messages of this edge aside for a channel of the same named wire."""
        channel = self.network.edges[edge].channel
        name = self.model.protocol.channel(channel).wire
        others = self.network.wires[self.network.wire_of[edge]].channels
        return bool(name) and any(o != channel and self.model.protocol.channel(o).wire == name for o in others)

    def _may_lose(self, edge: int) -> bool:
        if not self.network.cancels(edge):
            return False
        channel, source, _ = self.network.edges[edge]
        posts = [row.operation for row in self._posts(source, (channel,)) if isinstance(row.operation, Post)]
        return any(post.handle == "overwrite" or self.network.forgets(edge, post) for post in posts)

    # --- who stands where ----------------------------------------------------------------------------------------

    def expression(self, expr: Expr, rank: int, got: Mapping[str, str] | None = None) -> str:
        """An expression of a rank."""
        return promela_expression(expr, rank, self.model.parameters[rank], got or {}, self._names)

    def stands_at(self, rank: int, row: Row) -> str:
        """Whether the rank stands at that row."""
        place = self.model.roles[rank].locations.index(row.at)
        return f"(r{rank}_at == {place} && {self.expression(row.guard, rank)})"

    def _posts(self, rank: int, channels: tuple[str, ...]) -> list[Row]:
        rows = self.model.roles[rank].rows
        return [row for row in rows if isinstance(row.operation, Post) and row.operation.channel in channels]

    def _any(self, conditions: list[str]) -> str:
        return f"({' || '.join(conditions) or '0'})"

    def _no_stash(self, edge: int) -> str:
        return f" && {self.stashes[edge].length} == 0" if edge in self.stashes else ""

    def definitions(self) -> Iterator[str]:
        """Macros: whether the receiver of a wire stands at a receive that takes from it, and whether that has begun."""
        for wire, (channels, source, sink) in enumerate(self.network.wires):
            yield f"/* wire {wire}: {', '.join(channels)} from rank {source} to rank {sink} */"
            at = []
            for row in self.model.roles[sink].rows:
                if isinstance(row.operation, Receive) and row.operation.channel in channels:
                    edge = self.network.incoming[sink, row.operation.channel]
                    at.append(self.stands_at(sink, row) + self._no_stash(edge))
            yield f"#define at_receive{wire} {self._any(at)}"
            yield f"#define receiving{wire} {self._begun(wire)}"

    def _begun(self, wire: int) -> str:
        back = self.network.back_wires.get(wire)
        if back is None:
            return f"at_receive{wire}"
        # Operations of a pair of ranks take effect in the order of issue: earlier sends first.
        sent = f"{self.queues[back].length}"
        peer = f"{sent} == 1 && {self.queues[wire].length} <= {self._credits(wire)} && at_receive{back}"
        return f"(at_receive{wire} && ({sent} <= {self._credits(back)} || ({peer})))"

    def _credits(self, wire: int) -> int:
        return self.network.transports[self.network.wires[wire].channels[0]].credits

    # --- what operations wait for ----------------------------------------------------------------------------

    def can_post(self, edge: int) -> str:
        """Whether a post on this edge returns now."""
        transport, wire = self.network.transport(edge), self.network.wire_of[edge]
        queue = self.queues[wire]
        if transport.kind == "rendezvous" or (transport.kind == "stream_ordered" and not transport.credits):
            return f"{queue.empty()} && receiving{wire}"
        if transport.kind == "stream_ordered":
            return f"{queue.length} < {transport.credits}"
        if transport.kind == "lazy":
            return f"({self.opened(edge)} || {self._calls(edge)})"
        return "1"

    def _pair(self, edge: int) -> tuple[int, int]:
        ends = self.network.edges[edge].source, self.network.edges[edge].sink
        return min(ends), max(ends)

    def opened(self, edge: int) -> str:
        """The bit that says whether this edge's pair of ranks has its communicator."""
        return f"opened{self.network.pairs.index(self._pair(edge))}"

    def _calls(self, edge: int) -> str:
        network, sink = self.network, self.network.edges[edge].sink
        conditions = []
        for row in self.model.roles[sink].rows:
            if isinstance(row.operation, Receive):
                other = network.incoming[sink, row.operation.channel]
                quiet = self._no_stash(other)
            elif isinstance(row.operation, Post):
                other, quiet = network.outgoing[sink, row.operation.channel], ""
            else:
                continue
            if network.transport(other).kind == "lazy" and self._pair(other) == self._pair(edge):
                conditions.append(self.stands_at(sink, row) + quiet)
        return self._any(conditions)

    def done(self, edge: int) -> str:
        """Whether the last send on this edge is complete."""
        transport, wire = self.network.transport(edge), self.network.wire_of[edge]
        if transport.kind == "stream_ordered":
            return "1"
        queue, k = self.queues[wire], transport.credits
        kind = self.network.wires[wire].channels.index(self.network.edges[edge].channel)
        conditions = [f"({queue.lost} & {1 << kind}) == 0"] if queue.losable else []
        for place in range(k, queue.size):
            pending = f"!{queue.holds(place, kind)}"
            conditions.append(pending if place else f"({pending} || receiving{wire})")
        return f"({' && '.join(conditions) or '1'})"

    def evidence(self, edge: int, gate: Gate | Probe) -> str:
        """Whether the counter of a gate shows a message that has not been taken."""
        wire = self.network.wire_of[edge]
        channels, source, _ = self.network.wires[wire]
        counted = (gate.channel,) if gate.scope == "channel" else channels
        parts = [self.queues[wire].has([channels.index(name) for name in counted])]
        if edge in self.stashes:
            parts.append(f"{self.stashes[edge].length} > 0")
        if gate.counter == "attempted":
            parts += [self.stands_at(source, row) for row in self._posts(source, counted)]
        return self._any(parts)

    def all_inside(self, rank: int, collective: Collective) -> str:
        """Whether every other rank has entered this collective, or has already left it."""
        conditions = []
        for other, role in enumerate(self.model.roles):
            rows = [row for row in role.rows if row.operation == collective]
            if other == rank:
                continue
            inside = [self.stands_at(other, row) for row in rows]
            turn = f"r{other}_turn_{collective.name}" if rows else "0"
            conditions.append(self._any([f"{turn} != r{rank}_turn_{collective.name}", *inside]))
        return f"({' && '.join(conditions) or '1'})"
