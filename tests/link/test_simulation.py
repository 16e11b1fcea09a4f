"""The production ranks under simulated wires: hundreds of schedules, every law, every token, every trace."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.engine.messages import Abort, Generated, Sampling, Stop, Submit
from headway.engine.scheduling import Limits
from headway.engine.simulation import Client, Hub, Kill, Pause, Schedule, Simulation, draw, run_schedule
from headway.engine.simulation.model import expected_tokens
from headway.engine.simulation.run import production
from headway.spec.transports import parse_transport

SCHEDULES = int(os.environ.get("HEADWAY_SCHEDULES", "400"))
CHUNKS = 8


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_law_holds_on_every_schedule(chunk, judged):
    for seed in range(chunk, SCHEDULES, CHUNKS):
        # Every third run has a small ring, so that replays of wrapped traces are exercised too.
        outcome = judged(draw(seed), ring_capacity=128 if seed % 3 == 0 else 1 << 12)
        assert not outcome.law, f"seed {seed}: {outcome.law}: {outcome.finding}\n{outcome.diagram}"


def quiet(ranks=3, **changes) -> Schedule:
    limits = Limits(ranks, 16, 2, 4, 2, 64)
    clients = [Client(0, Submit(r, [r + 1, 2, 3], 4)) for r in range(4)]
    return msgspec.structs.replace(
        Schedule(seed=1, ranks=ranks, limits=limits, clients=clients, stop_at=10**9), **changes
    )


def test_the_same_schedule_gives_the_same_traces(tmp_path):
    runs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run_schedule(draw(12), directory=tmp_path / name)
        traces = [path.read_bytes() for path in sorted((tmp_path / name).iterdir())]
        runs.append([trace[:48] + trace[4096:] for trace in traces])
    assert runs[0] == runs[1]
    assert len(runs[0][0]) > 4096


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_quiet_schedule_ends_clean(ranks, judged):
    outcome = judged(quiet(ranks))
    assert (outcome.law, outcome.stopped) == ("", "")


@pytest.mark.parametrize(
    ("transport", "law"),
    [("rendezvous", "deadlock"), ("stream_ordered(0)", "deadlock"), ("lazy", ""), ("credits(1)", ""), ("dropped", "")],
)
def test_contracts_of_control_channels(transport, law, judged):
    outcome = judged(quiet(control=transport))
    if transport == "dropped":
        assert outcome.law in ("deadlock", "exception")
    else:
        assert outcome.law == law


def test_a_killed_rank_stops_the_group_and_corrupts_nothing(judged):
    for rank in range(3):
        outcome = judged(quiet(kill=Kill(rank, 400_000)))
        assert outcome.law == ""
        assert outcome.stopped == f"rank {rank} was killed"


def test_a_gate_that_stays_shut_names_the_sender(judged):
    # Rank 1 sleeps before its launch while rank 2 waits at the gate.
    outcomes = [judged(quiet(pauses=[Pause(1, step, 10**9)], gate_bound=0.01)) for step in range(1, 16)]
    assert all(outcome.law == "" for outcome in outcomes)
    assert any("rank 1 has not sent 'proxy' within 0.01 s" in outcome.stopped for outcome in outcomes)


def test_a_failure_is_shown_with_positions_and_diagram(judged):
    outcome = judged(quiet(control="rendezvous"))
    assert [position.rank for position in outcome.positions] == [0, 1, 2]
    assert "post output" in outcome.diagram
    assert "rank 2" in outcome.diagram


class Machine(RuleBasedStateMachine):
    """Requests, aborts and steps of single ranks in any order, without time; what fails shrinks to few steps."""

    @initialize(ranks=st.integers(1, 4), extra=st.integers(0, 1), tensor=st.sampled_from(["posted", "rendezvous"]))
    def start(self, ranks, extra, tensor):
        import tempfile
        from dataclasses import replace
        from pathlib import Path

        from headway.spec.serving import passes_ahead

        table = production()
        self.folder = tempfile.TemporaryDirectory(prefix="headway-simulation-")
        limits = Limits(ranks + extra, 6, 2, 3, 2, 24)
        limits = replace(limits, ahead=passes_ahead(table, ranks, limits.slots))
        contracts = {"control": "posted", "tensor": tensor}
        self.refusing = set()
        self.submits, self.tokens, self.finishes, self.aborted = {}, {}, {}, set()
        self.simulation = Simulation(
            table,
            ranks,
            limits,
            Path(self.folder.name),
            {channel.name: parse_transport(contracts[channel.kind]) for channel in table.channels},
            hub=Hub(ranks, timed=False),
            refuse=lambda rank: lambda decision: self.refuses(rank),
            on_report=self.see,
        )
        self.simulation.start()
        self.stopped = False

    def refuses(self, rank):
        refused = rank in self.refusing
        self.refusing.discard(rank)
        return "a refusal by chance" if refused else ""

    @rule(rank=st.integers(1, 3))
    def refuse(self, rank):
        self.refusing.add(rank)

    def see(self, time, report):
        if isinstance(report, Generated):
            assert report.request not in self.finishes
            self.tokens[report.request] += report.tokens
            if report.finish:
                self.finishes[report.request] = report.finish

    @precondition(lambda self: not self.stopped)
    @rule(prompt=st.lists(st.integers(0, 250), min_size=1, max_size=8), most=st.integers(1, 4), seed=st.integers(0, 9))
    def submit(self, prompt, most, seed):
        request = len(self.submits)
        self.submits[request], self.tokens[request] = Submit(request, prompt, most, [], Sampling(seed=seed)), []
        self.simulation.desk.send(0, self.submits[request])

    @precondition(lambda self: self.submits)
    @rule(data=st.data())
    def abort(self, data):
        request = data.draw(st.sampled_from(sorted(self.submits)))
        self.aborted.add(request)
        self.simulation.desk.send(0, Abort(request))

    @rule(choices=st.lists(st.integers(0, 3), min_size=1, max_size=60))
    def steps(self, choices):
        hub = self.simulation.hub
        for choice in choices:
            rank = choice % self.simulation.ranks
            if hub.enabled(rank):
                hub.step(rank)

    @precondition(lambda self: not self.stopped)
    @rule()
    def stop(self):
        self.stopped = True
        self.simulation.desk.send(0, Stop())

    @invariant()
    def nobody_failed(self):
        if hasattr(self, "simulation"):
            assert [fiber.error for fiber in self.simulation.hub.fibers if fiber.error] == []
            for request, tokens in self.tokens.items():
                assert tokens == expected_tokens(self.submits[request], self.simulation.ranks)[0][: len(tokens)]

    def teardown(self):
        if not hasattr(self, "simulation"):
            return
        hub = self.simulation.hub
        try:
            if not self.stopped:
                self.simulation.desk.send(0, Stop())
            for _ in range(20_000):
                able = [rank for rank in range(self.simulation.ranks) if hub.enabled(rank)]
                if not able:
                    break
                hub.step(able[0])
            self.nobody_failed()
            assert hub.ended, "the ranks cannot go on"
            assert set(self.finishes) == set(self.submits) - {
                message.request for message in self.simulation.desk.untaken if isinstance(message, Submit)
            }
            for request, finish in self.finishes.items():
                assert finish in ("length", "error") or request in self.aborted
            assert self.simulation.network.leftovers() == []
        finally:
            self.simulation.close()
            self.folder.cleanup()


Machine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestMachine = Machine.TestCase
