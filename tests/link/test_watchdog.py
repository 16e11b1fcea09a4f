"""The watchdog: who waits for whom, whose turn it is, and no alarm while all is well."""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

import msgspec
import pytest

from headway.engine.group import STALL_BOUNDS
from headway.engine.messages import Submit
from headway.engine.recorder import RingRecorder, trace_path
from headway.engine.scheduling import Limits
from headway.engine.simulation import Client, Schedule, draw, run_schedule
from headway.engine.simulation.run import production
from headway.engine.watchdog import diagnose, explain, positions
from headway.spec.table import record_width
from headway.spec.trace import RingReader

TABLE = production()
SECOND = 10**9


def standing(directory, rows, now=10**5 * SECOND, ended=()):
    """Positions of ranks that have been at `rows` (a name and for how many seconds) by their rings."""
    ranks = len(rows)
    for rank, (name, seconds) in enumerate(rows):
        role = TABLE.role_of(rank, ranks)
        clock = lambda seconds=seconds: now - int(seconds * SECOND)  # noqa: E731
        width = record_width(TABLE)
        ring = RingRecorder(
            trace_path(directory, rank), TABLE.fingerprint, rank, ranks, ranks, width, 2**22 + rank, 8, clock
        )
        ring.enter([row.name for row in role.rows].index(name), 7)
        if rank in ended:
            ring.done()
        ring.close()
    return positions(TABLE, [RingReader(trace_path(directory, rank)) for rank in range(ranks)], now)


def test_a_ring_of_waits_is_named(tmp_path):
    where = standing(tmp_path, [("flush chain", 200), ("flush chain", 190), ("gate hidden states", 180)])
    stall = diagnose(where, STALL_BOUNDS)
    assert stall is not None
    assert stall.cycle == [1, 2]
    assert stall.words() == (
        "the pipeline is stuck in a cycle rank 1 -> rank 2 -> rank 1: "
        "rank 0 waits at 'flush chain' (pass 7, slot 1) on rank 1 to receive 'chain' for 200.0 s; "
        "rank 1 waits at 'flush chain' (pass 7, slot 1) on rank 2 to receive 'chain' for 190.0 s; "
        "rank 2 waits at 'gate hidden states' (pass 7, slot 1) on rank 1 to post 'proxy' in its pass 7 for 180.0 s"
    )


def test_without_a_ring_it_says_whose_turn_it_is(tmp_path):
    where = standing(tmp_path, [("receive output", 400), ("launch", 390), ("receive hidden states", 395)])
    stall = diagnose(where, STALL_BOUNDS)
    assert stall is not None
    assert (stall.cycle, stall.blamed, stall.missing) == ([], 1, "post 'proxy' in its pass 7")
    assert "it is the turn of rank 1 to post 'proxy' in its pass 7" in stall.words()


def test_a_closing_edge_waits_on_the_last_rank_and_an_older_pass(tmp_path):
    where = standing(tmp_path, [("receive output", 1), ("launch", 1), ("flush output", 1)])
    assert (where[0].waits_on, where[0].awaited) == (2, "post 'output' in its pass 5")
    assert (where[2].waits_on, where[2].awaited) == (0, "receive 'output'")


def test_a_post_that_does_not_return_waits_for_its_receiver(tmp_path):
    where = standing(tmp_path, [("post hidden states", 130), ("launch", 301), ("receive chain", 1)])
    assert (where[0].waits_on, where[0].nature) == (1, "wire")
    stall = diagnose(where, STALL_BOUNDS)
    assert stall is not None
    assert stall.blamed == 1


@pytest.mark.parametrize(
    "rows",
    [
        [("take requests: asleep", 9000), ("receive chain", 9000), ("receive chain", 9000)],
        [("receive output", 299), ("receive chain", 299), ("launch", 299)],
        [("flush chain", 130), ("launch", 250), ("receive hidden states", 260)],
        [("flush chain", 130), ("receive decision", 1), ("receive chain", 130)],
    ],
    ids=["asleep", "computing", "computing in the middle", "somebody just moved"],
)
def test_what_is_no_stall(rows, tmp_path):
    assert diagnose(standing(tmp_path, rows), STALL_BOUNDS) is None


@pytest.mark.parametrize(
    ("rows", "blamed"),
    [
        ([("take requests: asleep", 130), ("receive decision", 130), ("receive chain", 130)], 0),
        ([("receive output", 301), ("receive chain", 301), ("launch", 301)], 2),
        ([("plan", 61), ("receive chain", 61), ("receive chain", 61)], 0),
    ],
    ids=["asleep while something is owed", "computes too long", "a step that hangs"],
)
def test_what_is_a_stall(rows, blamed, tmp_path):
    stall = diagnose(standing(tmp_path, rows), STALL_BOUNDS)
    assert stall is not None
    assert stall.blamed == blamed


def test_a_rank_that_has_ended_owes_for_ever_and_is_never_late(tmp_path):
    rows = [("settle chain", 500), ("receive decision", 500), ("receive chain", 500)]
    where = standing(tmp_path, rows, ended=(0,))
    assert where[0].doing == "has ended"
    stall = diagnose(where, STALL_BOUNDS)
    assert stall is not None
    assert (stall.blamed, stall.missing) == (0, "post 'decision' in its pass 7")
    alone = [p for p in where if p.rank == 0]
    assert diagnose(alone, STALL_BOUNDS) is None


def test_nobody_is_nobody():
    with pytest.raises(ValueError, match="no rank has begun"):
        explain([])


# --- simulated pipelines -----------------------------------------------------------------------------------


def watching(bounds):
    """What `run_schedule` calls to watch a pipeline as the launcher does."""

    def watch(simulation):
        readers = simulation.readers()
        stall = diagnose(positions(TABLE, readers, simulation.hub.now), bounds)
        for reader in readers:
            reader.close()
        return "" if stall is None else stall.words()

    return watch


def test_half_an_hour_of_mixed_load_raises_no_alarm():
    """Bursts and silences of minutes, three ranks of which one is slow, looked at twice a second."""
    random = Random(3)
    clients, at = [], 0
    for request in range(150):
        at += random.choice((0, 0, 0, 2, 5, 200)) * SECOND
        prompt = [random.randrange(251) for _ in range(random.randint(1, 40))]
        clients.append(Client(at, Submit(request, prompt, random.randint(1, 8))))
    schedule = Schedule(
        seed=3,
        ranks=3,
        limits=Limits(3, 48, 4, 16, 4, 64),
        clients=clients,
        stop_at=1800 * SECOND,
        speeds=[100, 300, 100],
        token_time=SECOND // 20,
        jitter=10**6,
        gate_bound=60.0,
    )
    outcome = run_schedule(schedule, watch=watching(STALL_BOUNDS), watch_every=SECOND // 2, most_time=10**5 * SECOND)
    assert (outcome.law, outcome.stopped) == ("", "")
    assert outcome.time > 1800 * SECOND


def test_long_computations_are_waited_for():
    clients = [Client(0, Submit(r, [1] * 14, 2)) for r in range(3)]
    limits = Limits(3, 48, 4, 16, 4, 64)
    schedule = Schedule(seed=1, ranks=3, limits=limits, clients=clients, token_time=18 * SECOND, gate_bound=1e6)
    outcome = run_schedule(schedule, watch=watching(STALL_BOUNDS), watch_every=SECOND, most_time=10**5 * SECOND)
    assert outcome.law == ""
    assert outcome.time > 300 * SECOND


def test_healthy_schedules_raise_no_alarm():
    bounds = {"wire": 0.5, "compute": 1.0, "step": 0.5}  # of virtual time; nobody pauses for longer than 0.05 s
    for seed in range(40):
        schedule = msgspec.structs.replace(draw(seed), kill=None, gate_bound=1.0)
        outcome = run_schedule(schedule, watch=watching(bounds), watch_every=SECOND // 50)
        assert outcome.law == "", f"seed {seed}: {outcome.finding}"


def test_a_simulated_deadlock_is_named_within_its_bound():
    limits = Limits(3, 16, 2, 4, 2, 64)
    clients = [Client(0, Submit(1, [1, 2, 3], 4))]
    schedule = Schedule(seed=1, ranks=3, limits=limits, clients=clients, stop_at=SECOND, control="rendezvous")
    bounds = {"wire": 2.0, "compute": 2.0, "step": 2.0}
    outcome = run_schedule(schedule, watch=watching(bounds), watch_every=SECOND // 10)
    assert outcome.law == "watchdog"
    assert "stuck in a cycle rank 0 -> rank 1 -> rank 2 -> rank 0" in outcome.finding
    assert outcome.time <= 2.2 * SECOND


# --- after the fact ----------------------------------------------------------------------------------------


def test_inspect_explains_traces_of_processes_that_are_gone(tmp_path):
    standing(tmp_path, [("flush chain", 2), ("flush chain", 1), ("gate hidden states", 0)])
    command = [sys.executable, "-m", "headway", "inspect", str(tmp_path)]
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "rank 0 waits at 'flush chain' (pass 7, slot 1) on rank 1 to receive 'chain' for 2.0 s" in words
    assert words.count("its process is gone") == 3
    assert "they wait for one another: rank 1 -> rank 2 -> rank 1" in words
    plain = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    assert (plain["cycle"], plain["gone"]) == ([1, 2], [0, 1, 2])
    trace_path(tmp_path, 2).unlink()
    missing = subprocess.run(command, capture_output=True, text=True, check=False)
    assert missing.returncode == 2
    assert "rank2.trace" in missing.stderr
