"""What the table leaves open: which requests run in a pass, in which pages, and what each rank remembers of them.

Pure and deterministic: no torch, no clock, no input or output. `Scheduler` decides, on rank 0; `Books` follow, on
every rank.
"""

from headway.engine.scheduling.books import Books, Member, UnhonourableError
from headway.engine.scheduling.digest import batch_digest
from headway.engine.scheduling.limits import Limits
from headway.engine.scheduling.pages import PageError, PagePool
from headway.engine.scheduling.policy import Plan, Scheduler

__all__ = [
    "Books",
    "Limits",
    "Member",
    "PageError",
    "PagePool",
    "Plan",
    "Scheduler",
    "UnhonourableError",
    "batch_digest",
]
