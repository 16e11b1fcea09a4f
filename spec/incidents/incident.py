"""What an incident is: a base table, a few edits, a transport, a workload, and the verdict it must get."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal
from typing import Protocol as Interface

from headway.spec.edits import Edit, edit
from headway.spec.language import Expr, SpecError
from headway.spec.serving import serving_table
from headway.spec.sglang import Traffic, fork_table, sglang_table
from headway.spec.table import Protocol
from headway.spec.transports import POSTED, Transport
from headway.spec.workload import Workload

Base = Literal["serving", "sglang", "sglang fork"]
Outcome = Literal["pass", "dead", "livelock", "mispair", "unmatched", "custody", "unbounded", "duplicated", "refused"]
"""What a search must find: nothing; no rank can go on; ranks move for ever and serve nothing; a message taken for
another; a message left over; a handle lost or overwritten; more in flight than the channel's capacity, or a lead beyond
bounds; a value outside its domain, such as a request counted twice; or that the table is refused unsearched."""

BASES = {"serving": serving_table, "sglang": sglang_table, "sglang fork": fork_table}


class Environment(Interface):
    """A workload: what may happen to a table in a model."""

    def attach(self, protocol: Protocol) -> Protocol:
        """The table with this environment."""
        ...


@dataclass(frozen=True)
class Then:
    """A workload changed by edits that need its ghost variables."""

    workload: Environment
    edits: tuple[Edit, ...]

    def attach(self, protocol: Protocol) -> Protocol:
        """The table with this environment, not yet checked."""
        return edit(self.workload.attach(protocol), *self.edits, checked=False)


@dataclass(frozen=True)
class Expected:
    """A verdict, written from the source before the first run.

    `stuck`: for "dead", the row of each rank ("end" when done); for another violation, (the row that finds it,).
    `rank`: the rank that finds it, None for whichever comes first. `cycle`: the ranks that wait for one another in a
    ring, from the lowest.
    """

    outcome: Outcome
    stuck: tuple[str, ...] = ()
    cycle: tuple[int, ...] = ()
    rank: int | None = None

    def describe(self) -> str:
        """The verdict in a few words."""
        if self.outcome == "dead" and self.stuck:
            return "dead: " + ", ".join(f"{rank} {row}" for rank, row in enumerate(self.stuck))
        if self.stuck:
            return f"{self.outcome}: {'any rank' if self.rank is None else self.rank} {self.stuck[0]}"
        return self.outcome


PASS = Expected("pass")
LIVELOCK = Expected("livelock")


def dead(*stuck: str, cycle: tuple[int, ...] = ()) -> Expected:
    """A deadlock with each rank at the row given."""
    return Expected("dead", stuck, cycle)


def mispair(rank: int, row: str) -> Expected:
    """A message taken for another, by that rank at that row."""
    return Expected("mispair", (row,), rank=rank)


def refused() -> Expected:
    """A table that is refused before any search."""
    return Expected("refused")


@dataclass(frozen=True)
class Incident:
    """One way in which a table fails, or must not be said to fail.

    `laws` are the numbers of the laws at stake; `source` is where it was reported. `pending`, over rank 0's variables,
    is what must not hold for ever while ranks move: with it, progress is checked too. `unchecked` leaves out the
    well-formedness check, for a table that it would refuse. `note` records a disagreement between source and search.
    """

    id: str
    title: str
    laws: tuple[int, ...]
    base: Base
    edits: tuple[Edit, ...]
    expected: Expected
    source: str
    workload: Environment
    ranks: int = 3
    slots: int = 0
    transport: Transport = POSTED
    transports: tuple[tuple[str, Transport], ...] = ()
    pending: Expr | None = None
    unchecked: bool = False
    note: str = field(default="")

    def __post_init__(self) -> None:
        if not self.laws or not all(1 <= law <= 15 for law in self.laws):
            raise SpecError(f"incident {self.id!r}: laws = {self.laws}; allowed: one or more of 1 to 15")
        if self.expected.outcome == "dead" and len(self.expected.stuck) not in (0, self.ranks):
            raise SpecError(f"incident {self.id!r}: {len(self.expected.stuck)} stuck rows for {self.ranks} ranks")

    def base_table(self) -> Protocol:
        """The table that it starts from."""
        return BASES[self.base]()

    def table(self) -> Protocol:
        """The edited table with its workload; raises `SpecError` when it is ill-formed, unless `unchecked`."""
        bare = edit(self.base_table(), *self.edits, name=self.id, checked=False)
        return replace(self.workload.attach(bare), checked=not self.unchecked)

    @property
    def slot_count(self) -> int:
        """The number of slots: that of ranks unless set."""
        return self.slots or self.ranks


def busy(batches: int | None = None, **more: int) -> Traffic:
    """Batches one after the other from the first pass, for ever or so many and then an idle tail that never ends."""
    return Traffic(batches=batches, gaps=False, stops=False, **more)


def idle() -> Traffic:
    """No batch at all."""
    return Traffic(batches=0, stops=False)


def free(**more: int) -> Traffic:
    """A batch or none in each pass, as the search likes, and a stop at the end."""
    return Traffic(**more)  # type: ignore[arg-type]  # counts only


def requests(count: int = 1, passes: int = 1, refusals: int = 0) -> Workload:
    """Requests of the production table."""
    return Workload(count, passes, refusals)
