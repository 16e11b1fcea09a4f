"""The admission policy of rank 0: continuous batching with chunked prefill over the slots of the pipeline.

Within a slot, planning and output alternate, so a request of the slot being planned is never in flight. Age decides
every conflict: the queue is served in order of arrival and nobody overtakes its head; pages are taken from the
youngest of the slot being planned; and the oldest running request is never preempted. When pages of other slots
keep it from going on, it is `starved`: the next page goes to no younger request, and the other slots yield one.
Hence the oldest running request gets on at least every second time its slot is planned, and ends; and so do all,
one after the other.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from headway.engine.messages import (
    Abort,
    BatchRow,
    Decision,
    Gauges,
    Generated,
    Intake,
    Output,
    Relayed,
    Report,
    Stop,
    Submit,
)
from headway.engine.scheduling.digest import batch_digest
from headway.engine.scheduling.limits import Limits
from headway.engine.scheduling.pages import PagePool
from headway.engine.scheduling.request import Request


class Plan(NamedTuple):
    """What rank 0 decided for a pass. An idle one has no rows and digest 0; its releases are carried all the same."""

    decision: Decision
    digest: int

    @property
    def launch(self) -> bool:
        return bool(self.decision.rows)


@dataclass(slots=True)
class Flight:
    """A launched pass whose output is awaited: its rows and, in the same order, their requests."""

    slot: int
    rows: list[BatchRow]
    requests: list[Request]


class Batch:
    """The rows of the pass being planned, within its budget of tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens_left = tokens
        self.rows: list[BatchRow] = []
        self.requests: list[Request] = []

    def add(self, request: Request, count: int) -> None:
        """The next `count` tokens of `request`, with the part of its block table that the ranks do not have."""
        samples = count == request.remaining
        row = BatchRow(request.id, request.computed, count, request.sent, request.table[request.sent :], samples)
        self.rows.append(row)
        self.requests.append(request)
        self.tokens_left -= count
        request.sent = len(request.table)
        request.in_flight = True


class Scheduler:
    """Rank 0's requests, pages and slots. A pass calls `take`, `plan`, and `apply` for the output that came back."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = PagePool(limits.pages)
        self.requests: dict[int, Request] = {}
        self._waiting: list[Request] = []  # by arrival
        self._running: list[list[Request]] = [[] for _ in range(limits.slots)]  # each by arrival
        self._flights: dict[int, Flight] = {}  # by pass
        self._starved: Request | None = None
        self._released: list[int] = []
        self._reports: list[Report] = []
        self._arrivals = 0
        self._passes = self._voids = self._preemptions = 0
        self._stopping = False
        self._gauges = self.gauges()
        # Room to grow for those that run, so that an admission does not preempt at once.
        self._headroom = limits.pages // 100

    def take(self, intake: Iterable[Intake]) -> list[Relayed]:
        """Takes requests and aborts; returns what the other ranks must learn before the next plan.

        A request that can never run is reported with finish "error", and not relayed. Raises ValueError when the
        identity of a live request is submitted again.
        """
        relayed = []
        for message in intake:
            match message:
                case Submit():
                    if message.request in self.requests:
                        raise ValueError(f"request {message.request} was submitted twice")
                    if refusal := self._refusal(message):
                        self._reports.append(Generated(message.request, [], "error", refusal))
                    else:
                        self._enqueue(message)
                        relayed.append(Relayed(message.request, message.sampling))
                case Abort():
                    self._abort(message.request)
                case Stop():
                    self._stopping = True
        return relayed

    def plan(self, pass_number: int, slot: int) -> Plan:
        """Decides the batch of a pass: decodes first, then chunks of prompts, then new requests.

        Raises ValueError when the output of the slot's previous pass has not been applied.
        """
        if any(flight.slot == slot for flight in self._flights.values()):
            raise ValueError(f"slot {slot} is planned in pass {pass_number} while a pass of it is in flight")
        batch = Batch(self.limits.max_batch_tokens)
        self._yield_page(slot)
        self._decode(slot, batch)
        self._prefill(slot, batch)
        self._admit(slot, batch)
        if batch.rows:
            self._flights[pass_number] = Flight(slot, batch.rows, batch.requests)
            self._passes += 1
        released, self._released = self._released, []
        return Plan(Decision(batch.rows, released), batch_digest(batch.rows))

    def apply(self, pass_number: int, output: Output, void: bool) -> None:
        """Takes what came of a launched pass. Raises ValueError when it does not fit the plan."""
        flight = self._flights.pop(pass_number, None)
        if flight is None:
            raise ValueError(f"an output of pass {pass_number} came back, which is not in flight")
        expected = 0 if void else sum(row.samples for row in flight.rows)
        if len(output.tokens) != expected:
            raise ValueError(f"pass {pass_number} returned {len(output.tokens)} tokens, expected {expected}")
        self._voids += void
        tokens = iter(output.tokens)
        for request, row in zip(flight.requests, flight.rows, strict=True):
            request.in_flight = False
            token = next(tokens) if row.samples and not void else None
            if request.aborted:
                self._end(request, "abort")
            elif void:
                self._retry(request, output)
            else:
                request.retries = 0
                request.computed += row.count
                if token is not None:
                    self._extend(request, token)

    def input_tokens(self, row: BatchRow) -> list[int]:
        """The token ids that a planned row feeds to the embedding."""
        return self.requests[row.request].tokens[row.start : row.start + row.count]

    def take_reports(self) -> list[Report]:
        """What happened since the last call, in order; gauges when they changed."""
        gauges = self.gauges()
        if gauges != self._gauges:
            self._gauges = gauges
            self._reports.append(gauges)
        reports, self._reports = self._reports, []
        return reports

    def gauges(self) -> Gauges:
        """The counts as they are now; `passes` counts launched ones."""
        running = sum(map(len, self._running))
        return Gauges(
            self._passes,
            len(self._waiting),
            running,
            self.pool.free,
            self.pool.total,
            self._voids,
            self._preemptions,
        )

    def idle(self) -> bool:
        """Whether nothing waits, runs or is in flight, and every release has been carried.

        Rank 0 may sleep only then: passes without a launch do not say it, since slots may be yielding pages to a
        starved request whose own slot comes next.
        """
        return not (self.requests or self._released or self._flights)

    def stopped(self) -> bool:
        """Whether a stop was asked for and everything taken before has ended."""
        return self._stopping and self.idle()

    def audit(self) -> None:
        """Raises PageError unless each page is free or in the block table of exactly one request."""
        self.pool.audit(request.table for request in self.requests.values())

    # Intake

    def _refusal(self, new: Submit) -> str:
        """Why the request can never run, empty if it can. The last generated token takes no position."""
        prompt, limits = len(new.prompt), self.limits
        if self._stopping:
            return "the server is stopping and takes no more requests"
        if not prompt:
            return "the prompt has 0 tokens, must have at least 1"
        if new.max_tokens < 1:
            return f"max_tokens is {new.max_tokens}, must be at least 1"
        if prompt + new.max_tokens > limits.max_context:
            return (
                f"{prompt} prompt tokens and max_tokens {new.max_tokens} are {prompt + new.max_tokens}, "
                f"more than the context of {limits.max_context}"
            )
        if (pages := limits.pages_for(prompt + new.max_tokens - 1)) > limits.pages:
            return (
                f"{prompt} prompt tokens and max_tokens {new.max_tokens} take {pages} pages of {limits.page_size}, "
                f"the pool has {limits.pages}"
            )
        return ""

    def _enqueue(self, new: Submit) -> None:
        request = Request(
            new.request, self._arrivals, list(new.prompt), len(new.prompt), new.max_tokens, frozenset(new.stop_tokens)
        )
        self._arrivals += 1
        self.requests[request.id] = request
        self._waiting.append(request)

    def _abort(self, identity: int) -> None:
        """Ends the request, at once or when its output is back. It may have ended while the abort was on its way."""
        request = self.requests.get(identity)
        if request is None:
            return
        if request.in_flight:
            request.aborted = True
        else:
            self._end(request, "abort")

    # Building a batch

    def _yield_page(self, slot: int) -> None:
        """Gives a page up when an older request of another slot is starved."""
        running, starved = self._running[slot], self._starved
        if starved and not self.pool.free and running and running[-1].arrival > starved.arrival:
            self._preempt(running[-1])

    def _decode(self, slot: int, batch: Batch) -> None:
        for request in list(self._running[slot]):
            # Oldest first, so that whoever is preempted on the way has not been planned.
            if request.slot is not None and request.remaining == 1 and self._grow(request, slot):
                batch.add(request, 1)

    def _prefill(self, slot: int, batch: Batch) -> None:
        for request in self._running[slot]:
            if not batch.tokens_left:
                return
            if request.remaining > 1:
                batch.add(request, min(request.remaining, batch.tokens_left))

    def _admit(self, slot: int, batch: Batch) -> None:
        """Admits from the head of the queue, with pages for all known tokens, until the slot has its share."""
        running = self._running[slot]
        share = min(self._fair_share(slot), self.limits.max_batch_rows)
        while self._waiting and batch.tokens_left and len(running) < share:
            request = self._waiting[0]
            needed = self.limits.pages_for(len(request.tokens))
            spare = self._headroom if any(self._running) else 0
            if needed + spare > self._available(request):
                return
            del self._waiting[0]
            request.table = self.pool.allocate(needed) or []
            request.slot = slot
            insort(running, request, key=_arrival)
            batch.add(request, min(request.remaining, batch.tokens_left))

    def _fair_share(self, slot: int) -> int:
        """How many of all requests, waiting ones too, the slot should run so that no two slots differ by over one."""
        share, extra = divmod(len(self.requests), self.limits.slots)
        above = sum(len(running) > share for other, running in enumerate(self._running) if other != slot)
        return share + (above < extra)

    # Pages

    def _available(self, request: Request) -> int:
        """Free pages that `request` may take: one is kept for an older request that is starved."""
        kept = self._starved is not None and self._starved.arrival < request.arrival
        return self.pool.free - kept

    def _grow(self, request: Request, slot: int) -> bool:
        """Gives a decoding request the page of its next position; False when it must wait or was preempted."""
        if request.computed < len(request.table) * self.limits.page_size:
            return True
        while self._available(request) < 1:
            youngest = self._running[slot][-1]
            if youngest is request and self._is_oldest(request):
                self._starved = request
                return False
            self._preempt(youngest)
            if youngest is request:
                return False
        request.table += self.pool.allocate(1) or []
        if self._starved is request:
            self._starved = None
        return True

    def _is_oldest(self, request: Request) -> bool:
        return all(request.arrival <= running[0].arrival for running in self._running if running)

    def _preempt(self, request: Request) -> None:
        """Back into the queue by age, to compute everything again, what it generated as part of the prompt."""
        self._preemptions += 1
        self._leave(request)
        request.computed = request.sent = 0
        insort(self._waiting, request, key=_arrival)

    def _leave(self, request: Request) -> None:
        """Takes a running request out of its slot and frees its pages."""
        if request.slot is not None:
            self._running[request.slot].remove(request)
        self.pool.release(request.table)
        request.table, request.slot = [], None
        if self._starved is request:
            self._starved = None

    # Outputs

    def _extend(self, request: Request, token: int) -> None:
        request.tokens.append(token)
        if finish := request.finish_after(token):
            self._end(request, finish, [token])
        else:
            self._reports.append(Generated(request.id, [token]))

    def _retry(self, request: Request, output: Output) -> None:
        """The same row again, with the whole block table: some ranks saw the last one, some did not."""
        request.sent = 0
        request.retries += 1
        if request.retries > self.limits.max_retries:
            self._end(
                request,
                "error",
                error=f"refused {request.retries} times, last by rank {output.refused_by}: {output.refusal}",
            )

    def _end(self, request: Request, finish: str, tokens: list[int] | None = None, error: str = "") -> None:
        if request.slot is None:
            self._waiting.remove(request)
        self._leave(request)
        del self.requests[request.id]
        self._released.append(request.id)
        self._reports.append(Generated(request.id, tokens or [], finish, error))


def _arrival(request: Request) -> int:
    return request.arrival
