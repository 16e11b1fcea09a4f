"""Can SGLang's order deadlock? One cell for each transport assumption and order, with the verdict it must get.

The minimal contract that comes out: the chain, and every list on its FIFO, must be posted; hidden states and outputs
may be pure rendezvous only with the parity order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from headway.spec.edits import Edit, at_rank, diverge, edit
from headway.spec.language import FALSE, TRUE, Const, Var
from headway.spec.sglang.disaggregation import disaggregated_table, list_channels
from headway.spec.sglang.loop import PLANNED, sglang_table
from headway.spec.sglang.traffic import Traffic
from headway.spec.sglang.variants import (
    EARLY_EXCHANGE,
    EARLY_ON_VERIFY,
    FLUSH_AFTER_POST,
    FLUSH_BEFORE_PROXY,
    FLUSH_END,
    FLUSH_TOP,
    GATE_ON_ATTEMPTED,
    GATE_ON_SENT,
    RECEIVE_FIRST,
    SEND_FIRST,
)
from headway.spec.table import Protocol
from headway.spec.transports import LAZY, POSTED, RENDEZVOUS, Transport, credits

DICT = ("proxy", "relay", "output")
BUSY = Traffic(gaps=False, stops=False)
FREE = Traffic(stops=False)
"""A batch or none in every pass, as the search likes."""
ONE = Traffic(batches=1, gaps=False, stops=False)
IDLE = Traffic(batches=0, stops=False)
Kind = Literal["main", "prefill", "decode"]


@dataclass(frozen=True)
class Cell:
    """One cell: a loop, edits, ranks and depth, transports; and what must come of it.

    `stuck` names the row of each rank where the source names them. `outcomes` are the verdicts allowed: "pass", "dead",
    "mispair", "unbounded" (more messages in flight than the channel holds).
    """

    name: str
    outcomes: tuple[str, ...]
    edits: tuple[Edit, ...] = ()
    ranks: int = 3
    depth: int = 0
    transports: dict[str, Transport] = field(default_factory=dict)
    traffic: Traffic = FREE
    stuck: tuple[str, ...] = ()
    kind: Kind = "main"

    def table(self) -> Protocol:
        """The table with its traffic."""
        base = sglang_table() if self.kind == "main" else disaggregated_table(self.kind)
        return self.traffic.attach(edit(base, *self.edits, name=self.name))


def _patterns(ranks: int) -> dict[str, Traffic]:
    """Loads that cover what the source's patterns do: with more ranks the free choice of batches is bounded."""
    if ranks == 2:
        return {"any load": FREE}
    if ranks == 3:
        return {"any three batches": Traffic(batches=3, stops=False)}
    return {"any one batch": Traffic(batches=1, stops=False), "always busy": BUSY}


def _passing(
    name: str, edits: tuple[Edit, ...], ranks: int, depth: int, transports: dict[str, Transport], kind: Kind = "main"
) -> Iterator[Cell]:
    for load, traffic in _patterns(ranks).items():
        yield Cell(f"{name}, {load}", ("pass",), edits, ranks, depth, transports, traffic, (), kind)


def _on(channels: tuple[str, ...], transport: Transport) -> dict[str, Transport]:
    return dict.fromkeys(channels, transport)


ORDERS: dict[str, tuple[Edit, ...]] = {"parity": (), "send first": (SEND_FIRST,)}
PLACES = {"top": FLUSH_TOP, "before proxy": FLUSH_BEFORE_PROXY, "end": FLUSH_END}


def _deep(depth: int) -> tuple[Edit, ...]:
    return EARLY_EXCHANGE if depth else ()


def _posted() -> Iterator[Cell]:
    for order, edits in ORDERS.items():
        for place, flush in PLACES.items():
            for ranks in (2, 3):
                yield from _passing(f"posted, {order}, flush {place}, P = {ranks}", (*edits, *flush), ranks, 0, {})
        for depth in (1, 2):
            yield from _passing(f"posted, {order}, P = 2, d = {depth}", (*EARLY_EXCHANGE, *edits), 2, depth, {})
        # No deadlock, but nothing bounds how far rank 0 runs ahead.
        never = _on(("chain",), credits(4))
        yield Cell(f"posted, {order}, chain never waited for", ("unbounded",), edits, transports=never)
    stuck = ("await chain", "receive output", "receive output")
    yield Cell("posted, flush in the step of the send", ("dead",), FLUSH_AFTER_POST, traffic=ONE, stuck=stuck)
    yield Cell("posted, receive first", ("dead",), (RECEIVE_FIRST,), traffic=BUSY, stuck=("receive output",) * 3)


def _rendezvous() -> Iterator[Cell]:
    chain, tensors = _on(("chain",), RENDEZVOUS), _on(DICT, RENDEZVOUS)
    for ranks in (2, 3, 4):
        for depth in (0, 1):
            for order, edits in ORDERS.items():
                name = f"everything rendezvous, {order}, P = {ranks}, d = {depth}"
                stuck = (*("post chain",) * (ranks - 1), "post output")
                both = (*(EARLY_EXCHANGE if depth else ()), *edits)
                yield Cell(name, ("dead",), both, ranks, depth, {**chain, **tensors}, ONE, stuck)
        stuck = ("post chain", *("receive output",) * (ranks - 1))
        yield Cell(f"chain rendezvous, P = {ranks}", ("dead",), (), ranks, 0, chain, ONE, stuck)
        for depth in (0, 1, 2):
            name = f"tensors rendezvous, parity, P = {ranks}, d = {depth}"
            yield from _passing(name, EARLY_EXCHANGE if depth else (), ranks, depth, tensors)
        name, stuck = f"tensors rendezvous, send first, P = {ranks}", ("post output",) * ranks
        yield Cell(name, ("dead",), (SEND_FIRST,), ranks, 0, tensors, BUSY, stuck)
        few = Traffic(batches=ranks, gaps=False, stops=False)
        yield Cell(f"{name}, {ranks} busy slots in a row", ("dead",), (SEND_FIRST,), ranks, 0, tensors, few, stuck)
        few = Traffic(batches=ranks - 1, gaps=False, stops=False)
        yield Cell(f"{name}, {ranks - 1} busy slots in a row", ("pass",), (SEND_FIRST,), ranks, 0, tensors, few)


def _pairs() -> Iterator[Cell]:
    queue, lazy = "one queue a pair", _on(DICT, LAZY)
    yield Cell(f"{queue}, no credit, send first, P = 2", ("dead",), (SEND_FIRST,), 2, 0, _on(DICT, credits(0)), BUSY)
    yield from _passing(f"{queue}, one credit, send first, P = 2", (SEND_FIRST,), 2, 0, _on(DICT, credits(1)))
    for ranks in (2, 3):
        yield from _passing(f"{queue}, no credit, parity, P = {ranks}", (), ranks, 0, _on(DICT, credits(0)))
    yield from _passing(f"{queue}, no credit, send first, P = 3", (SEND_FIRST,), 3, 0, _on(DICT, credits(0)))
    yield from _passing("lazy", (), 3, 0, lazy)
    yield from _passing("lazy, gate on attempted", GATE_ON_ATTEMPTED, 3, 0, lazy)
    stuck = ("post proxy", "gate proxy", "gate proxy")
    yield Cell("lazy, gate on sent", ("dead",), GATE_ON_SENT, 3, 0, lazy, BUSY, stuck)


def _presence() -> Iterator[Cell]:
    for place, flush in PLACES.items():
        for rank in (1, 2):
            made = (("batch", TRUE), ("digest", Const(PLANNED)))
            extra = diverge("plan", "phantom", made, rank=at_rank(rank), only=~Var("work"))
            less = diverge("plan", "declined", (("batch", FALSE),), rank=at_rank(rank), only=Var("work"))
            for word, change in (("one batch more", extra), ("one batch fewer", less)):
                name = f"presence: {word} on rank {rank}, flush {place}"
                yield Cell(name, ("dead", "mispair"), (change, *flush))


def _early() -> Iterator[Cell]:
    for ranks in (2, 3, 4):
        for transport in (POSTED, RENDEZVOUS, credits(0), LAZY):
            name = f"exchange before launch on ranks but the last, {transport.name}, P = {ranks}"
            yield from _passing(name, EARLY_ON_VERIFY, ranks, 0, _on(DICT, transport))


def _disaggregated() -> Iterator[Cell]:
    kinds: tuple[Kind, ...] = ("prefill", "decode")
    for kind in kinds:
        lists = list_channels(kind)
        # With two ranks, sends of a pair must not hold up receives: the FIFO of gloo, not the stream of NCCL.
        yield from _passing(f"{kind}, one posted FIFO, P = 2", (), 2, 0, _on(lists, credits(16)), kind)
        yield from _passing(f"{kind}, one posted FIFO, P = 3", (), 3, 0, _on(lists, credits(0)), kind)
        yield Cell(f"{kind}, lists rendezvous, idle", ("dead",), (), 3, 0, _on(lists, RENDEZVOUS), IDLE, (), kind)


CELLS: tuple[Cell, ...] = (
    *_posted(),
    *_rendezvous(),
    *_pairs(),
    *_presence(),
    *_early(),
    *_disaggregated(),
)
