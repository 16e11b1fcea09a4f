"""Policy and books of several ranks under random arrivals, aborts and voids, with a model that reads its KV pages.

The fake model's next token is a function of the request's whole history as it stands in the pages of the rank that
computes it; so a page reused too early, a wrong block table, a lost or repeated token each change the tokens of a
request, which must be those of its solo run.
"""

import hashlib
from collections import Counter
from dataclasses import asdict, replace
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.engine.messages import Abort, Gauges, Output, Submit
from headway.engine.scheduling import Books, Limits, Scheduler, UnhonourableError, batch_digest

VOCABULARY = 50


def model(history):
    return hashlib.blake2b(bytes(history), digest_size=1).digest()[0] % VOCABULARY


def solo_run(submit):
    tokens = list(submit.prompt)
    while True:
        tokens.append(model(tokens))
        generated = tokens[len(submit.prompt) :]
        if tokens[-1] in submit.stop_tokens:
            return generated, "stop"
        if len(generated) == submit.max_tokens:
            return generated, "length"


def as_facts(members):
    """Members as they are now, since their block tables grow."""
    return [{**asdict(member), "table": member.table.tolist()} for member in members]


class Rank:
    """Books and KV of one rank."""

    def __init__(self, limits, pages):
        self.books, self.page_size, self.kv = Books(pages, limits.page_size), limits.page_size, {}
        self.last = {}

    def forward(self, members, inputs):
        """Writes the KV of the batch, reads all of it back, and returns a token for each row that samples."""
        sampled = []
        for member, known in zip(members, inputs, strict=True):
            tokens = [self.last[member.request]] if member.from_last else known
            assert len(tokens) == member.count
            cells = [p * self.page_size + i for p in member.table for i in range(self.page_size)]
            for position, token in enumerate(tokens, member.start):
                self.kv[cells[position]] = (member.request, position, token)
            history = [self.kv[cell] for cell in cells[: member.start + member.count]]
            assert [entry[:2] for entry in history] == [(member.request, i) for i in range(len(history))]
            if member.samples:
                sampled.append(model([token for _, _, token in history]))
                self.last[member.request] = sampled[-1]
        return sampled


class Pipeline:
    """The pass of the table without wires: rank 0 is always ahead of the others as far as the ring allows.

    One rank alone may have its outputs come back `late` passes later, when it has planned on them.
    """

    def __init__(self, ranks, limits, small_rank_pages=None, late=0):
        self.lag = ranks - 1 or late
        limits = replace(limits, ahead=self.lag // limits.slots)
        self.scheduler, self.limits = Scheduler(limits), limits
        self.ranks = [Rank(limits, limits.pages) for _ in range(ranks)]
        if small_rank_pages is not None:
            self.ranks[-1] = Rank(limits, small_rank_pages)
        self.n, self.quiet, self.stalled = 0, 0, 0
        self.passes = {}
        self.submitted, self.tokens, self.finishes, self.void_streak = {}, {}, {}, Counter()
        self.oldest, self.progress = None, 0

    def run_pass(self, intake=(), refuser=0):
        """One pass of rank 0; rank `refuser` declares it void (0: none does). One rank alone voids what it has run."""
        for message in intake:
            if isinstance(message, Submit):
                self.submitted[message.request], self.tokens[message.request] = message, []
        n, scheduler = self.n, self.scheduler
        relayed = scheduler.take(intake)
        plan = scheduler.plan(n, n % self.limits.slots)
        assert plan.digest == batch_digest(plan.decision.rows)
        self.check_plan(plan)
        inputs = [scheduler.input_tokens(row) for row in plan.decision.rows]
        rank0 = self.ranks[0]
        rank0.books.learn(relayed)
        members = rank0.books.apply(plan.decision)
        sampled = rank0.forward(members, inputs)
        self.passes[n] = (relayed, plan, inputs, as_facts(members), sampled, refuser)
        self.check_in_flight()
        if n >= self.lag:
            self.follow(n - self.lag)
        self.quiet = 0 if plan.launch else self.quiet + 1
        self.n += 1
        self.collect()
        self.check_progress()

    def follow(self, n):
        """The other ranks' pass n, whose output comes back to rank 0."""
        relayed, plan, inputs, expected, sampled, refuser = self.passes.pop(n)
        decision = plan.decision
        if refuser and len(self.ranks) == 1:
            decision = msgspec.structs.replace(decision, refused_by=0, refusal="chance")
        for r, rank in enumerate(self.ranks[1:], 1):
            rank.books.learn(relayed)
            if r == refuser and plan.launch and decision.refused_by < 0:
                decision = msgspec.structs.replace(decision, refused_by=r, refusal="chance")
            try:
                members = rank.books.apply(decision)
            except UnhonourableError as error:
                decision = msgspec.structs.replace(decision, refused_by=r, refusal=str(error))
            if decision.refused_by < 0:
                assert as_facts(members) == expected, "the ranks' block tables differ"
                assert rank.forward(members, inputs) == sampled
        if not plan.launch:
            return
        void = decision.refused_by >= 0
        for row in decision.rows:
            self.void_streak[row.request] = self.void_streak[row.request] + 1 if void else 0
        self.scheduler.apply(n, Output([] if void else sampled, decision.refused_by, decision.refusal), void)
        if void:
            self.progress = self.n

    def collect(self):
        for report in self.scheduler.take_reports():
            if isinstance(report, Gauges):
                continue
            assert report.request not in self.finishes, "a report after the end"
            self.tokens[report.request] += report.tokens
            if report.finish:
                self.finishes[report.request] = report

    def check_plan(self, plan):
        rows, limits = plan.decision.rows, self.limits
        assert len(rows) <= limits.max_batch_rows
        assert sum(row.count for row in rows) <= limits.max_batch_tokens
        assert all(row.count > 0 for row in rows)
        assert len({row.request for row in rows}) == len(rows)
        self.stalled = 0 if plan.launch or self.scheduler.idle() else self.stalled + 1
        # Each slot may yield a page to a starved request, whose own slot comes next.
        # Whoever needs pages of passes in flight waits until these are back.
        assert self.stalled < 2 * limits.slots + 2 * self.lag, "work waits, and nothing is launched"

    def check_in_flight(self):
        """No page is in two block tables, neither rank 0's nor those of the passes in flight."""
        self.scheduler.audit()
        owners = {}
        for _, _, _, members, *_ in self.passes.values():
            for member in members:
                for page in member["table"]:
                    assert owners.setdefault(page, member["request"]) == member["request"]

    def check_progress(self):
        """While the oldest request runs it is never preempted, and gets on in a bounded number of passes."""
        # Those that have ended or were aborted only wait for their passes in flight.
        requests = [r for r in self.scheduler.requests.values() if not (r.ended or r.aborted)]
        oldest = min(requests, key=lambda request: request.arrival, default=None)
        now = oldest and (oldest.id, oldest.slot, oldest.computed)
        before, self.oldest = self.oldest, now
        if now is None or oldest.slot is None or before is None or before[:2] != now[:2] or before != now:
            self.progress = self.n
        if before and now and before[0] == now[0] and before[1] is not None:
            assert now[1] == before[1], "the oldest request was preempted"
        assert self.n - self.progress <= 3 * self.limits.slots + 2 * self.lag, "the oldest request does not get on"

    def finish(self):
        """Runs to the end within a bound and checks that everything is as it was at the start."""
        size = sum(len(s.prompt) + s.max_tokens for s in self.submitted.values())
        bound = self.n + 4 * (self.limits.slots + self.lag) * (size + 2)
        while not self.scheduler.idle() or self.passes:
            assert self.n < bound, "not idle within the bound"
            self.run_pass()
            if self.scheduler.idle() and self.quiet > 2 * self.limits.slots + self.lag:
                break
        assert self.scheduler.pool.free == self.limits.pages
        assert [rank.books.entries for rank in self.ranks] == [{}] * len(self.ranks)
        assert self.finishes.keys() == self.submitted.keys()
        for request, submit in self.submitted.items():
            self.check_result(submit, self.finishes[request], self.tokens[request])

    def check_result(self, submit, report, tokens):
        if report.finish == "error" and not report.error.startswith("refused"):
            pages = self.limits.pages_for(len(submit.prompt) + submit.max_tokens - 1)
            assert pages > self.limits.pages
            return
        expected, finish = solo_run(submit)
        if report.finish in ("stop", "length"):
            assert (tokens, report.finish) == (expected, finish)
        else:
            assert tokens == expected[: len(tokens)]
            streak = self.void_streak[submit.request]
            assert report.finish == "abort" or streak == self.limits.max_retries + 1 or self.limits.ahead


def random_submit(request, random, longest_prompt, most_tokens):
    prompt = [random.randrange(VOCABULARY) for _ in range(random.randint(1, longest_prompt))]
    stop_tokens = [random.randrange(VOCABULARY) for _ in range(random.randint(0, 2))]
    return Submit(request, prompt, random.randint(1, most_tokens), stop_tokens)


class Serving(RuleBasedStateMachine):
    """Arrivals, aborts, voids and passes in any order."""

    @initialize(
        ranks=st.integers(1, 4),
        more_slots=st.integers(0, 1),
        late=st.integers(0, 2),
        pages=st.integers(1, 12),
        page_size=st.integers(1, 4),
        rows=st.integers(1, 4),
        more_tokens=st.integers(0, 6),
        max_retries=st.integers(0, 2),
    )
    def start(self, ranks, more_slots, late, pages, page_size, rows, more_tokens, max_retries):
        limits = Limits(ranks + more_slots, pages, page_size, rows + more_tokens, rows, 1000, max_retries)
        self.pipeline = Pipeline(ranks, limits, late=late)
        self.intake, self.next = [], 0

    @rule(prompt=st.integers(1, 12), max_tokens=st.integers(1, 8), seed=st.integers(0, 99), copies=st.integers(1, 3))
    def submit(self, prompt, max_tokens, seed, copies):
        random = Random(seed)
        for _ in range(copies):
            self.intake.append(random_submit(self.next, random, prompt, max_tokens))
            self.next += 1

    @rule(which=st.integers(0, 30))
    def abort(self, which):
        self.intake.append(Abort(self.next - 1 - which if which < self.next else which))

    @rule(count=st.integers(1, 5))
    def passes(self, count):
        for _ in range(count):
            self.run_pass(0)

    @rule(refuser=st.integers(1, 3))
    def void(self, refuser):
        self.run_pass(min(refuser, max(1, len(self.pipeline.ranks) - 1)))

    def run_pass(self, refuser):
        intake, self.intake = self.intake, []
        self.pipeline.run_pass(intake, refuser)

    @invariant()
    def pages_have_one_owner(self):
        if hasattr(self, "pipeline"):
            self.pipeline.scheduler.audit()

    def teardown(self):
        if hasattr(self, "pipeline"):
            self.run_pass(0)
            self.pipeline.finish()


TestServing = Serving.TestCase
TestServing.settings = settings(
    max_examples=800, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("seed", range(60))
def test_crowd_in_a_small_pool_gets_its_solo_tokens(seed):
    """Forty requests that together need many times the pool, with aborts and voids."""
    random = Random(seed)
    ranks = random.randint(1, 4)
    limits = Limits(ranks + random.randint(0, 1), random.randint(9, 16), 4, 12, 6, 1000, max_retries=5)
    pipeline = Pipeline(ranks, limits, late=seed % 2)
    crowd = [random_submit(i, random, 20, 16) for i in range(40)]
    while crowd:
        arriving = [crowd.pop(0) for _ in range(min(len(crowd), random.choice([0, 0, 1, 4])))]
        if random.random() < 0.1:
            arriving.append(Abort(random.randrange(40)))
        pipeline.run_pass(arriving, random.randint(1, max(1, ranks - 1)) if random.random() < 0.1 else 0)
    pipeline.finish()
    assert pipeline.scheduler.gauges().preemptions > 0


def test_same_history_gives_the_same_decisions():
    def decisions():
        random, seen = Random(5), []
        pipeline = Pipeline(3, replace(Limits(3, 12, 4, 12, 6, 1000), max_retries=5))
        for i in range(60):
            pipeline.run_pass([random_submit(i, random, 12, 8)], i % 7 == 0)
            seen.append(msgspec.json.encode(pipeline.passes[pipeline.n - 1][1].decision))
        return seen

    assert decisions() == decisions()


def test_rank_with_a_smaller_pool_ends_what_it_cannot_hold_and_serves_the_rest():
    limits = Limits(3, 8, 4, 16, 4, 1000)
    pipeline = Pipeline(3, limits, small_rank_pages=4)
    big, small = Submit(0, [1] * 20, 4), Submit(1, [2] * 4, 4)
    pipeline.run_pass([big])
    for _ in range(20):
        pipeline.run_pass()
    pipeline.run_pass([small])
    pipeline.finish()
    assert pipeline.finishes[0].error.startswith("refused 4 times, last by rank 2: request 0: pages [0, 1, 2, 3, 4]")
    assert pipeline.tokens[1] == solo_run(small)[0]
