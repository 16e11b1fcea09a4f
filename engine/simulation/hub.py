"""Virtual time and the hand-off between ranks: each rank is a greenlet, and exactly one runs at a time.

A rank parks wherever it may have to wait; it says under which condition it can go on. Two ways to drive it: `run` lets
virtual time pass, `step` performs one row of a chosen rank and knows no time. Time is in nanoseconds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from greenlet import GreenletExit, greenlet


@dataclass(slots=True)
class Stand:
    """Where a parked rank stands: at a `receive`, `post`, `wait`, `gate`, `idle` or `local` row, of which channel.

    `ready` says whether it can go on now; after `bound` nanoseconds it goes on all the same (and is told so).
    """

    kind: str
    channel: str
    ready: Callable[[], bool]
    bound: int | None = None


class Fiber:
    """One rank: its greenlet, its own clock, and where it stands."""

    __slots__ = ("begun", "clock", "ended", "error", "expires", "greenlet", "rank", "stand", "steps")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.greenlet: greenlet | None = None
        self.clock = 0
        self.stand: Stand | None = None
        self.begun = False
        self.expires: int | None = None
        self.steps = 0
        self.ended = False
        self.error: BaseException | None = None


class Hub:
    """Runs `ranks` fibers. `delay(rank, step)`: nanoseconds that a rank dawdles before a step (if the hub is timed)."""

    def __init__(self, ranks: int, timed: bool = True, delay: Callable[[int, int], int] = lambda rank, step: 0) -> None:
        self.timed, self.now = timed, 0
        self.fibers = [Fiber(rank) for rank in range(ranks)]
        self._delay = delay
        self._events: list[tuple[int, int, int, int]] = []  # time, order, rank, the step that it is for (-1: any)
        self._order = 0
        self._near = [tuple(dict.fromkeys((r, (r + 1) % ranks, (r - 1) % ranks))) for r in range(ranks)]

    # --- what ranks call ---------------------------------------------------------------------------------------

    def wait_until(self, rank: int, kind: str, channel: str, ready: Callable[[], bool], bound: int | None) -> bool:
        """Give the baton away until `ready`; False when `bound` nanoseconds passed first."""
        fiber = self.fibers[rank]
        fiber.stand, fiber.steps = Stand(kind, channel, ready, bound), fiber.steps + 1
        parent = fiber.greenlet.parent if fiber.greenlet is not None else None
        if parent is None:
            raise RuntimeError(f"rank {rank} does not run here")
        return bool(parent.switch())

    def spend(self, rank: int, duration: int) -> None:
        """The rank works for `duration` nanoseconds."""
        self.fibers[rank].clock += duration

    def wake(self, time: int, rank: int) -> None:
        """Look at a rank again at `time`, since what it waits for may be there then."""
        if self.timed:
            self._push(time, rank, -1)

    # --- what drivers call -------------------------------------------------------------------------------------

    def start(self, mains: Sequence[Callable[[], None]]) -> None:
        """Run each rank's main up to the first place where it parks."""
        for fiber, main in zip(self.fibers, mains, strict=True):
            fiber.greenlet = greenlet(lambda ready, main=main: main())
            self._switch(fiber, True)

    def run(self, until: int | None = None) -> None:
        """Let time pass until every rank has ended, one has failed, nothing can happen any more, or time `until`."""
        while self._events and not self.failed:
            if until is not None and self._events[0][0] > until:
                self.now = until
                return
            time, _, rank, step = heapq.heappop(self._events)
            self.now = max(self.now, time)
            fiber = self.fibers[rank]
            if fiber.steps == step and fiber.stand is not None and not fiber.begun:
                self._begin(fiber)
            self._settle(rank)

    def enabled(self, rank: int) -> bool:
        """Whether a rank can take its next step now."""
        fiber = self.fibers[rank]
        return not fiber.ended and fiber.begun and fiber.stand is not None and fiber.stand.ready()

    def step(self, rank: int) -> None:
        """Perform the row that a rank stands at, up to its next one; raises `RuntimeError` when it is not enabled."""
        if not self.enabled(rank):
            raise RuntimeError(f"rank {rank} cannot go on: {self.fibers[rank].stand}")
        self._switch(self.fibers[rank], True)

    def expire(self, rank: int) -> None:
        """Let the bound of the wait that a rank stands at pass."""
        self._switch(self.fibers[rank], False)

    def kill(self, rank: int) -> None:
        """End a rank where it stands."""
        fiber = self.fibers[rank]
        if not fiber.ended and fiber.greenlet is not None:
            fiber.greenlet.throw(GreenletExit)
            fiber.ended, fiber.stand = True, None

    @property
    def failed(self) -> bool:
        """Whether some rank ended with an error."""
        return any(fiber.error is not None for fiber in self.fibers)

    @property
    def quiet(self) -> bool:
        """Whether nothing will happen any more by itself."""
        return not self._events

    @property
    def ended(self) -> bool:
        """Whether every rank has ended."""
        return all(fiber.ended for fiber in self.fibers)

    def standing(self, rank: int) -> Stand | None:
        """Where a rank stands, once its operation has begun."""
        fiber = self.fibers[rank]
        return fiber.stand if fiber.begun else None

    # -----------------------------------------------------------------------------------------------------------

    def _push(self, time: int, rank: int, step: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, rank, step))

    def _begin(self, fiber: Fiber) -> None:
        fiber.begun = True
        bound = fiber.stand.bound if fiber.stand is not None else None
        fiber.expires = None if bound is None else self.now + bound
        if fiber.expires is not None:
            self._push(fiber.expires, fiber.rank, -1)

    def _settle(self, rank: int) -> None:
        """Let everybody go on who can after something changed at `rank`; only its neighbours can notice."""
        queue = deque(self._near[rank])
        while queue and not self.failed:
            fiber = self.fibers[queue.popleft()]
            if not fiber.begun or fiber.stand is None:
                continue
            ready = fiber.stand.ready()
            if ready or (fiber.expires is not None and self.now >= fiber.expires):
                self._switch(fiber, ready)
                queue.extend(self._near[fiber.rank])

    def _switch(self, fiber: Fiber, ready: bool) -> None:
        fiber.begun, fiber.stand = False, None
        fiber.clock = max(fiber.clock, self.now)
        if fiber.greenlet is None:
            raise RuntimeError(f"rank {fiber.rank} was not started")
        try:
            fiber.greenlet.switch(ready)
        except Exception as error:  # a rank's failure is what a simulation is there to find
            fiber.error = error
        if fiber.greenlet.dead:
            fiber.ended, fiber.stand = True, None
        elif self.timed:
            begins = max(self.now, fiber.clock + self._delay(fiber.rank, fiber.steps)) + 1
            self._push(begins, fiber.rank, fiber.steps)
        else:
            fiber.begun = True
