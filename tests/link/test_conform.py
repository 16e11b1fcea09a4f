"""Traces replayed against the table: healthy ones conform, each damage is named where it is."""

from __future__ import annotations

import mmap
from functools import partial
from random import Random

import msgspec
import pytest

from headway.engine.recorder import trace_path
from headway.engine.simulation import draw, run_schedule
from headway.engine.simulation.run import production
from headway.spec.catalog import load_table
from headway.spec.language import Environment, Got, SpecError, Value, evaluate
from headway.spec.table import Await, domain_values, row_expressions
from headway.spec.trace import DONE, FIELDS_OFFSET, HEADER_BYTES, STATE_OFFSET, TraceError, record_struct
from headway.verification.conform import Divergence, conform, read_trace
from headway.verification.conform.known import RankMemory, Replayer, source
from headway.verification.conform.partly_known import PartialReplay, first_boundary

TABLE = production()
ROW_OFFSET, PASS_OFFSET = 8, 16


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Traces of three ranks with refusals in between, with room for all records."""
    directory = tmp_path_factory.mktemp("healthy")
    schedule = msgspec.structs.replace(
        draw(4, ranks=3, slots=3), refusals=[(1, 2), (2, 4)], kill=None, pauses=[], gate_bound=1.0
    )
    assert run_schedule(schedule, directory=directory).law == ""
    return directory


@pytest.fixture
def copy(healthy, tmp_path):
    for path in healthy.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


class Trace:
    """A trace file opened for damage."""

    def __init__(self, directory, rank):
        path = trace_path(directory, rank)
        self.columns = read_trace(TABLE, path)
        self.role = self.columns.role
        self.size = record_struct(self.columns.header.fields).size
        with open(path, "rb+") as file:
            self.map = mmap.mmap(file.fileno(), 0)

    def find(self, row, nth=3):
        """The record of the nth execution of a row."""
        index = [r.name for r in self.role.rows].index(row)
        return int((self.columns.rows == index).nonzero()[0][nth])

    def put(self, record, offset, value, size):
        at = HEADER_BYTES + record * self.size + offset
        self.map[at : at + size] = value.to_bytes(size, "little", signed=True)


def test_a_healthy_run_conforms(healthy):
    report = conform(TABLE, healthy)
    assert report.words().endswith("rows of 3 rank(s) conform to the table")
    assert report.rows > 1000
    assert report.skipped == 0


def expect(directory, rank, row, expected, found):
    report = conform(TABLE, directory)
    assert not report.holds
    first = report.divergences[0]
    assert (first.rank, first.row) == (rank, row), first.words()
    assert expected in first.expected, first.words()
    assert found in first.found, first.words()


def test_a_row_out_of_order(copy):
    trace = Trace(copy, 1)
    record = trace.find("honour")
    trace.put(record, ROW_OFFSET, [r.name for r in trace.role.rows].index("launch"), 2)
    expect(copy, 1, "launch", "'honour'", "'launch'")


def test_a_guard_that_did_not_hold(copy):
    trace = Trace(copy, 0)
    record = trace.find("launch: pass by")
    trace.put(record, ROW_OFFSET, [r.name for r in trace.role.rows].index("launch"), 2)
    expect(copy, 0, "launch", "row 'launch: pass by'", "though not launch: launch = False")


def test_a_wrong_pass(copy):
    trace = Trace(copy, 2)
    record = trace.find("receive decision")
    trace.put(record, PASS_OFFSET, int(trace.columns.passes[record]) + 1, 8)
    expect(copy, 2, "receive decision", f"pass {trace.columns.passes[record]}", "pass")


def test_a_posted_fact_that_the_table_does_not_give(copy):
    trace = Trace(copy, 0)
    record = trace.find("post decision")
    launch = int(trace.columns.fields[record][1])
    trace.put(record, FIELDS_OFFSET + 8, 1 - launch, 8)
    expect(copy, 0, "post decision", f"launch = {launch == 1}", f"launch = {launch == 0}")


def test_a_message_that_changed_on_its_way(copy):
    trace = Trace(copy, 2)
    record = trace.find("receive decision", 5)
    trace.put(record, FIELDS_OFFSET + 24, 77, 8)
    report = conform(TABLE, copy)
    assert any("what rank 1 posted" in d.expected and "77" in d.found for d in report.divergences), report


def test_an_identity_that_is_not_expected(copy):
    trace = Trace(copy, 1)
    record = trace.find("receive chain")
    trace.put(record, FIELDS_OFFSET, 99, 8)
    expect(copy, 1, "receive chain", f"pass = {trace.columns.passes[record]}", "pass = 99")


def test_a_value_outside_its_domain(copy):
    trace = Trace(copy, 1)
    record = trace.find("honour")
    trace.put(record, FIELDS_OFFSET, 2, 8)
    expect(copy, 1, "honour", "a value of honoured", "2")


def test_a_receive_that_was_left_without_its_message(copy):
    trace = Trace(copy, 1)
    record = trace.find("receive chain")
    trace.map[HEADER_BYTES + record * trace.size + STATE_OFFSET] = 1 - DONE
    expect(copy, 1, "receive chain", "obtained", "left without it")


def test_a_message_that_was_never_posted(copy):
    """The sender's trace ends a pass early, as if what it sent then had come from nowhere."""
    trace = Trace(copy, 0)
    last = trace.find("post chain", -1)
    trace.map[2048:2056] = last.to_bytes(8, "little")
    report = conform(TABLE, copy)
    assert any(d.rank == 1 and "a post of 'chain' by rank 0" in d.expected for d in report.divergences), report


def test_a_message_that_was_never_received(copy):
    """The receiver claims to be a pass further than what it has taken."""
    trace = Trace(copy, 1)
    record = trace.find("receive chain", -1)
    trace.map[HEADER_BYTES + record * trace.size + STATE_OFFSET] = 1 - DONE
    report = conform(TABLE, copy)
    assert any(d.rank == 0 and "its receipt by rank 1" in d.expected for d in report.divergences), report


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda raw: raw[:-8], "truncated"),
        (lambda raw: b"X" + raw[1:], "not a trace"),
        (lambda raw: raw[:8] + b"\1" * 32 + raw[40:], "written under table 010101010101"),
        (lambda raw: raw[:HEADER_BYTES] + b"\7" + raw[HEADER_BYTES + 1 :], "record 0 is numbered 7"),
        (lambda raw: raw[:40] + b"\1" + raw[41:], "expected (0, 3, 3)"),
    ],
)
def test_files_that_are_no_traces(copy, damage, says):
    path = trace_path(copy, 0)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TraceError, match=says.replace("(", r"\(").replace(")", r"\)")):
        conform(TABLE, copy)


def test_a_missing_rank(copy):
    trace_path(copy, 2).unlink()
    with pytest.raises(TraceError, match="rank2"):
        conform(TABLE, copy)


# --- rings that wrapped ------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [40, 57, 64, 100, 333])
def test_a_wrapped_ring_conforms_from_the_first_boundary(capacity, tmp_path):
    for seed in (4, 21, 33, 47):
        run_schedule(draw(seed, ranks=3, slots=4), directory=tmp_path, ring_capacity=capacity)
        report = conform(TABLE, tmp_path)
        assert report.holds, report.words()
        assert report.skipped < 3 * 25


@pytest.mark.parametrize("row", ["honour", "receive chain", "post decision"])
def test_damage_in_a_wrapped_ring_is_seen(row, tmp_path):
    run_schedule(draw(4, ranks=3, slots=3), directory=tmp_path, ring_capacity=150)
    trace = Trace(tmp_path, 1)
    assert trace.columns.wrapped
    record = (trace.find(row, -2) + int(trace.columns.header.capacity)) % 150
    first = (Trace(tmp_path, 1).columns.times[record], record)
    assert first[0] > 0
    position = next(
        i
        for i in range(150)
        if trace.map[HEADER_BYTES + i * trace.size + ROW_OFFSET] == [r.name for r in trace.role.rows].index(row)
    )
    trace.put(position, ROW_OFFSET, [r.name for r in trace.role.rows].index("launch"), 2)
    report = conform(TABLE, tmp_path)
    assert not report.holds or report.skipped > 0


def part(trace, wrapped, records):
    """Some of a trace's records."""
    columns = (trace.rows, trace.done, trace.passes, trace.times, trace.fields)
    return type(trace)(trace.header, trace.role, wrapped, *(column[records] for column in columns))


def test_what_is_learned_from_a_wrapped_ring_is_what_was_so(healthy):
    """Pretend that the trace begins in the middle: what becomes known must be what the whole trace says."""
    checked = 0
    for rank in range(3):
        whole = read_trace(TABLE, trace_path(healthy, rank))
        replayer = Replayer.of(TABLE, rank, 3, 3)
        for start in range(20, len(whole) - 60, 11):
            cut = part(whole, True, slice(start, None))
            first = first_boundary(cut)
            partial = PartialReplay(TABLE, whole.role, replayer.parameters, int(cut.passes[first]))
            index, _ = partial.replay(cut, first)
            last = whole.role.rows[int(whole.rows[start + index - 1])].operation
            if index == len(cut) or isinstance(last, Await):
                continue  # a rank is taken to be still inside an await that ends its trace
            memory = RankMemory(TABLE, whole.role, replayer.parameters)
            replayer.replay(part(whole, False, slice(start + index)), memory, 0, whole.role.start)
            checked += 1
            assert partial.memory().__dict__ == memory.__dict__
    assert checked > 20


# --- the expressions ---------------------------------------------------------------------------------------


def some_value(random, parameters, domain):
    return random.choice(domain_values(domain, parameters, window=60))


@pytest.mark.parametrize("name", ["serving", "serving-in-step"])
def test_expressions_mean_what_the_language_says(name):
    table, random = load_table(name), Random(5)
    compared = 0
    for role in table.roles:
        ranks = {"solo": 1, "first": 3, "middle": 3, "last": 3}[role.place]
        rank = {"solo": 0, "first": 0, "middle": 1, "last": 2}[role.place]
        parameters = {"P": ranks, "L": 4, "R": rank}
        for row in role.rows:
            fields = table.scope(role, row).fields
            got = {field: f"g_{field}" for field in fields}
            for expr in row_expressions(row):
                for _ in range(20):
                    memory = RankMemory(table, role, parameters)
                    memory.n = random.randrange(50)
                    values: dict[str, Value] = {}
                    pick = partial(some_value, random, parameters)
                    for variable in role.variables:
                        values[variable.name] = memory.__dict__[f"v_{variable.name}"] = pick(variable.domain)
                        past = memory.__dict__.get(f"h_{variable.name}", [])
                        for i in range(len(past)):
                            past[i] = pick(variable.domain)
                    for channel in table.channels:
                        memory.__dict__[f"held_{channel.name}"] = random.random() < 0.5
                    received = {f: pick(d) for f, d in fields.items()}
                    env = Environment(
                        values,
                        parameters,
                        received,
                        lambda n, lag, m=memory: m.__dict__[f"h_{n}"][lag - 1],
                        lambda c, m=memory: m.__dict__[f"held_{c}"],
                        memory.n,
                    )
                    names = {"s": memory, **{f"g_{f}": v for f, v in received.items()}}
                    assert eval(source(expr, parameters, got), names) == evaluate(expr, env)
                    compared += 1
    assert compared > 1000


def test_an_outcome_is_not_read_before_the_operation():
    with pytest.raises(SpecError, match="before the operation"):
        source(Got("launch"), {"P": 2, "L": 2, "R": 0})


def test_a_divergence_says_where_in_one_line():
    words = Divergence(2, 7, "plan", "x", "y").words()
    assert words == "rank 2, pass 7, row 'plan': expected x, found y"
