"""Faults planted in table, policy, books and bindings: the simulator finds each, and says in how many schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from headway.engine.messages import Output
from headway.engine.scheduling import Books, Scheduler
from headway.engine.simulation import draw, shrink
from headway.spec import edits
from headway.spec.language import FALSE, Const, Var
from headway.spec.serving import serving_table

MOST = 300  # schedules; the slowest fault to show takes a fraction of that


def table(*changes: edits.Edit) -> dict[str, Any]:
    return {"table": edits.edit(serving_table(), *changes)}


def bindings(**faults: Any) -> dict[str, Any]:
    """Bindings of every rank, some replaced by what `faults` makes of them."""

    def replaced(rank: int, bound: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: faults[name](call) if name in faults else call for name, call in bound.items()}

    return {"bindings": replaced}


class EarlyPages(Scheduler):
    """Gives the last page of a preempted or ended request away, but goes on naming it."""

    def plan(self, pass_number, slot):
        plan = super().plan(pass_number, slot)
        for row in plan.decision.rows:
            if row.pages and pass_number % 5 == 4:
                row.pages[-1] = (row.pages[-1] + 1) % self.limits.pages
        return plan


class ForgetsVoids(Scheduler):
    """Takes a void pass for one that ran."""

    def _retry(self, request, output):
        pass


class ForgetsAborts(Scheduler):
    """Ignores every abort."""

    def _abort(self, identity):
        pass


class KeepsReleases(Scheduler):
    """Never tells the others that a request is over."""

    def plan(self, pass_number, slot):
        plan = super().plan(pass_number, slot)
        return plan._replace(decision=msgspec.structs.replace(plan.decision, released=[]))


class LastComeFirstServed(Scheduler):
    """Lets one queue entry starve: the head is put back to the end whenever something else waits."""

    def plan(self, pass_number, slot):
        if len(self._waiting) > 1:
            self._waiting.append(self._waiting.pop(0))
            self._waiting.pop()
        return super().plan(pass_number, slot)


class StaleTables(Books):
    """Appends a new block table to the old one of a request that was preempted."""

    def _take(self, row, entry):
        if entry.table and not row.first_page:
            entry.table.extend(row.pages)
            return super()._take(msgspec.structs.replace(row, first_page=len(entry.table), pages=[]), entry)
        return super()._take(row, entry)


class ToleratesUnknown(Books):
    """Leaves a row out that it cannot honour, instead of refusing the decision."""

    def apply(self, decision):
        rows = [row for row in decision.rows if max(row.pages, default=0) < self._pages]
        return super().apply(msgspec.structs.replace(decision, rows=rows))


def stale_hidden(call):
    kept = []

    def forward(work, hidden):
        kept.append(hidden)
        return call(work, kept[max(0, len(kept) - 2)])

    return forward


def forgetful(call):
    count = 0

    def learn(requests):
        nonlocal count
        count += 1
        call(requests[:-1] if count % 3 == 0 else requests)

    return learn


def hasty_sleep(call):
    def poll():
        return call()[:1]

    return poll


launch = Var("launch")
FAULTS = {
    "table: the chain is awaited right after its post": lambda: table(
        edits.move("flush chain", after="post chain", roles=["first"]),
        edits.move("flush chain", after="post chain", roles=["middle"]),
    ),
    "table: hidden states are posted in void passes too": lambda: table(
        edits.guard("post hidden states", launch, roles=["middle"])
    ),
    "table: a void is not reported": lambda: table(edits.guard("post output", Var("will_launch"))),
    "table: rank 0 does not wait for outputs of void passes": lambda: table(
        edits.guard("receive output", launch, roles=["first"])
    ),
    "table: a middle rank clears the void": lambda: table(
        edits.set_field("post decision", "void", FALSE, roles=["middle"])
    ),
    "table: hidden states are received when this rank launches": lambda: table(
        edits.guard("receive hidden states", Var("will_launch"), roles=["last"])
    ),
    "table: rank 0 never sleeps, so never stops": lambda: table(
        edits.set_effect("flush chain", "quiet", Const(0), roles=["first"])
    ),
    "table: the stop is not relayed": lambda: table(edits.set_field("post chain", "stop", FALSE, roles=["middle"])),
    "policy: names a page that is another's": lambda: {"scheduler": EarlyPages},
    "policy: takes a void pass for one that ran": lambda: {"scheduler": ForgetsVoids},
    "policy: ignores aborts": lambda: {"scheduler": ForgetsAborts},
    "policy: never carries a release": lambda: {"scheduler": KeepsReleases},
    "policy: loses a request from the queue": lambda: {"scheduler": LastComeFirstServed},
    "books: a stale block table": lambda: {"books": StaleTables},
    "books: a row that cannot be honoured is left out": lambda: {"books": ToleratesUnknown},
    "binding: hidden states of the previous pass": lambda: bindings(forward_middle=stale_hidden),
    "binding: a request is not learned": lambda: bindings(learn_requests=forgetful),
    "binding: void is dropped from the output": lambda: bindings(
        apply_output=lambda call: lambda of_pass, output, void: call(of_pass, output, False)
    ),
    "binding: a void pass returns tokens": lambda: bindings(void_output=lambda call: lambda decision: Output([1])),
    "binding: batches in another order": lambda: bindings(
        honour=lambda call: (
            lambda decision, digest: call(msgspec.structs.replace(decision, rows=decision.rows[::-1]), digest)
        )
    ),
    "binding: arrivals are dropped": lambda: bindings(poll_requests=hasty_sleep),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, judged, record_property):
    planted = FAULTS[fault]()
    for seed in range(MOST):
        outcome = judged(draw(seed), **planted)
        if outcome.law:
            break
    record_property("schedules", seed + 1)
    assert outcome.law, f"{fault}: not found in {MOST} schedules"
    print(f"{fault}: {seed + 1} schedule(s), {outcome.law}: {outcome.finding[:150]}")


def test_a_failure_shrinks_to_what_it_needs(judged):
    planted = bindings(apply_output=lambda call: lambda of_pass, output, void: call(of_pass, output, False))
    outcome = next(o for o in (judged(draw(seed), **planted) for seed in range(MOST)) if o.law)
    small, _ = shrink(outcome, lambda schedule: judged(schedule, **planted))
    schedule = small.schedule
    assert small.law == outcome.law
    assert len(schedule.clients) == 1
    assert len(schedule.refusals) + len(schedule.pages_by_rank) >= 1
    assert (schedule.kill, schedule.pauses, schedule.jitter) == (None, [], 0)
