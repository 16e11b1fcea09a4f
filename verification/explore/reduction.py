"""Which steps commute with every step of every other rank: those may be expanded alone (singleton persistent sets).

Every wire has one sender and one receiver, and a step that is enabled stays so until its rank takes it. So the enabled
steps of any one rank form a persistent set, unless what they do depends on when they are done. Such steps *touch*:

- a probe, and a gate that may time out, read whether a message has been posted: they touch, and so do the posts that they
  look for, and for the counter "attempted" the steps that lead to such a post;
- a post that keeps no handle, or overwrites one, loses its message or not: it touches, and so do the receives of that
  wire and the steps that lead to them.

A state is expanded by one rank only if that rank's step does not touch and leads to a state not seen before this level
(else a cycle could ignore the other ranks for ever); if there is none, by all ranks. This keeps every deadlock and every law
that one rank breaks alone. Two laws compare ranks: bounded channels and bounded lead. They are at their worst when
one rank lags as far as it can, so a reduced search is done once for each rank, with that rank last in the order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.spec.table import Gate, Post, Probe
from headway.verification.explore.automata import GATE, POST, PROBE, RECEIVE, Automata
from headway.verification.explore.columns import DETAIL, FIRST, HANDLE, KIND, SIZE, TARGET
from headway.verification.model import Model

Array = npt.NDArray[Any]


def orders(ranks: int) -> list[list[int]]:
    """The orders of ranks of a reduced search: each rank once last."""
    return [[rank for rank in range(ranks) if rank != last] + [last] for last in reversed(range(ranks))]


def touching_rows(model: Model) -> list[str]:
    """What the reduction cannot expand alone, in words; empty when it applies everywhere."""
    reasons: dict[str, None] = {}
    for role in dict.fromkeys(model.roles):
        for row in role.rows:
            operation = row.operation
            if isinstance(operation, Probe):
                reasons[f"row {row.name!r} of role {role.name!r} polls {operation.channel!r}"] = None
            elif isinstance(operation, Gate) and model.gate_timeouts:
                reasons[f"row {row.name!r} of role {role.name!r} may time out"] = None
            elif isinstance(operation, Post) and _loses(model, operation):
                reasons[f"row {row.name!r} of role {role.name!r} keeps no handle of {operation.channel!r}"] = None
    return list(reasons)


def _loses(model: Model, post: Post) -> bool:
    transport = model.network.transports[post.channel]
    return transport.kind == "dropped" or (post.handle != "keep" and transport.kind == "posted")


def touching_states(automata: Automata, rank_base: Array, locals_: Array, after: Array) -> Array:
    """For each local state whether its step touches. The tables are those of `tables.Tables`."""
    model, network = automata.model, automata.model.network
    kind, target, handle = locals_[:, KIND], locals_[:, TARGET], locals_[:, HANDLE]
    touching = np.zeros(len(kind), np.bool_)
    spans = [slice(int(base), int(base) + len(a.states)) for base, a in zip(rank_base, automata.ranks, strict=True)]
    for span in spans:
        looks = kind[span] == PROBE
        if model.gate_timeouts:
            looks = looks | (kind[span] == GATE)
        touching[span] |= looks
        for edge, sent, whole in {tuple(row) for row in locals_[span][looks][:, [TARGET, DETAIL, HANDLE]].tolist()}:
            wire, source = network.wire_of[edge], network.edges[edge].source
            watched = [e for e, w in enumerate(network.wire_of) if w == wire] if whole else [edge]
            posts = (kind[spans[source]] == POST) & np.isin(target[spans[source]], watched)
            touching[spans[source]] |= posts
            if not sent:
                touching[spans[source]] |= _leading_to(locals_[spans[source]], after, posts)
    loses = (kind == POST) & (handle > 0)
    for span in spans:
        for edge in set(target[span][loses[span]].tolist()):
            if not network.cancels(edge):
                continue
            wire, sink = network.wire_of[edge], network.edges[edge].sink
            touching[span] |= loses[span] & (target[span] == edge)
            on_wire = [e for e, w in enumerate(network.wire_of) if w == wire]
            receives = (kind[spans[sink]] == RECEIVE) & np.isin(target[spans[sink]], on_wire)
            touching[spans[sink]] |= receives | _leading_to(locals_[spans[sink]], after, receives)
    return touching.astype(np.int32)


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
