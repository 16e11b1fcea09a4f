"""The compiled loop over wires in memory: what it executes, in which order, and how it stops when a law breaks."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headway.engine.loop import BrokenLaw, Endpoints, compile_program, run
from headway.spec.edits import Edit, drop_step, edit, guard, move
from headway.spec.language import TRUE, Bool, Const, SpecError
from headway.spec.serving import serving_table
from headway.spec.table import Collective, Protocol, Row, Variable

TABLE = serving_table()
DEADLINE = 20.0
DIGEST = 7


class Ended(Exception):
    """Another rank has failed."""


class Wire:
    """One channel between two ranks, with the contract `posted`: a wait ends when the receiver has come for it."""

    def __init__(self, change: threading.Condition, failed: threading.Event) -> None:
        self._change, self._failed = change, failed
        self._queue: deque[tuple[tuple[int, ...], Any]] = deque()
        self._coming = 0  # receives begun and not served
        self.corrupt: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda fields: fields

    def post(self, fields: tuple[int, ...], payload: Any) -> None:
        with self._change:
            self._queue.append((self.corrupt(fields), payload))
            self._change.notify_all()

    def wait(self) -> None:
        self._until(lambda: len(self._queue) <= self._coming)

    def gate(self, bound: float) -> bool:
        with self._change:
            opened = self._change.wait_for(lambda: bool(self._queue) or self._failed.is_set(), bound)
        if opened and not self._queue:
            raise Ended
        return opened

    def receive(self) -> tuple[tuple[int, ...], Any]:
        with self._change:
            self._coming += 1
            self._change.notify_all()
        self._until(lambda: bool(self._queue))
        with self._change:
            self._coming -= 1
            return self._queue.popleft()

    def _until(self, ready: Callable[[], bool]) -> None:
        with self._change:
            if not self._change.wait_for(lambda: ready() or self._failed.is_set(), DEADLINE):
                raise TimeoutError("nothing happened on a wire in memory")
            if not ready():
                raise Ended


class Bindings:
    """Launches the passes that `launches` says, then stops; `honours` says which of them this rank honours."""

    def __init__(self, launches: list[bool], honours: Callable[[int], bool] = lambda n: True) -> None:
        self._launches, self._honours = launches, honours
        self.decided = self.seen = 0
        self.outputs: list[tuple[int, bool]] = []
        self.planned: list[tuple[int, int]] = []

    def wait_for_requests(self) -> tuple[str, bool]:
        return "", self.decided >= len(self._launches)

    def poll_requests(self) -> str:
        return "requests"

    def learn_requests(self, requests: str) -> None:
        pass

    def plan(self, this_pass: int, slot: int) -> tuple[str, str, bool, int]:
        launch = self.decided < len(self._launches) and self._launches[self.decided]
        self.decided += 1
        self.planned.append((this_pass, slot))
        return "decision", "batch", launch, DIGEST if launch else 0

    def honour(self, decision: str, digest: int) -> tuple[str, str, bool]:
        self.seen += 1
        return decision, "batch", self._honours(self.seen - 1)

    def forward_first(self, batch: str) -> str:
        return "hidden"

    def forward_middle(self, batch: str, hidden: str) -> str:
        assert hidden == "hidden"
        return "hidden"

    def forward_last(self, batch: str, hidden: str) -> str:
        assert hidden == "hidden"
        return "tokens"

    def forward_solo(self, batch: str) -> None:
        pass

    def collect_output(self) -> str:
        return "tokens"

    def void_output(self, decision: str) -> str:
        return "nothing"

    def apply_output(self, of_pass: int, output: str, void: bool) -> None:
        assert output == ("nothing" if void else "tokens")
        self.outputs.append((of_pass, void))

    def table(self) -> dict[str, Callable[..., Any]]:
        return {name: getattr(self, name) for name in dir(self) if not name.startswith("_") and name != "table"}


class Trace:
    """The rows that one rank has entered."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []

    def enter(self, row: int, this_pass: int, *fields: int) -> None:
        self.rows.append((row, this_pass))

    def done(self, *fields: int) -> None:
        pass


class Ranks:
    """All ranks of one pipeline, each a thread; `corrupt` maps a channel to a fault on its first wire."""

    def __init__(
        self,
        table: Protocol = TABLE,
        ranks: int = 3,
        slots: int = 0,
        launches: list[bool] | None = None,
        honours: dict[int, Callable[[int], bool]] | None = None,
        corrupt: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] | None = None,
        gate_bound: float = DEADLINE,
        override: dict[str, Callable[..., Any]] | None = None,
    ) -> None:
        change, failed = threading.Condition(), threading.Event()
        wires = {(c.name, rank): Wire(change, failed) for c in table.channels for rank in range(ranks)}  # by sender
        for name, fault in (corrupt or {}).items():
            wires[name, ranks - 1 if table.channel(name).path == "closing" else 0].corrupt = fault
        self.table, self.ranks = table, ranks
        self.traces = [Trace() for _ in range(ranks)]
        self.errors: dict[int, BaseException] = {}
        self.bindings = [Bindings(launches or [True], (honours or {}).get(r, lambda n: True)) for r in range(ranks)]

        def run_rank(rank: int) -> None:
            try:
                program = compile_program(table, rank, ranks, slots or ranks)
                outgoing = {name: wires[name, rank] for name in program.posts}
                incoming = {name: wires[name, (rank - 1) % ranks] for name in program.receives}
                calls = {**self.bindings[rank].table(), **(override or {})}
                run(program, calls, Endpoints(outgoing, incoming, gate_bound), self.traces[rank])
            except Exception as error:
                self.errors[rank] = error
                failed.set()
                with change:
                    change.notify_all()

        threads = [threading.Thread(target=run_rank, args=[rank], daemon=True) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()

    def failure(self) -> str:
        """The message of the one rank that failed of itself."""
        own = [error for error in self.errors.values() if not isinstance(error, Ended)]
        assert len(own) == 1, own
        assert isinstance(own[0], BrokenLaw), own[0]
        return str(own[0])

    def rows(self, rank: int, this_pass: int | None = None) -> list[Row]:
        role = self.table.role_of(rank, self.ranks)
        return [role.rows[row] for row, n in self.traces[rank].rows if this_pass in (None, n)]

    def names(self, rank: int, this_pass: int) -> list[str]:
        """Locations at which the rank performed an operation in one pass."""
        return [row.at for row in self.rows(rank, this_pass) if row.operation is not None]


@pytest.mark.parametrize(("ranks", "slots"), [(1, 1), (1, 2), (2, 2), (3, 3), (3, 4), (4, 4)])
def test_ranks_follow_the_table_to_its_end(ranks: int, slots: int):
    launches = [True, False, True, True, True, False, True]
    group = Ranks(ranks=ranks, slots=slots, launches=launches)
    assert group.errors == {}
    for rank in range(ranks):
        role, rows = TABLE.role_of(rank, ranks), group.rows(rank)
        assert rows[0].at == role.start
        assert [row.to for row in rows] == [*(row.at for row in rows[1:]), role.end]
        passes = [this_pass for _, this_pass in group.traces[rank].rows]
        assert [b - a for a, b in itertools.pairwise(passes)] == [int(row.advances) for row in rows[:-1]]
    leader = group.bindings[0]
    assert leader.outputs == [(n, False) for n, launch in enumerate(launches) if launch]
    assert leader.planned[: len(launches)] == [(n, n % slots) for n in range(len(launches))]
    assert leader.decided == len(launches) + slots  # it slept only after L quiet passes


def test_a_refused_pass_returns_void_and_runs_no_further():
    group = Ranks(ranks=4, launches=[True] * 4, honours={2: lambda n: n != 1})
    assert group.errors == {}
    assert group.bindings[0].outputs == [(0, False), (1, True), (2, False), (3, False)]
    assert ["launch" in group.names(rank, 1) for rank in range(4)] == [True, True, False, False]
    assert ["receive hidden states" in group.names(rank, 1) for rank in range(4)] == [False, True, True, False]
    assert "report void" in group.names(3, 1)


@pytest.mark.parametrize(
    ("change", "rank", "earlier", "later"),
    [
        (move("flush hidden states", after="launch", roles=["first"]), 0, "launch", "flush hidden states"),
        (
            move("post hidden states", after="flush decision", roles=["middle"]),
            1,
            "flush decision",
            "post hidden states",
        ),
        (move("flush chain", before="flush decision", roles=["first"]), 0, "flush chain", "flush decision"),
        (move("flush output", before="launch", roles=["last"]), 2, "flush output", "launch"),
    ],
)
def test_moving_a_row_moves_what_the_rank_does(change: Edit, rank: int, earlier: str, later: str):
    launches, last = [True] * 4, 3
    before = Ranks(launches=launches).names(rank, last)
    assert before.index(earlier) > before.index(later)
    group = Ranks(edit(TABLE, change), launches=launches)
    assert group.errors == {}
    after = group.names(rank, last)
    assert sorted(after) == sorted(before)
    assert after.index(earlier) < after.index(later)


# --- broken laws -------------------------------------------------------------------------------------------


def test_posting_twice_without_an_await_is_a_broken_law():
    group = Ranks(edit(TABLE, drop_step("flush chain", roles=["first"])), launches=[True] * 4)
    assert group.failure() == "rank 0, row 'post chain', pass 1, slot 1: the last handle is not awaited"


def test_awaiting_without_a_handle_is_a_broken_law():
    group = Ranks(edit(TABLE, guard("flush output", TRUE)), launches=[False, True])
    assert group.failure() == "rank 2, row 'flush output', pass 0, slot 0: no handle is held"


@pytest.mark.parametrize(
    ("channel", "field", "message"),
    [
        ("chain", 0, "rank 1, row 'receive chain', pass 0, slot 0: pass is 9, expected 0"),
        ("decision", 0, "rank 1, row 'receive decision', pass 0, slot 0: pass is 9, expected 0"),
        ("proxy", 0, "rank 1, row 'receive hidden states', pass 0, slot 0: pass is 9, expected 0"),
        ("proxy", 1, "rank 1, row 'receive hidden states', pass 0, slot 0: digest is 9, expected 7"),
        ("output", 0, "rank 0, row 'receive output', pass 2, slot 2: pass is 9, expected 0"),
        ("output", 2, "rank 0, row 'receive output', pass 2, slot 2: digest is 9, expected 7"),
    ],
)
def test_a_message_of_another_identity_is_a_broken_law(channel: str, field: int, message: str):
    group = Ranks(corrupt={channel: lambda fields: (*fields[:field], 9, *fields[field + 1 :])}, launches=[True] * 3)
    assert group.failure() == message


@pytest.mark.parametrize(
    ("binding", "answer", "message"),
    [
        (
            "plan",
            ("decision", "batch", 1, DIGEST),
            "rank 0, row 'plan', pass 0, slot 0: the binding returned launch = 1,",
        ),
        (
            "plan",
            ("decision", "batch", True, "x"),
            "rank 0, row 'plan', pass 0, slot 0: the binding returned digest = 'x',",
        ),
        (
            "honour",
            ("decision", "batch", None),
            "rank 1, row 'honour', pass 0, slot 0: the binding returned honoured = None,",
        ),
    ],
)
def test_a_return_outside_its_domain_is_a_broken_law(binding: str, answer: Any, message: str):
    group = Ranks(ranks=2, override={binding: lambda *inputs: answer})
    assert group.failure() == f"{message} which is outside its domain"


def test_a_gate_that_stays_shut_names_the_rank_before_it():
    silent = replace(TABLE.role("middle").row("post hidden states"), operation=None)
    rows = tuple(silent if row.name == silent.name else row for row in TABLE.role("middle").rows)
    table = TABLE.with_roles([replace(r, rows=rows) if r.name == "middle" else r for r in TABLE.roles], checked=False)
    group = Ranks(table, gate_bound=0.2)
    expected = "rank 2, row 'gate hidden states', pass 0, slot 0: rank 1 has not sent 'proxy' within 0.2 s"
    assert group.failure() == expected


def test_no_guard_that_holds_is_a_broken_law():
    gap = edit(TABLE, guard("launch", Const(False), roles=["first"]))
    rows = tuple(row for row in gap.role("first").rows if row.name != "launch: pass by")
    table = TABLE.with_roles([replace(r, rows=rows) if r.name == "first" else r for r in TABLE.roles], checked=False)
    assert Ranks(table, ranks=2).failure() == "rank 0, row 'launch', pass 0, slot 0: no guard holds"


# --- before it starts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("plan", "rank 0: no binding 'plan'; bound: .*poll_requests"),
        ("chain", "rank 0: no outgoing wire for channel 'chain'"),
        ("output", "rank 0: no incoming wire for channel 'output'"),
    ],
)
def test_a_missing_binding_or_wire_is_found_before_the_first_row(without: str, message: str):
    program, trace = compile_program(TABLE, 0, 2, 2), Trace()
    wire = Wire(threading.Condition(), threading.Event())
    calls = {name: call for name, call in Bindings([]).table().items() if name != without}
    ends = Endpoints(
        {name: wire for name in program.posts if name != without},
        {name: wire for name in program.receives if name != without},
    )
    with pytest.raises(SpecError, match=message):
        run(program, calls, ends, trace)
    assert trace.rows == []


def role_with(row: Row | None = None, variable: Variable | None = None) -> Protocol:
    """The table with one more row, or variable, in the role of a single rank."""
    solo = TABLE.role("solo")
    rows = tuple(row if row is not None and old.name == row.name else old for old in solo.rows)
    solo = replace(solo, rows=rows, variables=(*solo.variables, *([variable] if variable else [])))
    return TABLE.with_roles([solo if role.name == "solo" else role for role in TABLE.roles], checked=False)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (role_with(variable=Variable("budget", Bool(), False, ghost=True)), "'budget' exists in models only"),
        (role_with(variable=Variable("a b", Bool(), False)), "variable 'a b': not a name that can be compiled"),
        (
            role_with(replace(TABLE.role("solo").row("plan"), operation=Collective("all"))),
            "row 'plan': Collective exists in models",
        ),
    ],
)
def test_what_no_engine_can_run_is_refused(table: Protocol, message: str):
    with pytest.raises(SpecError, match=message):
        compile_program(table, 0, 1, 1)


def test_fewer_slots_than_ranks_are_refused():
    with pytest.raises(SpecError, match="slots = 2 is below ranks = 3; allowed: 3 or more"):
        compile_program(TABLE, 0, 3, 2)
