"""What the table's local rows call: each binding gets its declared inputs and returns its declared outputs.

None of them knows the rank, the role or the number of ranks; which ones a rank has is what its rows name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
import torch

from headway.engine.messages import Decision, Intake, Output, Relayed, Report
from headway.engine.scheduling import Books, Member, Scheduler, UnhonourableError, batch_digest


class Runner(Protocol):
    """A worker, real or simulated."""

    def prepare(self, members: list[Member], tokens: list[list[int]]) -> Any:
        """Lay out a batch."""

    def forward(self, work: Any, hidden: Any) -> Any:
        """Run a stage without the head: hidden states for the next one, which the device may still be computing."""

    def launch(self, work: Any, hidden: Any) -> None:
        """Run a stage with the head and choose tokens, which `collect` gives; the device may still be at it."""

    def collect(self) -> list[int]:
        """The tokens of the oldest launched pass not yet collected: the only wait for the device."""


class Desk(Protocol):
    """Where requests come from and reports go to."""

    def wait(self) -> list[Intake]:
        """Sleep until something is there; take it all."""

    def poll(self) -> list[Intake]:
        """Take what is there."""

    def report(self, reports: list[Report]) -> None:
        """Hand out reports."""


class ProtocolError(RuntimeError):
    """What a rank received contradicts what it was told: a broken law, which stops the group."""


class FollowerBindings:
    """What every rank does with what it is told. `refuse` lets a test make this rank unable to honour a decision."""

    def __init__(
        self, books: Books, runner: Runner, rank_name: int, refuse: Callable[[Decision], str] | None = None
    ) -> None:
        self._books, self._runner, self._name, self._refuse = books, runner, rank_name, refuse

    def learn_requests(self, requests: list[Relayed]) -> None:
        """Open the books for new requests."""
        self._books.learn(requests)

    def honour(self, decision: Decision, digest: int) -> tuple[Decision, Any, bool]:
        """Take the decision into the books and lay out its batch, or say why this rank cannot."""
        if batch_digest(decision.rows) != digest:
            raise ProtocolError(
                f"the decision's rows have digest {batch_digest(decision.rows)}, it was sent as {digest}"
            )
        try:
            members = self._books.apply(decision)
            refusal = self._refuse(decision) if self._refuse is not None and members else ""
        except UnhonourableError as error:
            members, refusal = [], str(error)
        if refusal:
            return msgspec.structs.replace(decision, refused_by=self._name, refusal=refusal), None, False
        return decision, self._runner.prepare(members, []) if members else None, True

    def forward_middle(self, work: Any, hidden: torch.Tensor) -> Any:
        """Hidden states in, hidden states out."""
        return self._runner.forward(work, hidden)

    def forward_last(self, work: Any, hidden: torch.Tensor) -> Output:
        """Hidden states in, tokens out."""
        self._runner.launch(work, hidden)
        return self.collect_output()

    def collect_output(self) -> Output:
        """Wait for the tokens of the oldest launched pass."""
        return Output(self._runner.collect())

    def void_output(self, decision: Decision) -> Output:
        """What a launched pass returns when some rank could not honour it."""
        return Output([], decision.refused_by, decision.refusal)


class LeaderBindings(FollowerBindings):
    """What the rank that decides does besides."""

    def __init__(self, books: Books, runner: Runner, rank_name: int, scheduler: Scheduler, desk: Desk) -> None:
        super().__init__(books, runner, rank_name)
        self._scheduler, self._desk = scheduler, desk

    def wait_for_requests(self) -> tuple[list[Relayed], bool]:
        """Sleep until there is something to do; whether the pipeline is to stop.

        No sleep while the policy has work: it may let more than L passes go by while slots yield pages to one another.
        """
        if not self._scheduler.idle():
            return self.poll_requests(), False
        if self._scheduler.stopped():
            return [], True
        relayed = self._take(self._desk.wait())
        return relayed, self._scheduler.stopped()

    def poll_requests(self) -> list[Relayed]:
        """Take what has arrived."""
        return self._take(self._desk.poll())

    def _take(self, intake: list[Intake]) -> list[Relayed]:
        relayed = self._scheduler.take(intake)
        self._desk.report(self._scheduler.take_reports())
        return relayed

    def plan(self, this_pass: int, slot: int) -> tuple[Decision, Any, bool, int]:
        """Decide what the pass runs, and lay it out."""
        plan = self._scheduler.plan(this_pass, slot)
        members = self._books.apply(plan.decision)
        tokens = [self._scheduler.input_tokens(row) for row in plan.decision.rows]
        work = self._runner.prepare(members, tokens) if members else None
        return plan.decision, work, plan.launch, plan.digest

    def forward_first(self, work: Any) -> Any:
        """Token ids in, hidden states out."""
        return self._runner.forward(work, None)

    def forward_solo(self, work: Any) -> None:
        """Token ids in; the tokens that come out are collected later."""
        self._runner.launch(work, None)

    def apply_output(self, of_pass: int, output: Output, void: bool) -> None:
        """Take what came of a launched pass, and report it."""
        self._scheduler.apply(of_pass, output, void)
        self._desk.report(self._scheduler.take_reports())


def binding_table(owner: FollowerBindings, names: tuple[str, ...]) -> Mapping[str, Callable[..., Any]]:
    """The bindings that a program names, looked up on `owner`; a missing one is found when the program is linked."""
    return {name: getattr(owner, name) for name in names if hasattr(owner, name)}
