"""A table under its transports as a Promela model: one process a rank, one `d_step` an executed row.

The global variables are exactly the components of a state of the reference model, and a row that breaks a law leaves
the state as it is: so SPIN, unreduced, stores as many states and takes as many transitions as our search. With
`-DVERDICT` such a row is a failed assertion, ranks end, and a monitor checks what must hold when all have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from headway.spec.language import Bool, Domain, Expr, static_value
from headway.spec.table import Await, Collective, Gate, Local, Post, Probe, Receive, Row, domain_values
from headway.verification.export.contracts import Contracts
from headway.verification.export.expressions import Names
from headway.verification.export.queues import Queue, integer_type
from headway.verification.model import Model

_STOPPED = 255  # where every rank is once a gate has stopped the group


def promela(model: Model) -> str:
    """The Promela text."""
    return _Exporter(model).text()


class _Exporter:
    def __init__(self, model: Model) -> None:
        self.model, self.network = model, model.network
        self.names = Names(model.window)
        for role in model.roles:
            for variable in role.variables:
                self.names.declare(variable.domain)
        self.contracts = Contracts(model, self.names)
        self.temporaries = 1

    def text(self) -> str:
        """Everything."""
        body = [line for rank in range(self.model.ranks) for line in self._process(rank)]
        variables = list(self._variables())
        protocol = self.model.protocol
        parts = [
            f"/* table {protocol.name}, fingerprint {protocol.fingerprint} */",
            f"/* P = {self.model.ranks}, L = {self.model.slots}, pass numbers modulo {self.model.window} */",
            "#ifdef VERDICT",
            "#define BROKEN assert(false)",
            "#else",
            "#define BROKEN skip",
            "#endif",
            *(f"hidden int t{i};" for i in range(self.temporaries)),
            *(_declaration(*variable) for variable in variables),
            *self.contracts.definitions(),
            *(self._stop(variables) if self.model.gate_timeouts else ()),
            *body,
            *self._monitor(),
        ]
        return "\n".join(parts) + "\n"

    # --- state -------------------------------------------------------------------------------------------------

    def _variables(self) -> Iterator[tuple[str, str, int, int]]:
        """Type, name, number of elements (0: no array) and initial value of everything that a state is made of."""
        for queue in (*self.contracts.queues, *self.contracts.stashes.values()):
            yield from ((kind, name, size, 0) for kind, name, size in queue.variables())
        for pair in range(len(self.network.pairs)):
            yield "bit", f"opened{pair}", 0, 0
        for rank, role in enumerate(self.model.roles):
            yield "byte", f"r{rank}_at", 0, role.locations.index(role.start)
            if self.model.window > 1:
                yield integer_type([self.model.window]), f"r{rank}_pass", 0, 0
            for variable in role.variables:
                kind = integer_type(self._numbers(variable.domain, rank))
                initial = self.names.number(variable.initial)
                yield kind, f"r{rank}_{variable.name}", 0, initial
                if (depth := self.model.depths[rank].get(variable.name)) is not None:
                    yield kind, f"r{rank}_{variable.name}_past", depth, initial
            for channel in self._channels_of(rank):
                yield "bit", f"r{rank}_held_{channel}", 0, 0
            for name in sorted({r.operation.name for r in role.rows if isinstance(r.operation, Collective)}):
                yield "bit", f"r{rank}_turn_{name}", 0, 0

    def _channels_of(self, rank: int) -> list[str]:
        used = {r.operation.channel for r in self.model.roles[rank].rows if isinstance(r.operation, Post | Await)}
        return [channel.name for channel in self.model.protocol.channels if channel.name in used]

    def _numbers(self, domain: Domain, rank: int) -> list[int]:
        values = domain_values(domain, self.model.parameters[rank], self.model.window)
        return [self.names.number(value) for value in values]

    def _expression(self, expr: Expr, rank: int, got: Mapping[str, str] | None = None) -> str:
        return self.contracts.expression(expr, rank, got)

    # --- rows --------------------------------------------------------------------------------------------------

    def _process(self, rank: int) -> Iterator[str]:
        role = self.model.roles[rank]
        over = f"r{rank}_at == {role.locations.index(role.end)}"
        yield f"active proctype Rank{rank}() {{"
        yield "#ifndef VERDICT"
        yield "end:"
        yield "#endif"
        yield "  do"
        for row in role.rows:
            for line in self._options(rank, row) if row.at != role.end else ():
                yield f"  :: d_step {{ {line} }} /* {row.name} */"
        yield "#ifdef VERDICT"
        yield f"  :: {f'{over} || r{rank}_at == {_STOPPED}' if self.model.gate_timeouts else over} -> break"
        yield "#endif"
        yield "  od }"

    def _options(self, rank: int, row: Row) -> Iterator[str]:
        operation, contracts = row.operation, self.contracts
        stands = contracts.stands_at(rank, row)
        if isinstance(operation, Local) and operation.returns:
            fields = [name for name, _ in operation.returns]
            for values in itertools.product(*(self._numbers(domain, rank) for _, domain in operation.returns)):
                got = {name: str(value) for name, value in zip(fields, values, strict=True)}
                may = self._expression(row.assume, rank, got)
                yield self._step(rank, row, f"{stands} && {may}", got=got)
        elif isinstance(operation, Receive):
            yield from self._receive(rank, row, operation, stands)
        elif isinstance(operation, Post):
            yield self._post(rank, row, operation, stands)
        elif isinstance(operation, Await):
            edge, held = self.network.outgoing[rank, operation.channel], f"r{rank}_held_{operation.channel}"
            bad = [] if self.model.forgetful(rank, operation.channel) else [f"!{held}"]
            guard = f"{stands} && (!{held} || {contracts.done(edge)})"
            yield self._step(rank, row, guard, acts=[f"{held} = 0"], bad=bad)
        elif isinstance(operation, Gate):
            open_ = contracts.evidence(self.network.incoming[rank, operation.channel], operation)
            yield self._step(rank, row, f"{stands} && {open_}")
            if self.model.gate_timeouts:
                yield f"{stands} && !{open_} -> stop_all()"
        elif isinstance(operation, Probe):
            ready = contracts.evidence(self.network.incoming[rank, operation.channel], operation)
            yield self._step(rank, row, stands, reads=[ready], got={"ready": "t0"})
        elif isinstance(operation, Collective):
            turn = f"r{rank}_turn_{operation.name}"
            guard = f"{stands} && {contracts.all_inside(rank, operation)}"
            yield self._step(rank, row, guard, acts=[f"{turn} = 1 - {turn}"])
        else:
            yield self._step(rank, row, stands)

    def _receive(self, rank: int, row: Row, operation: Receive, stands: str) -> Iterator[str]:
        network, contracts = self.network, self.contracts
        edge = network.incoming[rank, operation.channel]
        wire = network.wire_of[edge]
        queue, stash, channels = contracts.queues[wire], contracts.stashes.get(edge), network.wires[wire].channels
        names = [name for name, _ in self.model.protocol.channel(operation.channel).fields]
        got = {name: f"t{i}" for i, name in enumerate(names)}
        bad = [f"{got[name]} != {self._expression(expr, rank, got)}" for name, expr in operation.expect]

        def take(source: Queue, guard: str) -> str:
            reads = [source.field(i) for i in range(len(names))]
            return self._step(rank, row, guard, reads=reads, got=got, acts=source.shift(), bad=bad)

        if stash is not None:
            yield take(stash, f"{stands} && {stash.length} > 0")
        ready = f"{stands} && {queue.length} > 0 && receiving{wire}"
        yield take(queue, f"{ready} && {queue.first_is(channels.index(operation.channel))}")
        for kind, other in enumerate(channels):
            if other == operation.channel:
                continue
            aside = contracts.stashes.get(network.incoming[rank, other])
            guard = f"{ready} && {queue.first_is(kind)}"
            if stash is None or aside is None or not self._share(other, operation.channel):
                yield f"{guard} -> BROKEN"
            else:
                fields = len(self.model.protocol.channel(other).fields)
                moved = aside.append([queue.field(i) for i in range(fields)], 0)
                yield f"{guard} -> {'; '.join([*moved, *queue.shift()])}"

    def _share(self, channel: str, other: str) -> bool:
        return self.model.protocol.channel(channel).wire == self.model.protocol.channel(other).wire

    def _post(self, rank: int, row: Row, post: Post, stands: str) -> str:
        network, contracts, held = self.network, self.contracts, f"r{rank}_held_{post.channel}"
        edge = network.outgoing[rank, post.channel]
        wire = network.wire_of[edge]
        queue, kind = contracts.queues[wire], network.wires[wire].channels.index(post.channel)
        fields, given = self.model.protocol.channel(post.channel).fields, dict(post.fields)
        forgets = network.forgets(edge, post)
        append = queue.append([f"t{i}" for i in range(len(fields))], kind)
        live = (
            queue.count(kind)
            if edge not in contracts.stashes
            else (f"({queue.count(kind)} + {contracts.stashes[edge].length})")
        )
        capacity = static_value(self.model.protocol.channel(post.channel).capacity, self.model.parameters[rank])
        # What happens instead of an arrival at the queue's end, in this order.
        cases: list[tuple[str, list[str]]] = []
        mark = f"{queue.lost} = {queue.lost} | {1 << kind}"
        if queue.losable:
            cases.append((f"{queue.lost} != 0", [mark]))
            if network.cancels(edge) and post.handle == "overwrite":
                cases.append((f"{held} && !({contracts.done(edge)})", [*queue.lose_from_last(kind), mark]))
            if network.cancels(edge) and forgets:
                cases.append((f"({queue.length} > 0 || !receiving{wire})", [mark]))
        arrives = " && ".join([f"!({when})" for when, _ in cases] or ["1"])
        bad = [f"({arrives} && {live} >= {capacity})"]
        if post.handle != "overwrite":
            bad.append(held)
        acts = append
        for when, instead in reversed(cases):
            acts = [f"if :: {when} -> {'; '.join(instead)} :: else -> {'; '.join(acts)} fi"]
        if not forgets:
            acts = [*acts, f"{held} = 1"]
        if network.transport(edge).kind == "lazy":
            acts = [*acts, f"{contracts.opened(edge)} = 1"]
        reads = [self._expression(given[name], rank) for name, _ in fields]
        return self._step(rank, row, f"{stands} && {contracts.can_post(edge)}", reads=reads, acts=acts, bad=bad)

    def _step(
        self,
        rank: int,
        row: Row,
        guard: str,
        *,
        reads: Sequence[str] = (),
        got: Mapping[str, str] | None = None,
        acts: Sequence[str] = (),
        bad: Sequence[str] = (),
    ) -> str:
        """A row: read into the first temporaries and effects into those after them; if nothing is bad, all of it."""
        role, bad = self.model.roles[rank], list(bad)
        base = len(reads)
        self.temporaries = max(self.temporaries, base + len(row.effects))
        lines = [f"t{i} = {text}" for i, text in enumerate(reads)]
        new = [f"t{base + i}" for i in range(len(row.effects))]
        lines += [f"{t} = {self._expression(e, rank, got)}" for t, (_, e) in zip(new, row.effects, strict=True)]
        commits = list(acts)
        for t, (name, _) in zip(new, row.effects, strict=True):
            domain = role.variable(name).domain
            if not isinstance(domain, Bool):
                numbers = self._numbers(domain, rank)
                bad.append(f"({t} < {min(numbers)} || {t} > {max(numbers)})")
            commits.append(f"r{rank}_{name} = {t}")
        commits.append(f"r{rank}_at = {role.locations.index(row.to)}")
        if row.advances:
            window = self.model.window
            for other in range(self.model.ranks) if window > 1 else ():
                if other != rank:
                    lead = f"(r{rank}_pass + 1 - r{other}_pass + {window}) % {window}"
                    bad.append(f"{lead} == {window // 2}")
            commits += self._advance(rank)
        if bad:
            commits = [f"if :: {' || '.join(bad)} -> BROKEN :: else -> {'; '.join(commits)} fi"]
        return f"{guard} -> {'; '.join([*lines, *commits])}"

    def _advance(self, rank: int) -> list[str]:
        window = self.model.window
        lines = [f"r{rank}_pass = (r{rank}_pass + 1) % {window}"] if window > 1 else []
        for name, depth in self.model.depths[rank].items():
            past = f"r{rank}_{name}_past"
            lines += [f"{past}[{i}] = {past}[{i - 1}]" for i in range(depth - 1, 0, -1)]
            lines.append(f"{past}[0] = r{rank}_{name}")
        return lines

    # --- the end -----------------------------------------------------------------------------------------------

    def _stop(self, variables: list[tuple[str, str, int, int]]) -> Iterator[str]:
        yield "inline stop_all() {"
        for _, name, size, _ in variables:
            value = _STOPPED if name.endswith("_at") else 0
            yield from (f"  {name}[{i}] = {value};" for i in range(size))
            if not size:
                yield f"  {name} = {value};"
        yield "}"

    def _monitor(self) -> Iterator[str]:
        ends = [f"r{r}_at == {role.locations.index(role.end)}" for r, role in enumerate(self.model.roles)]
        queues = (*self.contracts.queues, *self.contracts.stashes.values())
        held = [f"!r{rank}_held_{c}" for rank in range(self.model.ranks) for c in self._channels_of(rank)]
        proper = " && ".join([*(queue.empty() for queue in queues), *held]) or "1"
        yield "#ifdef VERDICT"
        yield "active proctype Monitor() {"
        yield f"end: d_step {{ {' && '.join(ends)} -> assert({proper}) }} }}"
        yield "#endif"


def _declaration(kind: str, name: str, size: int, initial: int) -> str:
    return f"{kind} {name}{f'[{size}]' if size else ''}{f' = {initial}' if initial else ''};"
