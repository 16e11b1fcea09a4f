"""The arithmetic of admission: tokens, pages, rows and retries of requests, counted.

The engine's policy runs these functions on numbers, and the prover runs the same ones on unknowns; what it shows is
shown of the engine. So they branch and count, and neither loop nor look anything up: + - * //, comparisons, min.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Remedy = Literal["wait", "keep", "preempt"]


def pages_for(tokens: int, page_size: int) -> int:
    """Pages that `tokens` positions take."""
    return -(-tokens // page_size)


def most_positions(prompt_length: int, max_tokens: int) -> int:
    """Positions that a request can ever take: the last generated token takes none."""
    return prompt_length + max_tokens - 1


@dataclass(slots=True, eq=False, kw_only=True)
class Counts:
    """A request in numbers. The KV of its first `computed` tokens is in the pages.

    Its passes in flight will raise `computed` to `granted` and add `pending` tokens. Only an output changes `computed`
    and `generated`; a void one takes back what was granted, and is one of `retries` in a row.
    """

    prompt_length: int
    max_tokens: int
    generated: int = 0
    computed: int = 0
    granted: int = 0
    pending: int = 0
    retries: int = 0

    @property
    def known(self) -> int:
        """Tokens of the prompt and generated ones."""
        return self.prompt_length + self.generated

    @property
    def full(self) -> bool:
        """Whether no further token may be generated."""
        return self.generated >= self.max_tokens

    @property
    def remaining(self) -> int:
        """Tokens whose KV no pass has been granted yet; 1 when decoding, 0 when the last one is on its way."""
        generated = self.generated + self.pending
        return self.prompt_length + generated - self.granted if generated < self.max_tokens else 0

    def needs_page(self, pages: int, page_size: int) -> bool:
        """Whether the next position lies beyond `pages`."""
        return self.granted >= pages * page_size

    def grant(self, tokens_left: int) -> tuple[int, bool]:
        """Plan what fits of the remaining tokens; returns how many, and whether a token is sampled after them."""
        remaining = self.remaining
        count = min(remaining, tokens_left)
        samples = count == remaining
        self.granted += count
        if samples:
            self.pending += 1
        return count, samples

    def take_output(self, count: int, sampled: bool) -> None:
        """The oldest pass in flight, of `count` tokens, is back."""
        self.retries = 0
        self.computed += count
        if sampled:
            self.pending -= 1
            self.generated += 1

    def take_void(self, max_retries: int) -> bool:
        """The oldest pass in flight was void, and those planned on it are worth nothing; returns whether to retry."""
        self.granted, self.pending = self.computed, 0
        self.retries += 1
        return self.retries <= max_retries

    def start_over(self) -> None:
        """The pages are gone, and no pass is in flight: everything known is to be computed again."""
        self.computed = self.granted = 0


def headroom(pages: int, runs: bool) -> int:
    """Pages that an admission leaves to those that run, so that it does not preempt at once; none if nobody `runs`."""
    return pages // 100 if runs else 0


def available(free: int, kept: bool) -> int:
    """Free pages that a request may take, less one that is `kept` for an older one."""
    return free - 1 if kept else free


def fits(needed: int, spare: int, open_pages: int) -> bool:
    """Whether a request that needs so many pages can be admitted."""
    return needed + spare <= open_pages


def even_share(requests: int, slots: int) -> tuple[int, int]:
    """How many of all requests each slot runs, and how many slots run one more."""
    share = requests // slots
    return share, requests - share * slots


def fair_share(share: int, extra: int, above: int) -> int:
    """The share of a slot when `above` other slots run more than `share`: no two slots differ by over one."""
    return share + 1 if above < extra else share


def has_room(running: int, share: int, max_rows: int, tokens_left: int) -> bool:
    """Whether a slot that runs so many requests can take another one into the pass being planned."""
    return running < share and running < max_rows and tokens_left > 0


def remedy(coming: int, alone: bool, oldest: bool) -> Remedy:
    """What a request without a page for its next position does, the youngest of its slot if it is `alone`.

    It waits for pages that are `coming`, or preempts the youngest. The oldest of all is never preempted; while it waits
    the next page is kept for it, since others could take every page that comes.
    """
    if coming > 0 or (alone and oldest):
        return "keep" if oldest else "wait"
    return "preempt"


def yields(free: int, coming: int, youngest: int, starved: int) -> bool:
    """Whether a slot preempts its `youngest` for an older request that is `starved`; both are given by arrival."""
    return free == 0 and coming == 0 and youngest > starved


def most_outputs(counts: Counts, max_retries: int) -> int:
    """How many outputs a request can take before it ends if it is not preempted, less one; each makes it smaller."""
    left = most_positions(counts.prompt_length, counts.max_tokens) - counts.computed
    return left * (max_retries + 1) + max_retries - counts.retries


def longest_wait(slots: int, lag: int) -> int:
    """Passes within which the oldest request, once it runs, takes its next output; outputs are back after `lag`.

    Its slot is planned within `slots` passes. If it finds no page, one comes within as many and what is in flight
    (`lag`), and is kept until its slot is planned again; the output is then back after `lag`.
    """
    return 3 * slots + 2 * lag
