"""Progress: is there a cycle of states in which something stays pending although no rank is held up unfairly?

A search that keeps deadlocks does not keep cycles, so this one is unreduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import networkx

from headway.spec.language import Expr, SpecError, evaluate
from headway.verification.model import Model
from headway.verification.states import STOPPED, Broken, State, Step


@dataclass(frozen=True)
class Lasso:
    """Steps that lead to a cycle, and the steps of the cycle."""

    prefix: tuple[Step, ...]
    cycle: tuple[Step, ...]


@dataclass(frozen=True)
class Progress:
    """How many states were seen, and the way round that serves nothing, if there is one."""

    states: int
    transitions: int
    lasso: Lasso | None


def check_progress(
    model: Model, pending: Expr, *, limit: int = 2_000_000, progress: Callable[[int, int], None] | None = None
) -> Progress:
    """Look for a cycle of states in all of which `pending` (over rank 0's variables) holds, under weak fairness.

    Weak fairness of ranks: a rank whose row is enabled all the way round takes it. Steps that break a law are not
    followed. `progress` is called now and then with the number of states and 0. Raises `SpecError` when there are more
    than `limit` states.
    """
    graph, moves, start = networkx.DiGraph(), 0, model.initial()
    graph.add_node(start)
    stack = [start]
    while stack:
        state = stack.pop()
        for rank in range(model.ranks):
            for step, after in model.successors(state, rank):
                moves += 1
                if isinstance(after, Broken) or after == STOPPED:
                    continue
                if after not in graph:
                    stack.append(after)
                graph.add_edge(state, after, step=step)
        if len(graph) > limit:
            raise SpecError(f"progress: more than {limit} states; allow more, or a smaller workload")
        if progress is not None and len(graph) % 4096 < 8:
            progress(len(graph), 0)
    held = graph.subgraph(state for state in graph if _holds(model, pending, state))
    for component in networkx.strongly_connected_components(held):
        if _fair(model, held, component):
            return Progress(len(graph), moves, _lasso(graph, start, component))
    return Progress(len(graph), moves, None)


def _holds(model: Model, pending: Expr, state: State) -> bool:
    return bool(evaluate(pending, model.environment(state.ranks[0], 0, {})))


def _fair(model: Model, graph: networkx.DiGraph, component: set[State]) -> bool:
    """Whether ranks can go round in these states for ever without holding up an enabled one."""
    movers = {data["step"].rank for _, _, data in graph.subgraph(component).edges(data=True)}
    if not movers:
        return False
    for rank in range(model.ranks):
        if rank not in movers and all(_enabled(model, state, rank) for state in component):
            return False
    return True


def _enabled(model: Model, state: State, rank: int) -> bool:
    return next(iter(model.successors(state, rank)), None) is not None


def _lasso(graph: networkx.DiGraph, start: State, component: set[State]) -> Lasso:
    """A shortest way into the component, and a way round in it that every rank that moves there takes part in."""
    distance = networkx.single_source_shortest_path_length(graph, start)
    entry = min(component, key=lambda state: distance[state])
    inside = graph.subgraph(component)
    walk, at = [entry], entry
    for rank in sorted({data["step"].rank for _, _, data in inside.edges(data=True)}):
        edges = [(a, b) for a, b, data in inside.edges(data=True) if data["step"].rank == rank]
        reach = networkx.single_source_shortest_path(inside, at)
        source, target = min(edges, key=lambda edge: len(reach[edge[0]]))
        walk += [*reach[source][1:], target]
        at = target
    walk += networkx.shortest_path(inside, at, entry)[1:]
    return Lasso(_steps(graph, networkx.shortest_path(graph, start, entry)), _steps(graph, walk))


def _steps(graph: networkx.DiGraph, states: Iterable[State]) -> tuple[Step, ...]:
    return tuple(graph.edges[a, b]["step"] for a, b in pairwise(states))
