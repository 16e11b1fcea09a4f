"""The pool of KV pages: who holds what is known to the page, and the order of grants is deterministic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PageError(ValueError):
    """A page was freed twice, is foreign to the pool, or is not held exactly once."""


class PagePool:
    """Pages 0 .. total-1, each either free or held once. The page freed last is granted first."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._held = bytearray(total)

    @property
    def free(self) -> int:
        """How many pages can be allocated."""
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages, or None, and nothing taken, when fewer are free."""
        if count < 0:
            raise PageError(f"cannot allocate {count} pages")
        if count > len(self._free):
            return None
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._held[page] = 1
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Frees `pages`. Raises PageError on a foreign page or a double free, leaving the rest of `pages` held."""
        for page in reversed(pages):
            if not 0 <= page < self.total:
                raise PageError(f"page {page} is foreign to a pool of {self.total}")
            if not self._held[page]:
                raise PageError(f"page {page} is freed twice")
            self._held[page] = 0
            self._free.append(page)

    def audit(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises PageError unless each page is in exactly one of `tables` or, exclusively, free."""
        owners = bytearray(self.total)
        for page in (*self._free, *(page for table in tables for page in table)):
            if not 0 <= page < self.total:
                raise PageError(f"page {page} is foreign to a pool of {self.total}")
            if owners[page]:
                raise PageError(f"page {page} has two owners")
            owners[page] = 1
        if 0 in owners:
            raise PageError(f"page {owners.index(0)} is lost: neither free nor in a block table")
        if sum(self._held) + len(self._free) != self.total:
            raise PageError(f"{sum(self._held)} pages held and {len(self._free)} free are not {self.total}")
