"""The books of one rank: each request's block table, length and sampling, changed only as decisions say."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from headway.engine.messages import BatchRow, Decision, Relayed, Sampling


class UnhonourableError(Exception):
    """This rank cannot do what the decision says; the text says why. The pass becomes void for the group."""


@dataclass(slots=True)
class Entry:
    """What a rank knows of a request: `length` tokens have been granted positions in the pages of `table` (int64)."""

    sampling: Sampling
    table: array[int] = field(default_factory=lambda: array("q"))
    length: int = 0


@dataclass(slots=True)
class Member:
    """One row of a batch for the worker. `table` is the books' own array: read it before the next decision.

    With `from_last` the one input is the token that the request's last pass samples, known to the worker alone.
    """

    request: int
    table: array[int]
    start: int
    count: int
    sampling: Sampling
    samples: bool
    from_last: bool = False


class Books:
    """A rank's books over its pool of `pages` pages of `page_size` tokens.

    An entry lives from `learn` until a decision releases it. Preemption needs no word of its own: the entry stays,
    and the row of the next admission, whose `first_page` is 0, replaces the block table. The same way a retried
    row repairs the books of ranks that did not see the void pass. Free pages are rank 0's alone to know.
    """

    def __init__(self, pages: int, page_size: int) -> None:
        self._pages = pages
        self._page_size = page_size
        self.entries: dict[int, Entry] = {}

    def learn(self, relayed: Iterable[Relayed]) -> None:
        """Opens an entry for each new request. Raises ValueError for one that is known."""
        for new in relayed:
            if new.request in self.entries:
                raise ValueError(f"request {new.request} was relayed twice")
            self.entries[new.request] = Entry(new.sampling)

    def apply(self, decision: Decision) -> list[Member]:
        """Takes the decision into the books and returns its batch, in the order of the rows.

        Releases hold even when the pass is void: they report what is over, not what the pass does. Of a decision
        that another rank has refused nothing else is taken, and the batch is empty. Raises UnhonourableError, with the
        rows' entries unchanged, when this rank cannot honour a row; ValueError when a release names an unknown request.
        """
        for request in decision.released:
            if self.entries.pop(request, None) is None:
                raise ValueError(f"unknown request {request} was released")
        if decision.refused_by >= 0:
            return []
        entries = [self._check(row) for row in decision.rows]
        return [self._take(row, entry) for row, entry in zip(decision.rows, entries, strict=True)]

    def _check(self, row: BatchRow) -> Entry:
        """The entry of a row that can be honoured."""
        entry = self.entries.get(row.request)
        if entry is None:
            raise UnhonourableError(f"request {row.request} is unknown")
        # A row that starts a block table brings everything with it; others continue what is there.
        if row.first_page > len(entry.table):
            raise UnhonourableError(
                f"request {row.request}: pages from entry {row.first_page}, the block table has {len(entry.table)}"
            )
        if row.first_page and row.start > entry.length:
            raise UnhonourableError(f"request {row.request}: starts at {row.start}, {entry.length} tokens are known")
        if row.pages and not 0 <= min(row.pages) <= max(row.pages) < self._pages:
            raise UnhonourableError(f"request {row.request}: pages {row.pages} are not all within 0..{self._pages - 1}")
        room = (row.first_page + len(row.pages)) * self._page_size
        if row.start + row.count > room:
            raise UnhonourableError(f"request {row.request}: {row.start + row.count} tokens in pages for {room}")
        return entry

    def _take(self, row: BatchRow, entry: Entry) -> Member:
        if row.pages or row.first_page < len(entry.table):
            entry.table[row.first_page :] = array("q", row.pages)
        entry.length = row.start + row.count
        return Member(row.request, entry.table, row.start, row.count, entry.sampling, row.samples, row.from_last)
