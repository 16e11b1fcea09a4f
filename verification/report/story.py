"""A counterexample with everything around it: the state after each step, and which message went from where to where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headway.spec.table import Await, Gate, Post, Receive
from headway.verification.model import Model
from headway.verification.states import Broken, Message, State, Step, show_value
from headway.verification.verdict import Counterexample, Waiting


@dataclass(frozen=True)
class Frame:
    """The pipeline after a step (the first frame: before any). `rows[r]` is the row that rank r stands at."""

    step: Step | None
    rows: tuple[str, ...]
    variables: tuple[Mapping[str, str], ...]
    wires: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Arrow:
    """A message: posted in step `sent`, taken in step `taken` (None: never), counted from 0."""

    channel: str
    source: int
    sink: int
    sent: int
    taken: int | None


@dataclass(frozen=True)
class Story:
    """A counterexample told in full. `cycle` holds the ranks that wait for one another, in order."""

    table: str
    fingerprint: str
    ranks: int
    slots: int
    transports: Mapping[str, str]
    law: str
    finding: str
    steps: tuple[Step, ...]
    frames: tuple[Frame, ...]
    arrows: tuple[Arrow, ...]
    positions: tuple[Waiting, ...]
    cycle: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the same fields."""
        return {
            **asdict(self),
            "steps": [step._asdict() for step in self.steps],
            "frames": [{**asdict(f), "step": f.step._asdict() if f.step else None} for f in self.frames],
        }


def tell(model: Model, example: Counterexample) -> Story:
    """Take the steps again in the reference model. Raises `ValueError` when they are not steps of this model."""
    state = model.initial()
    frames, arrows = [_frame(model, state, None)], list[Arrow]()
    under_way: dict[tuple[str, int], list[int]] = {}
    for number, step in enumerate(example.steps):
        after = _after(model, state, step, last=number == len(example.steps) - 1)
        _follow(model, state, step, number, arrows, under_way)
        if after is None:  # the step broke a law: the state before it is the last there is
            frames.append(_frame(model, state, step))
            break
        state = after
        frames.append(_frame(model, state, step))
    return Story(
        model.protocol.name,
        model.protocol.fingerprint,
        model.ranks,
        model.slots,
        {name: transport.name for name, transport in model.network.transports.items()},
        example.law,
        example.finding,
        example.steps,
        tuple(frames),
        tuple(arrows),
        example.positions,
        tuple(waiting.rank for waiting in example.cycle),
    )


def _after(model: Model, state: State, step: Step, last: bool) -> State | None:
    for found, after in model.successors(state, step.rank):
        if found == step:
            if isinstance(after, Broken):
                if last:
                    return None
                raise ValueError(f"step {step.row!r} of rank {step.rank} already breaks a law: {after.finding}")
            return after
    raise ValueError(f"rank {step.rank} cannot take step {step.row!r} ({step.detail}) in pass {step.this_pass}")


def _follow(
    model: Model,
    state: State,
    step: Step,
    number: int,
    arrows: list[Arrow],
    under_way: dict[tuple[str, int], list[int]],
) -> None:
    """Keep book of the messages: a post begins an arrow, a receive (or a stash) ends the oldest one."""
    row = model.row_at(state, step.rank)
    operation, network = (None if row is None else row.operation), model.network
    if isinstance(operation, Post):
        edge = network.edges[network.outgoing[step.rank, operation.channel]]
        under_way.setdefault((operation.channel, edge.source), []).append(len(arrows))
        arrows.append(Arrow(operation.channel, edge.source, edge.sink, number, None))
    elif isinstance(operation, Receive):
        index = network.incoming[step.rank, operation.channel]
        if state.stashes[index]:
            return  # it left the wire when it was stashed
        queue = state.queues[network.wire_of[index]]
        taken = queue[0].channel if queue else operation.channel
        waiting = under_way.get((taken, network.edges[index].source), [])
        if waiting:
            arrow = waiting.pop(0)
            arrows[arrow] = Arrow(taken, arrows[arrow].source, arrows[arrow].sink, arrows[arrow].sent, number)


def _frame(model: Model, state: State, step: Step | None) -> Frame:
    rows: list[str] = []
    variables: list[Mapping[str, str]] = []
    for rank, role in enumerate(model.roles):
        row = model.row_at(state, rank)
        rows.append("end" if row is None else row.name)
        if rank >= len(state.ranks):
            variables.append({})
            continue
        mine = state.ranks[rank]
        shown = {"pass": str(mine.this_pass), "slot": str(mine.this_pass % model.slots)}
        shown |= {v.name: show_value(value) for v, value in zip(role.variables, mine.variables, strict=True)}
        shown["handles held"] = ", ".join(mine.held) or "none"
        variables.append(shown)
    wires = {}
    for wire, queue in zip(model.network.wires, state.queues, strict=False):
        wires[f"{'/'.join(wire.channels)} {wire.source}→{wire.sink}"] = tuple(_message(model, m) for m in queue)
    for edge, stash in zip(model.network.edges, state.stashes, strict=False):
        if stash:
            wires[f"stash of rank {edge.sink}: {edge.channel}"] = tuple(_message(model, m) for m in stash)
    return Frame(step, tuple(rows), tuple(variables), wires)


def _message(model: Model, message: Message) -> str:
    return model.describe(message)


def waiting_words(model: Model, waiting: Waiting) -> str:
    """A position as a clause: what the rank waits for, and on whom."""
    if waiting.on is None:
        return f"rank {waiting.rank} stands at {waiting.row!r} (pass {waiting.this_pass})"
    operation = model.roles[waiting.rank].row(waiting.row).operation
    what = ""
    if isinstance(operation, Receive | Gate):
        what = f" for a message of {operation.channel!r}"
    elif isinstance(operation, Await | Post):
        what = f" to receive {operation.channel!r}"
    return f"rank {waiting.rank} waits at {waiting.row!r} (pass {waiting.this_pass}) on rank {waiting.on}{what}"
