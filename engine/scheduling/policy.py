"""The admission policy of rank 0: continuous batching with chunked prefill over the slots of the pipeline.

Planning goes by counts, not by tokens: up to `ahead` passes of the slot being planned may be in flight, and a token
that they sample is known to be there before it is known. A request that ends in one of them, by a stop token or an
abort, is planned no further, and what later ones return for it is dropped.

Age decides every conflict: the queue is served in order of arrival and nobody overtakes its head; pages are taken from
the youngest of the slot being planned; and the oldest running request is never preempted. Pages that a pass in flight
may write are free once it is back; whoever needs one waits for it. An oldest running request that waits for a page is
`starved`: the next one goes to no younger request, and if none is on its way the other slots yield one. Hence it gets
on after a bounded number of passes, and ends; and so do all, one after the other. The arithmetic is in
`spec.capacity`, where it is proved.
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
from headway.spec.capacity import (
    available,
    even_share,
    fair_share,
    fits,
    has_room,
    headroom,
    most_positions,
    remedy,
    yields,
)


class Plan(NamedTuple):
    """What rank 0 decided for a pass. An idle one has no rows and digest 0; its releases are carried all the same."""

    decision: Decision
    digest: int

    @property
    def launch(self) -> bool:
        return bool(self.decision.rows)


@dataclass(slots=True)
class Flight:
    """A launched pass whose output is awaited: its rows and, in the same order, their requests and `rewinds`."""

    slot: int
    rows: list[BatchRow]
    requests: list[Request]
    rewinds: list[int]


class Batch:
    """The rows of the pass being planned, within its budget of tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens_left = tokens
        self.rows: list[BatchRow] = []
        self.requests: list[Request] = []

    def add(self, request: Request) -> None:
        """As many of the remaining tokens of `request` as fit, with the pages that the ranks do not know of."""
        start, sent = request.granted, request.sent
        from_last = request.pending > 0
        count, samples = request.grant(self.tokens_left)
        self.rows.append(BatchRow(request.id, start, count, sent, request.table[sent:], samples, from_last))
        self.requests.append(request)
        self.tokens_left -= count
        request.sent = len(request.table)
        request.flights += 1


class Scheduler:
    """Rank 0's requests, pages and slots. A pass calls `take`, `plan`, and `apply` for the output that came back."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = PagePool(limits.pages)
        self.requests: dict[int, Request] = {}
        self._waiting: list[Request] = []  # by arrival
        self._running: list[list[Request]] = [[] for _ in range(limits.slots)]  # each by arrival
        self._leaving: list[Request] = []
        self._coming = 0  # pages that leaving requests will free and nobody waits for yet
        self._flights: dict[int, Flight] = {}  # by pass
        self._starved: Request | None = None
        self._released: list[int] = []
        self._reports: list[Report] = []
        self._arrivals = 0
        self._passes = self._voids = self._preemptions = 0
        self._stopping = False
        self._gauges: Gauges | None = None  # so that the first report tells the size of the pool

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

        Raises ValueError when outputs of more than `ahead` passes of the slot have not been applied.
        """
        out = sum(flight.slot == slot for flight in self._flights.values())
        if out > self.limits.ahead:
            raise ValueError(
                f"slot {slot} is planned in pass {pass_number} with {out} passes of it in flight; "
                f"allowed: {self.limits.ahead}"
            )
        batch = Batch(self.limits.max_batch_tokens)
        self._coming = sum(len(request.table) for request in self._leaving)
        self._yield_page(slot)
        prefilling = self._decode(slot, batch)
        self._prefill(prefilling, batch)
        self._admit(slot, batch)
        if batch.rows:
            rewinds = [request.rewinds for request in batch.requests]
            self._flights[pass_number] = Flight(slot, batch.rows, batch.requests, rewinds)
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
        for request, row, rewinds in zip(flight.requests, flight.rows, flight.rewinds, strict=True):
            request.flights -= 1
            token = next(tokens) if row.samples and not void else None
            if request.ended or request.aborted or request.rewinds != rewinds:
                pass  # planned before it was known that the request goes no further, or not from here
            elif void:
                self._retry(request, output)
            else:
                request.take_output(row.count, token is not None)
                if token is not None:
                    self._extend(request, token)
            if request.leaving and not request.flights:
                self._settle(request)

    def input_tokens(self, row: BatchRow) -> list[int]:
        """The token ids that a planned row feeds to the embedding; none where it is fed from the last pass."""
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
        if (pages := limits.pages_for(most_positions(prompt, new.max_tokens))) > limits.pages:
            return (
                f"{prompt} prompt tokens and max_tokens {new.max_tokens} take {pages} pages of {limits.page_size}, "
                f"the pool has {limits.pages}"
            )
        return ""

    def _enqueue(self, new: Submit) -> None:
        request = Request(
            id=new.request,
            arrival=self._arrivals,
            tokens=list(new.prompt),
            prompt_length=len(new.prompt),
            max_tokens=new.max_tokens,
            stop_tokens=frozenset(new.stop_tokens),
        )
        self._arrivals += 1
        self.requests[request.id] = request
        self._waiting.append(request)

    def _abort(self, identity: int) -> None:
        """Ends the request, at once or when its output is back. It may have ended while the abort was on its way."""
        request = self.requests.get(identity)
        if request is not None and not request.ended:
            request.aborted = True
            self._leave(request)

    # Building a batch

    def _yield_page(self, slot: int) -> None:
        """Gives a page up when an older request of another slot is starved."""
        running, starved = self._running[slot], self._starved
        if starved and running and yields(self.pool.free, self._coming, running[-1].arrival, starved.arrival):
            self._preempt(running[-1])

    def _decode(self, slot: int, batch: Batch) -> list[Request]:
        """Adds the requests that decode; returns those that prefill."""
        prefilling = []
        # Oldest first, so that whoever is preempted on the way has not been planned.
        for request in list(self._running[slot]):
            if request.slot is None:
                continue
            remaining = request.remaining
            if remaining > 1:
                prefilling.append(request)
            elif remaining and self._grow(request, slot):
                batch.add(request)
        return prefilling

    def _prefill(self, prefilling: list[Request], batch: Batch) -> None:
        for request in prefilling:
            if batch.tokens_left and request.slot is not None:
                batch.add(request)

    def _admit(self, slot: int, batch: Batch) -> None:
        """Admits from the head of the queue, with pages for all known tokens, until the slot has its share."""
        running = self._running[slot]
        share, rows = self._fair_share(slot), self.limits.max_batch_rows
        while self._waiting and has_room(len(running), share, rows, batch.tokens_left):
            request = self._waiting[0]
            needed = self.limits.pages_for(request.known)
            if not fits(needed, headroom(self.limits.pages, any(self._running)), self._available(request)):
                return
            del self._waiting[0]
            request.table = self.pool.allocate(needed) or []
            request.slot = slot
            insort(running, request, key=_arrival)
            batch.add(request)

    def _fair_share(self, slot: int) -> int:
        """How many of all requests, waiting ones too, the slot should run so that no two slots differ by over one."""
        share, extra = even_share(len(self.requests), self.limits.slots)
        above = sum(len(running) > share for other, running in enumerate(self._running) if other != slot)
        return fair_share(share, extra, above)

    # Pages

    def _available(self, request: Request) -> int:
        """Free pages that `request` may take: one is kept for an older request that is starved."""
        return available(self.pool.free, self._starved is not None and self._starved.arrival < request.arrival)

    def _grow(self, request: Request, slot: int) -> bool:
        """Gives a decoding request the page of its next position; False when it must wait or was preempted."""
        if not request.needs_page(len(request.table), self.limits.page_size):
            return True
        while self._available(request) < 1:
            youngest = self._running[slot][-1]
            what = remedy(self._coming, youngest is request, self._is_oldest(request))
            if what == "preempt":
                self._preempt(youngest)
                if youngest is request:
                    return False
                continue
            self._coming = max(self._coming - 1, 0)
            if what == "keep":
                self._starved = request
            return False
        request.table += self.pool.allocate(1) or []
        self._starves_no_longer(request)
        return True

    def _starves_no_longer(self, request: Request) -> None:
        if self._starved is request:
            self._starved = None

    def _is_oldest(self, request: Request) -> bool:
        return all(request.arrival <= running[0].arrival for running in self._running if running)

    def _preempt(self, request: Request) -> None:
        """Back into the queue by age, to compute everything again, what it generated as part of the prompt."""
        self._preemptions += 1
        self._leave(request)

    def _leave(self, request: Request) -> None:
        """Takes a request out of its slot or the queue, at once or when its passes in flight are back."""
        if request.leaving:
            return
        if request.slot is None:
            self._waiting.remove(request)
        else:
            self._running[request.slot].remove(request)
            request.slot = None
        self._starves_no_longer(request)
        if request.flights:
            request.leaving = True
            self._leaving.append(request)
            self._coming += len(request.table)
        else:
            self._settle(request)

    def _settle(self, request: Request) -> None:
        """Frees the pages of a request that no pass in flight has; it is gone, or waits again."""
        if request.leaving:
            request.leaving = False
            self._leaving.remove(request)
        self.pool.release(request.table)
        request.table = []
        request.sent = 0
        request.start_over()
        if request.aborted and not request.ended:
            self._finish(request, "abort")
        if request.ended:
            del self.requests[request.id]
            self._released.append(request.id)
        else:
            insort(self._waiting, request, key=_arrival)

    # Outputs

    def _extend(self, request: Request, token: int) -> None:
        request.tokens.append(token)
        if finish := request.finish_after(token):
            self._finish(request, finish, [token])
            self._leave(request)
        else:
            self._reports.append(Generated(request.id, [token]))

    def _retry(self, request: Request, output: Output) -> None:
        """The same row again, with the whole block table: some ranks saw the last one, some did not."""
        request.sent = 0
        request.rewinds += 1
        self._starves_no_longer(request)  # its pages hold what it runs again
        if not request.take_void(self.limits.max_retries):
            refusal = f"refused {request.retries} times, last by rank {output.refused_by}: {output.refusal}"
            self._finish(request, "error", error=refusal)
            self._leave(request)

    def _finish(self, request: Request, finish: str, tokens: list[int] | None = None, error: str = "") -> None:
        request.ended = True
        self._reports.append(Generated(request.id, tokens or [], finish, error))


def _arrival(request: Request) -> int:
    return request.arrival
