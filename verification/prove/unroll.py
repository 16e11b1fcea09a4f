"""One run of a small pipeline for each of a few loads: where there is no potential, is there a real deadlock?

Without polls a run's end does not depend on the interleaving, so one order of steps decides each load. This is the
reference model, driven; finding nothing here proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import networkx

from headway.spec.language import evaluate
from headway.spec.table import Protocol, Role, Row
from headway.spec.transports import Transport
from headway.verification.model import Model
from headway.verification.states import Broken, State, Step
from headway.verification.verdict import Counterexample, Waiting, positions, wait_cycle

Load = Callable[[int], bool]  # whether there is work in a pass

LOADS: Mapping[str, Load] = {
    "work in every pass": lambda n: True,
    "work in pass 0 only": lambda n: n == 0,
    "work in every second pass": lambda n: n % 2 == 0,
    "work in every third pass": lambda n: n % 3 == 0,
    "work in passes 0 and 1 of 5": lambda n: n % 5 < 2,
    "no work": lambda n: False,
}


@dataclass(frozen=True)
class Unrolled:
    """A run that got stuck or broke a law, of how many ranks and under which load."""

    ranks: int
    slots: int
    load: str
    counterexample: Counterexample


def unroll(
    protocol: Protocol, transports: Mapping[str, Transport], most_ranks: int = 8, spare_slots: tuple[int, ...] = (0,)
) -> Unrolled | None:
    """The first stuck or broken run for 2 ranks and more; None when all of them go on."""
    for ranks in range(2, most_ranks + 1):
        for spare in spare_slots:
            model = Model(protocol, ranks, ranks + spare, transports=transports)
            for name, load in LOADS.items():
                found = run(model, load, 3 * (ranks + spare) + 2)
                if found is not None:
                    return Unrolled(ranks, ranks + spare, name, found)
    return None


def run(model: Model, load: Load, passes: int) -> Counterexample | None:
    """Run until every rank waits, a law breaks, or some rank has done so many passes."""
    state, done, steps = model.initial(), [0] * model.ranks, list[Step]()
    leaving = [tuple(_leaving(role)) for role in model.roles]
    moved = True
    while moved:
        moved = False
        for rank in range(model.ranks):
            while (chosen := _choose(model, state, rank, load(done[rank]), leaving[rank])) is not None:
                step, after, advanced = chosen
                steps.append(step)
                if isinstance(after, Broken):
                    stand = positions(model, state)
                    return Counterexample(after.law, after.finding, tuple(steps), stand, wait_cycle(stand))
                state, moved = after, True
                done[rank] += advanced
                if done[rank] >= passes:
                    return None
    stand = positions(model, state)
    waiting = [w for w in stand if w.on is not None]
    if not waiting:
        return None
    return Counterexample("deadlock", "no rank can go on", tuple(steps), stand, wait_cycle(stand))


def _choose(
    model: Model, state: State, rank: int, busy: bool, leaving: tuple[Row, ...]
) -> tuple[Step, State | Broken, bool] | None:
    """The next step of a rank. A local step returns what stays in the pipeline and makes most work, or least."""
    row = model.row_at(state, rank)
    if row is None:
        return None
    best: tuple[tuple[bool, int], Step, State | Broken] | None = None
    for step, after in model.successors(state, rank):
        if isinstance(after, Broken):
            key = (False, 0)
        else:
            mine = after.ranks[rank]
            env = model.environment(mine, rank, {})
            own = zip(model.roles[rank].variables, mine.variables, strict=True)
            work = sum(bool(value) for variable, value in own if not variable.ghost)
            key = (not any(evaluate(row.guard, env) for row in leaving), work if busy else -work)
        if best is None or key > best[0]:
            best = (key, step, after)
    return None if best is None else (best[1], best[2], row.advances)


def _leaving(role: Role) -> Iterator[Row]:
    """Rows after which no pass is completed any more, at locations from which one can be."""
    graph = networkx.DiGraph([(row.at, row.to) for row in role.rows if not row.advances])
    full = [row.at for row in role.rows if row.advances]
    completing = set(full).union(*(networkx.ancestors(graph, at) for at in full if at in graph))
    for row in role.rows:
        if row.at in completing and not row.advances and row.to not in completing:
            yield row


def in_words(found: Unrolled) -> str:
    """Who stands where, and who waits for whom in a ring."""
    example = found.counterexample

    def place(waiting: Waiting) -> str:
        return f"rank {waiting.rank} in pass {waiting.this_pass} at {waiting.row!r}"

    head = f"{example.law} for P={found.ranks}, L={found.slots}, {found.load}: {example.finding}"
    stand = "; ".join(
        f"{place(w)}" + (f" waits for rank {w.on}" if w.on is not None else "") for w in example.positions
    )
    ring = " waits for ".join(place(w) for w in (*example.cycle, *example.cycle[:1]))
    return f"{head}\n  {stand}" + (f"\n  ring: {ring}" if example.cycle else "")
