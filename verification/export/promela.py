"""A table under its transports as a Promela model: one process a rank, one `d_step` an executed row.

The global variables are exactly the components of a state of the reference model, so SPIN, unreduced, stores as many
states as our search. With `-DVERDICT` ranks end and a monitor checks what must hold when all have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from headway.spec.language import Expr, SpecError, static_value
from headway.spec.table import Await, Gate, Local, Post, Receive, Row, domain_values
from headway.verification.export.expressions import Names, promela_expression
from headway.verification.model import Model

_SUPPORTED = ("posted", "rendezvous", "lazy", "stream_ordered")


def promela(model: Model) -> str:
    """The Promela text. Raises `SpecError` for what has no translation, naming it."""
    return _Exporter(model).text()


class _Exporter:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.network = model.network
        self.names = Names(model.window)
        self._refuse_unsupported()
        self.width = max([1, *(len(channel.fields) for channel in model.protocol.channels)])
        self.temporaries = self.width
        for role in model.roles:
            for variable in role.variables:
                self.names.declare(variable.domain)
            self.temporaries = max(self.temporaries, *(len(row.effects) for row in role.rows))

    def _refuse_unsupported(self) -> None:
        for name, transport in self.network.transports.items():
            if transport.kind not in _SUPPORTED:
                raise SpecError(f"channel {name!r}: transport {transport.name} has no Promela translation")
        if any(len(wire.channels) > 1 for wire in self.network.wires):
            raise SpecError("channels that share a wire have no Promela translation")
        if self.model.gate_timeouts:
            raise SpecError("time-outs of gates have no Promela translation")
        for rank, role in enumerate(self.model.roles):
            for row in role.rows:
                fine = row.operation is None or isinstance(row.operation, Await | Gate | Local | Post | Receive)
                if not fine or (isinstance(row.operation, Post) and row.operation.handle != "keep"):
                    kind = type(row.operation).__name__
                    raise SpecError(f"rank {rank}, row {row.name!r}: this {kind} has no Promela translation")

    def text(self) -> str:
        """Everything."""
        body = [line for rank in range(self.model.ranks) for line in self._process(rank)]
        parts = [
            f"/* table {self.model.protocol.name}, fingerprint {self.model.protocol.fingerprint} */",
            f"/* P = {self.model.ranks}, L = {self.model.slots}, pass numbers modulo {self.model.window} */",
            *(f"hidden int t{i};" for i in range(self.temporaries)),
            *self._queues(),
            *itertools.chain.from_iterable(self._state(rank) for rank in range(self.model.ranks)),
            *body,
            *self._monitor(),
        ]
        return "\n".join(parts) + "\n"

    # --- state -------------------------------------------------------------------------------------------------

    def _capacity(self, wire: int) -> int:
        channel = self.model.protocol.channel(self.network.wires[wire].channels[0])
        return static_value(channel.capacity, self.model.parameters[self.network.wires[wire].source])

    def _queues(self) -> Iterator[str]:
        for wire, (channels, source, sink) in enumerate(self.network.wires):
            yield f"/* wire {wire}: {', '.join(channels)} from rank {source} to rank {sink} */"
            yield f"byte q{wire}_len; short q{wire}_data[{max(1, self._capacity(wire) * self.width)}];"
        for pair in range(len(self.network.pairs)):
            yield f"bit opened{pair};"

    def _state(self, rank: int) -> Iterator[str]:
        role, depths = self.model.roles[rank], self.model.depths[rank]
        yield f"byte r{rank}_at = {role.locations.index(role.start)}; short r{rank}_pass;"
        for variable in role.variables:
            initial = self.names.number(variable.initial)
            yield f"short r{rank}_{variable.name} = {initial};"
            if variable.name in depths:
                yield f"short r{rank}_{variable.name}_past[{depths[variable.name]}] = {initial};"
        for channel in self._posted(rank):
            yield f"bit r{rank}_held_{channel};"

    def _posted(self, rank: int) -> list[str]:
        used = {r.operation.channel for r in self.model.roles[rank].rows if isinstance(r.operation, Post | Await)}
        return [channel.name for channel in self.model.protocol.channels if channel.name in used]

    # --- predicates --------------------------------------------------------------------------------------------

    def _expression(self, expr: Expr, rank: int, got: Mapping[str, str] | None = None) -> str:
        return promela_expression(expr, rank, self.model.parameters[rank], got or {}, self.names)

    def _stands_at(self, rank: int, row: Row) -> str:
        place = self.model.roles[rank].locations.index(row.at)
        return f"(r{rank}_at == {place} && {self._expression(row.guard, rank)})"

    def _any_row(self, rank: int, rows: list[Row]) -> str:
        return "(" + (" || ".join(self._stands_at(rank, row) for row in rows) or "0") + ")"

    def _receiving(self, wire: int) -> str:
        channels, _, sink = self.network.wires[wire]
        return self._any_row(
            sink,
            [
                row
                for row in self.model.roles[sink].rows
                if isinstance(row.operation, Receive) and row.operation.channel in channels
            ],
        )

    def _calls(self, edge: int) -> str:
        """Whether the sink stands at an operation that makes its communicator with the source."""
        network, sink = self.network, self.network.edges[edge].sink
        pair = self._pair(edge)
        rows = []
        for row in self.model.roles[sink].rows:
            if isinstance(row.operation, Receive):
                other = network.incoming[sink, row.operation.channel]
            elif isinstance(row.operation, Post):
                other = network.outgoing[sink, row.operation.channel]
            else:
                continue
            if network.transport(other).kind == "lazy" and self._pair(other) == pair:
                rows.append(row)
        return self._any_row(sink, rows)

    def _pair(self, edge: int) -> tuple[int, int]:
        ends = self.network.edges[edge].source, self.network.edges[edge].sink
        return min(ends), max(ends)

    def _can_post(self, edge: int) -> str:
        transport, wire = self.network.transport(edge), self.network.wire_of[edge]
        if transport.kind == "rendezvous" or (transport.kind == "stream_ordered" and not transport.credits):
            return f"q{wire}_len == 0 && {self._receiving(wire)}"
        if transport.kind == "stream_ordered":
            return f"q{wire}_len < {transport.credits}"
        if transport.kind == "lazy":
            return f"(opened{self.network.pairs.index(self._pair(edge))} || {self._calls(edge)})"
        return "1"

    def _done(self, edge: int) -> str:
        wire = self.network.wire_of[edge]
        if self.network.transport(edge).kind == "stream_ordered":
            return "1"
        return f"(q{wire}_len == 0 || (q{wire}_len == 1 && {self._receiving(wire)}))"

    def _evidence(self, edge: int, gate: Gate) -> str:
        wire = self.network.wire_of[edge]
        if gate.counter == "sent":
            return f"q{wire}_len > 0"
        source, channel = self.network.edges[edge].source, self.network.edges[edge].channel
        rows = [
            row
            for row in self.model.roles[source].rows
            if isinstance(row.operation, Post) and row.operation.channel == channel
        ]
        return f"(q{wire}_len > 0 || {self._any_row(source, rows)})"

    # --- rows --------------------------------------------------------------------------------------------------

    def _process(self, rank: int) -> Iterator[str]:
        role = self.model.roles[rank]
        end = role.locations.index(role.end)
        yield f"active proctype Rank{rank}() {{"
        yield "#ifndef VERDICT"
        yield "end:"
        yield "#endif"
        yield "  do"
        for row in role.rows:
            yield from self._options(rank, row)
        yield "#ifdef VERDICT"
        yield f"  :: r{rank}_at == {end} -> break"
        yield "#endif"
        yield "  od }"

    def _options(self, rank: int, row: Row) -> Iterator[str]:
        operation, network = row.operation, self.network
        stands = self._stands_at(rank, row)
        if isinstance(operation, Local) and operation.returns:
            fields = [name for name, _ in operation.returns]
            parameters = self.model.parameters[rank]
            domains = [domain_values(domain, parameters, self.model.window) for _, domain in operation.returns]
            for values in itertools.product(*domains):
                got = {f: str(self.names.number(v)) for f, v in zip(fields, values, strict=True)}
                may = self._expression(row.assume, rank, got)
                yield self._step(rank, row, f"{stands} && {may}", [], got)
        elif isinstance(operation, Receive):
            edge = network.incoming[rank, operation.channel]
            wire = network.wire_of[edge]
            channel = self.model.protocol.channel(operation.channel)
            got = {name: f"t{i}" for i, (name, _) in enumerate(channel.fields)}
            take = [f"t{i} = q{wire}_data[{i}]" for i in range(len(channel.fields))]
            take += [f"assert({got[name]} == {self._expression(expr, rank, got)})" for name, expr in operation.expect]
            yield self._step(rank, row, f"{stands} && q{wire}_len > 0", [*take, *self._shift(wire)], got)
        elif isinstance(operation, Post):
            edge = network.outgoing[rank, operation.channel]
            yield self._step(rank, row, f"{stands} && {self._can_post(edge)}", self._append(rank, edge, operation), {})
        elif isinstance(operation, Await):
            edge, held = network.outgoing[rank, operation.channel], f"r{rank}_held_{operation.channel}"
            ready = f"(!{held} || {self._done(edge)})"
            yield self._step(rank, row, f"{stands} && {ready}", [f"assert({held})", f"{held} = 0"], {})
        elif isinstance(operation, Gate):
            edge = network.incoming[rank, operation.channel]
            yield self._step(rank, row, f"{stands} && {self._evidence(edge, operation)}", [], {})
        else:
            yield self._step(rank, row, stands, [], {})

    def _shift(self, wire: int) -> list[str]:
        size = self._capacity(wire) * self.width
        moved = [f"q{wire}_data[{i}] = q{wire}_data[{i + self.width}]" for i in range(size - self.width)]
        cleared = [f"q{wire}_data[{i}] = 0" for i in range(max(0, size - self.width), size)]
        return [*moved, *cleared, f"q{wire}_len = q{wire}_len - 1"]

    def _append(self, rank: int, edge: int, post: Post) -> list[str]:
        wire, held = self.network.wire_of[edge], f"r{rank}_held_{post.channel}"
        given = dict(post.fields)
        fields = self.model.protocol.channel(post.channel).fields
        lines = [f"assert(!{held} && q{wire}_len < {self._capacity(wire)})", f"{held} = 1"]
        for i, (name, _) in enumerate(fields):
            lines.append(f"q{wire}_data[q{wire}_len * {self.width} + {i}] = {self._expression(given[name], rank)}")
        lines.append(f"q{wire}_len = q{wire}_len + 1")
        if self.network.transport(edge).kind == "lazy":
            lines.append(f"opened{self.network.pairs.index(self._pair(edge))} = 1")
        return lines

    def _step(self, rank: int, row: Row, guard: str, actions: list[str], got: Mapping[str, str]) -> str:
        role, lines = self.model.roles[rank], list(actions)
        # Received fields sit in the first temporaries, so effects are computed into the ones after them.
        base = len(got) if isinstance(row.operation, Receive) else 0
        self.temporaries = max(self.temporaries, base + len(row.effects))
        lines += [f"t{base + i} = {self._expression(e, rank, got)}" for i, (_, e) in enumerate(row.effects)]
        for i, (name, _) in enumerate(row.effects):
            values = domain_values(role.variable(name).domain, self.model.parameters[rank], self.model.window)
            numbers = [self.names.number(value) for value in values]
            lines.append(f"assert(t{base + i} >= {min(numbers)} && t{base + i} <= {max(numbers)})")
            lines.append(f"r{rank}_{name} = t{base + i}")
        lines.append(f"r{rank}_at = {role.locations.index(row.to)}")
        if row.advances:
            lines += self._advance(rank)
        return f"  :: d_step {{ {guard} -> {'; '.join(lines)} }} /* {row.name} */"

    def _advance(self, rank: int) -> list[str]:
        window = self.model.window
        lines = [f"r{rank}_pass = (r{rank}_pass + 1) % {window}"]
        for name, depth in self.model.depths[rank].items():
            past = f"r{rank}_{name}_past"
            lines += [f"{past}[{i}] = {past}[{i - 1}]" for i in range(depth - 1, 0, -1)]
            lines.append(f"{past}[0] = r{rank}_{name}")
        for other in range(self.model.ranks):
            if other != rank:
                lines.append(f"assert((r{rank}_pass - r{other}_pass + {window}) % {window} != {window // 2})")
        return lines

    def _monitor(self) -> Iterator[str]:
        ends = [f"r{r}_at == {role.locations.index(role.end)}" for r, role in enumerate(self.model.roles)]
        empty = [f"q{wire}_len == 0" for wire in range(len(self.network.wires))]
        free = [f"!r{rank}_held_{c}" for rank in range(self.model.ranks) for c in self._posted(rank)]
        yield "#ifdef VERDICT"
        yield "active proctype Monitor() {"
        yield f"end: d_step {{ {' && '.join(ends)} -> assert({' && '.join([*empty, *free]) or '1'}) }} }}"
        yield "#endif"
