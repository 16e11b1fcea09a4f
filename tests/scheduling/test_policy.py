"""The admission policy, case by case."""

import pytest

from headway.engine.messages import Abort, Gauges, Output, Relayed, Sampling, Stop, Submit
from headway.engine.scheduling import Limits, Scheduler


def scheduler_of(**changes):
    base = {"slots": 1, "pages": 64, "page_size": 4, "max_batch_tokens": 16, "max_batch_rows": 4, "max_context": 64}
    return Scheduler(Limits(**(base | changes)))


def submit(request, prompt, max_tokens=8, stop_tokens=()):
    return Submit(request, [100 + i for i in range(prompt)], max_tokens, list(stop_tokens), Sampling(seed=request))


class Driver:
    """Passes over a scheduler, each output coming back just before the slot is planned again."""

    def __init__(self, scheduler):
        self.scheduler, self.n, self.plans = scheduler, 0, {}

    def step(self, *intake, token=1, void=False):
        """One pass; `token` and `void` are what the slot's pass in flight returned. Returns the decision."""
        slots, ahead = self.scheduler.limits.slots, self.scheduler.limits.ahead
        self.land(self.n - slots * (1 + ahead), token, void)
        self.scheduler.take(intake)
        plan = self.scheduler.plan(self.n, self.n % slots)
        self.plans[self.n] = plan
        self.n += 1
        self.scheduler.audit()
        return plan.decision

    def land(self, n, token=1, void=False):
        plan = self.plans.pop(n, None)
        if plan and plan.launch:
            tokens = [] if void else [token for row in plan.decision.rows if row.samples]
            self.scheduler.apply(n, Output(tokens, 2, "no") if void else Output(tokens), void)

    def finishes(self):
        return [(r.request, r.finish) for r in self.scheduler.take_reports() if not isinstance(r, Gauges) and r.finish]


def shape(decision):
    return [(row.request, row.start, row.count, row.samples) for row in decision.rows]


def test_long_prompts_are_chunked_and_decodes_go_first():
    driver = Driver(scheduler_of(max_batch_tokens=5))
    assert shape(driver.step(submit(1, 4), submit(2, 7))) == [(1, 0, 4, True), (2, 0, 1, False)]
    assert shape(driver.step()) == [(1, 4, 1, True), (2, 1, 4, False)]
    assert shape(driver.step()) == [(1, 5, 1, True), (2, 5, 2, True)]
    decision = driver.step()
    assert shape(decision) == [(1, 6, 1, True), (2, 7, 1, True)]
    assert [(row.first_page, row.pages) for row in decision.rows] == [(2, []), (2, [])]


def test_input_tokens_of_a_row_are_prompt_and_generated():
    driver = Driver(scheduler_of())
    first = driver.step(submit(1, 3)).rows[0]
    assert driver.scheduler.input_tokens(first) == [100, 101, 102]
    assert driver.scheduler.input_tokens(driver.step(token=55).rows[0]) == [55]


def test_rows_of_a_pass_are_bounded_and_the_rest_waits_in_order():
    driver = Driver(scheduler_of(max_batch_rows=2))
    assert [row.request for row in driver.step(*(submit(i, 2, max_tokens=1) for i in range(1, 5))).rows] == [1, 2]
    assert [row.request for row in driver.step().rows] == [3, 4]


def test_requests_are_spread_evenly_over_the_slots():
    driver = Driver(scheduler_of(slots=4, max_batch_rows=16))
    first = driver.step(*(submit(i, 1, max_tokens=20) for i in range(6)))
    assert [len(first.rows), *(len(driver.step().rows) for _ in range(3))] == [2, 2, 1, 1]
    assert [len(driver.step(submit(9, 1)).rows), *(len(driver.step().rows) for _ in range(3))] == [2, 2, 2, 1]


@pytest.mark.parametrize("slot", range(3))
def test_lone_request_starts_in_whichever_slot_is_planned(slot):
    driver = Driver(scheduler_of(slots=3))
    for _ in range(slot):
        assert not driver.step().rows
    assert shape(driver.step(submit(1, 2))) == [(1, 0, 2, True)]


def test_finish_reasons():
    driver = Driver(scheduler_of())
    driver.step(submit(1, 2, max_tokens=1), submit(2, 2, stop_tokens=[1]), submit(3, 2, max_tokens=2))
    assert shape(driver.step()) == [(3, 2, 1, True)]
    assert driver.finishes() == [(1, "length"), (2, "stop")]
    assert driver.step().released == [3]
    assert driver.finishes() == [(3, "length")]
    assert driver.scheduler.idle()


def test_stop_token_is_reported_with_its_finish():
    driver = Driver(scheduler_of())
    driver.step(submit(1, 2, max_tokens=1, stop_tokens=[1]))
    driver.step()
    report = driver.scheduler.take_reports()[0]
    assert (report.tokens, report.finish) == ([1], "stop")


def test_new_requests_are_relayed_and_refused_ones_are_not():
    scheduler = scheduler_of(pages=4, max_context=20)
    intake = [submit(1, 10, 7), submit(2, 10, 8), submit(3, 13, 8), submit(4, 0), submit(5, 3, 0)]
    assert scheduler.take(intake) == [Relayed(1, Sampling(seed=1))]
    assert [(r.request, r.finish, r.error) for r in scheduler.take_reports()[:-1]] == [
        (2, "error", "10 prompt tokens and max_tokens 8 take 5 pages of 4, the pool has 4"),
        (3, "error", "13 prompt tokens and max_tokens 8 are 21, more than the context of 20"),
        (4, "error", "the prompt has 0 tokens, must have at least 1"),
        (5, "error", "max_tokens is 0, must be at least 1"),
    ]


def test_largest_request_that_fits_runs_to_its_end():
    driver = Driver(scheduler_of(pages=4, max_context=20))
    driver.step(submit(1, 10, 7))
    for _ in range(7):
        driver.step()
    assert driver.finishes() == [(1, "length")]


def test_live_identity_cannot_be_submitted_again():
    scheduler = scheduler_of()
    scheduler.take([submit(1, 2)])
    with pytest.raises(ValueError, match="request 1 was submitted twice"):
        scheduler.take([submit(1, 2)])


def test_youngest_of_the_slot_is_preempted_and_recomputed_with_what_it_generated():
    driver = Driver(scheduler_of(pages=3, max_batch_rows=2))
    driver.step(submit(1, 4, 4), submit(2, 3, 4), submit(3, 1, 1))
    assert shape(driver.step()) == [(1, 4, 1, True), (2, 3, 1, True)]  # the last page goes to request 1
    assert shape(driver.step()) == [(1, 5, 1, True)]  # request 2 needs a page, and is the youngest itself
    assert driver.scheduler.gauges().preemptions == 1
    assert driver.scheduler.gauges().waiting == 2
    assert driver.step().released == []
    again = driver.step()
    assert again.released == [1]
    assert shape(again) == [(2, 0, 5, True), (3, 0, 1, True)]  # its age puts it before request 3
    assert again.rows[0].first_page == 0
    assert len(again.rows[0].pages) == 2


def test_starved_oldest_gets_the_page_that_another_slot_yields():
    driver = Driver(scheduler_of(slots=2, pages=2))
    driver.step(submit(1, 4, 5), submit(2, 4, 1))
    assert shape(driver.step()) == [(2, 0, 4, True)]
    driver.scheduler.take([submit(3, 1, 1)])
    assert shape(driver.step()) == []  # request 1 needs a page; request 2 may be in flight: hands off
    decision = driver.step()  # request 2 has ended, its page is kept from request 3
    assert (shape(decision), decision.released) == ([], [2])
    assert shape(driver.step()) == [(1, 4, 1, True)]


def test_other_slot_is_preempted_only_when_it_is_planned():
    driver = Driver(scheduler_of(slots=2, pages=3))
    driver.step(submit(1, 4, 9), submit(2, 5, 3))
    assert shape(driver.step()) == [(2, 0, 5, True)]
    assert shape(driver.step()) == []
    assert driver.scheduler.gauges().preemptions == 0
    assert shape(driver.step()) == []
    assert driver.scheduler.gauges().preemptions == 1
    assert shape(driver.step()) == [(1, 4, 1, True)]


def test_one_slot_yields_one_page_and_no_more():
    driver = Driver(scheduler_of(slots=3, pages=3))
    driver.step(submit(1, 4, 9), submit(2, 4, 9), submit(3, 2, 9))
    assert [shape(driver.step()) for _ in range(2)] == [[(2, 0, 4, True)], [(3, 0, 2, True)]]
    assert shape(driver.step()) == []  # request 1 is starved
    assert shape(driver.step()) == []  # request 2 yields
    assert shape(driver.step()) == [(3, 2, 1, True)]  # request 3 need not
    assert shape(driver.step()) == [(1, 4, 1, True)]


def test_page_is_kept_for_a_starved_request_only_while_it_lives():
    driver = Driver(scheduler_of(slots=2, pages=2))
    driver.step(submit(1, 4, 5), submit(2, 4, 1))
    driver.step()
    assert shape(driver.step(submit(3, 8, 1))) == []  # request 1 is starved
    assert shape(driver.step(Abort(1))) == [(3, 0, 8, True)]


def test_whoever_comes_and_is_aborted_in_flight_takes_no_page_that_the_oldest_waits_for():
    driver = Driver(scheduler_of(slots=2, pages=3))
    driver.step(submit(1, 4, 5), submit(2, 8, 9))
    driver.step()
    for new in range(3, 6):  # each time request 1 is planned, pages are coming, and somebody wants them
        if shape(driver.step(Abort(new - 1), submit(new, 8, 9))) == [(1, 4, 1, True)]:
            return
        driver.step()
    pytest.fail("request 1 gets no page")


def test_abort_while_waiting_running_and_in_flight():
    driver = Driver(scheduler_of(max_batch_rows=1))
    driver.step(submit(1, 2), submit(2, 2))
    driver.scheduler.take([Abort(2), Abort(77)])
    assert driver.finishes() == [(2, "abort")]
    driver.scheduler.take([Abort(1), Abort(1)])
    assert driver.finishes() == []
    assert driver.scheduler.pool.free == 63  # in flight: the page stays until the output is back
    decision = driver.step()
    assert (decision.rows, decision.released) == ([], [2, 1])
    assert driver.finishes() == [(1, "abort")]
    driver.step(submit(3, 2))
    driver.land(2)
    driver.scheduler.take([Abort(3)])
    assert driver.finishes() == [(3, "abort")]
    assert driver.scheduler.pool.free == 64
    assert not driver.scheduler.idle()  # the release is still to be carried
    assert driver.step().released == [3]
    assert driver.scheduler.idle()


def test_void_pass_is_planned_again_with_the_whole_block_table():
    driver = Driver(scheduler_of())
    driver.step(submit(1, 7))
    driver.step()
    third = driver.step(void=True)
    assert [(r.start, r.count, r.first_page, r.pages) for r in third.rows] == [(7, 1, 0, [0, 1])]
    assert [(r.start, r.first_page, r.pages) for r in driver.step().rows] == [(8, 2, [2])]


def test_voids_in_a_row_end_the_request_and_a_success_forgives():
    driver = Driver(scheduler_of(max_retries=1))
    driver.step(submit(1, 2))
    for void in (True, False, True):
        assert driver.step(void=void).rows
    decision = driver.step(void=True)
    assert (decision.rows, decision.released) == ([], [1])
    last = driver.scheduler.take_reports()[-2]
    assert (last.finish, last.error) == ("error", "refused 2 times, last by rank 2: no")
    assert driver.scheduler.gauges().voids == 3


def test_decodes_are_planned_by_counts_while_their_input_is_in_flight():
    driver = Driver(scheduler_of(ahead=1, max_batch_tokens=4))
    plans = [driver.step(submit(1, 6, 3)), *(driver.step() for _ in range(4))]
    rows = [[(row.start, row.count, row.samples, row.from_last) for row in plan.rows] for plan in plans]
    assert rows == [[(0, 4, False, False)], [(4, 2, True, False)], [(6, 1, True, True)], [(7, 1, True, True)], []]
    assert driver.finishes() == []  # the third token is known once the last pass is back
    assert driver.step().released == [1]
    assert driver.finishes() == [(1, "length")]


def test_token_after_a_stop_token_is_dropped_and_pages_are_kept_until_it_came_back():
    driver = Driver(scheduler_of(ahead=1, pages=3))
    driver.step(submit(1, 4, 8, stop_tokens=[9]))
    driver.step(submit(2, 5, 2), token=9)
    assert driver.scheduler.pool.free == 1
    assert driver.finishes() == []
    decision = driver.step(token=9)  # the stop token is back, the pass planned on it is not
    assert (shape(decision), decision.released) == ([], [])
    assert driver.finishes() == [(1, "stop")]
    decision = driver.step(token=7)
    assert (shape(decision), decision.released) == ([(2, 0, 5, True)], [1])
    assert [r.tokens for r in driver.scheduler.take_reports() if not isinstance(r, Gauges)] == []


def test_preempted_in_flight_keeps_its_pages_and_the_token_on_its_way():
    driver = Driver(scheduler_of(ahead=1, pages=3))
    driver.step(submit(1, 7, 4), submit(2, 3, 4))
    assert shape(driver.step()) == [(1, 7, 1, True), (2, 3, 1, True)]
    assert shape(driver.step()) == []  # request 1 needs a page: request 2 leaves, its page is still being written
    assert driver.scheduler.gauges().preemptions == 1
    assert shape(driver.step()) == [(1, 8, 1, True)]
    driver.land(1)
    assert len(driver.scheduler.requests[2].tokens) == 3 + 2


def test_abort_in_flight_is_planned_no_further():
    driver = Driver(scheduler_of(ahead=1))
    driver.step(submit(1, 2))
    assert shape(driver.step(Abort(1))) == []
    assert driver.finishes() == []
    assert driver.step().released == [1]
    assert driver.finishes() == [(1, "abort")]


def test_pass_planned_on_a_void_one_is_worth_nothing():
    driver = Driver(scheduler_of(ahead=1))
    driver.step(submit(1, 2))
    driver.step()
    assert [(r.start, r.count, r.from_last) for r in driver.step(void=True).rows] == [(0, 2, False)]
    assert [(r.start, r.count, r.from_last) for r in driver.step(token=5).rows] == [(2, 1, True)]
    assert driver.scheduler.requests[1].tokens == [100, 101]
    driver.step(token=6)
    assert driver.scheduler.requests[1].tokens == [100, 101, 6]


def test_stop_refuses_what_comes_after_it_and_ends_when_idle():
    driver = Driver(scheduler_of())
    driver.step(submit(1, 2, 1), Stop(), submit(2, 2, 1))
    assert driver.finishes() == [(2, "error")]
    assert not driver.scheduler.stopped()
    driver.step()
    assert driver.scheduler.stopped()


def test_outputs_that_do_not_fit_the_plan_are_loud():
    scheduler = scheduler_of()
    scheduler.take([submit(1, 2)])
    scheduler.plan(0, 0)
    with pytest.raises(ValueError, match="slot 0 is planned in pass 1 with 1 passes of it in flight; allowed: 0"):
        scheduler.plan(1, 0)
    with pytest.raises(ValueError, match="pass 5 came back"):
        scheduler.apply(5, Output(), False)
    with pytest.raises(ValueError, match="returned 2 tokens, expected 1"):
        scheduler.apply(0, Output([1, 2]), False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"pages": 0}, "pages is 0, must be at least 1"),
        ({"max_retries": -1}, "max_retries is -1, must be at least 0"),
        ({"ahead": -1}, "ahead is -1, must be at least 0"),
        ({"max_batch_tokens": 3}, "max_batch_tokens is 3, must be at least max_batch_rows, 4"),
    ],
)
def test_limits_out_of_range_are_named(change, text):
    with pytest.raises(ValueError, match=text):
        scheduler_of(**change)


def test_gauges_are_reported_when_they_change():
    scheduler = scheduler_of()
    assert scheduler.take_reports() == [Gauges(0, 0, 0, 64, 64)]
    scheduler.take([submit(1, 2)])
    assert scheduler.take_reports() == [Gauges(0, 1, 0, 64, 64)]
    scheduler.plan(0, 0)
    assert scheduler.take_reports() == [Gauges(1, 0, 1, 63, 64)]
    assert scheduler.take_reports() == []
