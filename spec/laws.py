"""The laws of a pipeline protocol, and how each is checked, or why it is not.

What a search calls a broken law (`Broken.law`) is mapped to the numbers here by `BROKEN`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.spec.language import SpecError

Way = Literal["search", "proof", "lint", "run time"]
WAYS: tuple[Way, ...] = ("search", "proof", "lint", "run time")
"""Exhaustive search of small instances; proof for any number of ranks and passes; the check that every table passes
before anything reads it; and what a rank checks while it runs, where a broken law stops the group."""


@dataclass(frozen=True)
class Law:
    """One law: its number, its name, what it demands, and for each way of checking it what is looked at.

    `unchecked` says what no way covers, and why; it is empty when all of the law is covered.
    """

    number: int
    name: str
    demands: str
    checked: tuple[tuple[Way, str], ...]
    unchecked: str = ""

    @property
    def label(self) -> str:
        """The short name, such as `L1`."""
        return f"L{self.number}"


LAWS: tuple[Law, ...] = (
    Law(
        1,
        "feed before wait",
        "A rank posts everything that a peer can be blocked on before it blocks on that peer.",
        (
            ("search", "no reachable state in which no rank can go on"),
            ("proof", "a potential that grows along every wait, for any number of ranks and passes"),
        ),
    ),
    Law(
        2,
        "one question, one fact",
        "The guard of a post and the guard of its receive are one value, decided once and carried.",
        (
            ("search", "no message taken for another, none left over, no rank left waiting for one"),
            ("proof", "for each channel both guards are the same function of carried facts"),
        ),
    ),
    Law(
        3,
        "matched traffic",
        "No post that no peer must take, no receive that no peer must satisfy, at most one message a channel and pass.",
        (
            ("search", "nothing on a wire or in a stash when all ranks are done; bounded channels"),
            ("proof", "each post meets one receive, pass by pass, up to the end of the run"),
            ("lint", "a channel that one end uses is used by the other end too"),
        ),
    ),
    Law(
        4,
        "handle custody",
        "Every handle is owned until it is awaited: never dropped, overwritten, or awaited twice.",
        (
            ("search", "no post while the last handle is held, no await without one, none held at the end"),
            ("proof", "along every pass"),
            ("lint", "each posted channel has an await, each await a post"),
            ("run time", "a wire endpoint refuses a second post or await"),
        ),
        "reuse of a device buffer under a wire whose await only fences a stream is the worker's obligation",
    ),
    Law(
        5,
        "scope of evidence",
        "Evidence has the kind, round, place and moment of the wait that it licenses; the waiter cannot withhold it.",
        (("search", "gates, counters and probes are operations with their scope: a gate never opened is a deadlock"),),
        "evidence that a binding gathers by itself is out of sight: a binding gets only its declared inputs",
    ),
    Law(
        6,
        "single authority",
        "What shapes the group's plan is decided by rank 0 and carried; no rank-local fact enters a plan directly.",
        (
            ("search", "each rank that may answer for itself is a free choice; the digest of the batch is compared"),
            ("lint", "a guard reads only this rank's variables and what it received"),
            ("run time", "pass and digest of every message are compared where it is received"),
        ),
    ),
    Law(
        7,
        "irrevocability",
        "Once a rank launched a pass, later ranks run it, void it for everybody, or stop; none narrows it alone.",
        (
            ("search", "digest of the members on hidden states and outputs"),
            ("proof", "a void spreads to every rank after it and comes back to rank 0"),
            ("run time", "the same digest"),
        ),
    ),
    Law(
        8,
        "disagreement is a stop",
        "A disagreement between ranks stops the group in the same pass; there is no fall-back to a local verdict.",
        (
            ("search", "a receive whose identity differs ends the run; local fall-backs are edits that must be found"),
            ("run time", "the rank says why and exits; the launcher ends the others"),
        ),
    ),
    Law(
        9,
        "progress",
        "Every retry or degraded path decreases a well-founded measure, fed by what its failure cannot suppress.",
        (
            ("search", "no cycle of states in which something stays pending, under weak fairness of ranks"),
            ("proof", "every void reaches rank 0, in time for its slot"),
        ),
        "the measure itself (how often a grant is offered again) belongs to the admission policy and its tests",
    ),
    Law(
        10,
        "identity",
        "Messages and slots are known by pass, membership and generation, never by position or slot number alone.",
        (
            ("search", "every receive states the identity that it expects, and another one is a violation"),
            ("proof", "messages of a channel arrive in the order and the pass in which they are expected"),
            ("run time", "the same comparison on every message"),
        ),
        "there is one generation: a restart begins with new wires",
    ),
    Law(
        11,
        "complete drain",
        "A drain takes apart by kind and discards only what is provably void; a snapshot is no barrier.",
        (("search", "mispaired or left-over messages after a drain"),),
        "the production table has no drain: hidden states of a void pass are received like others",
    ),
    Law(
        12,
        "collectives at quiescence",
        "A blocking collective is entered only when every peer can reach that entry without anything more from you.",
        (("search", "collectives are operations; a rank that cannot reach one leaves the others blocked"),),
        "the production table has none; what a library does inside a call is not seen",
    ),
    Law(
        13,
        "linearity of slots",
        "Every lap publishes; a request is in one place; every resource is released once, by its owner.",
        (
            ("search", "no value leaves its domain, such as a request that a slot counts twice"),
            ("run time", "the page pool and the books refuse a second owner or release"),
        ),
        "pages and books are bindings, tested by themselves",
    ),
    Law(
        14,
        "inert observers",
        "Diagnostics neither block nor wait for a device, nor change what ranks agree on, nor fail in silence.",
        (("search", "an observer that waits is an await too many, and is found like any other"),),
        "that the recorder and the watchdog only read is a matter of their code and its tests",
    ),
    Law(
        15,
        "payable targets",
        "Targets are checked against what can be paid, one-way numbers retire, all gates together let some pass.",
        (("search", "all vetoes on one plan together: a request that none lets through is pending for ever"),),
        "targets, prices and latches of one rank are arithmetic of that rank, not protocol",
    ),
)

BROKEN: dict[str, tuple[int, ...]] = {
    "deadlock": (1, 2, 12),
    "message identity": (10, 2, 6, 7),
    "matched traffic": (3, 11),
    "handle custody": (4,),
    "bounded channel": (3,),
    "bounded lead": (3,),
    "domains": (13,),
    "progress": (9, 15),
}
"""For each name that a search gives to what it finds: the laws that it is evidence against, most direct first."""

OUTCOMES: dict[str, str] = {
    "deadlock": "dead",
    "message identity": "mispair",
    "matched traffic": "unmatched",
    "handle custody": "custody",
    "bounded channel": "unbounded",
    "bounded lead": "unbounded",
    "domains": "duplicated",
    "progress": "livelock",
}
"""The same names as the outcomes that incidents expect."""


def law(number: int) -> Law:
    """The law of that number; raises `SpecError`."""
    for one in LAWS:
        if one.number == number:
            return one
    raise SpecError(f"law {number}: unknown; allowed: 1 to {len(LAWS)}")


def laws_of(broken: str) -> tuple[Law, ...]:
    """The laws that a broken law of a search is evidence against; raises `SpecError` for an unknown name."""
    if broken not in BROKEN:
        raise SpecError(f"broken law {broken!r}: unknown; allowed: {', '.join(BROKEN)}")
    return tuple(law(number) for number in BROKEN[broken])
