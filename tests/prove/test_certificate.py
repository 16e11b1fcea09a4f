"""Certificates: shipped ones fit the table, a checker without the prover confirms them, and forgeries are refused."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest

from headway.spec.bounds import differences, in_flight, most
from headway.spec.catalog import load_table
from headway.spec.certificate import PRODUCTION, Certificate, covers, find, parse, problems, shipped
from headway.spec.edits import change_channel, edit, move
from headway.spec.language import Const, SpecError
from headway.spec.ordering import Linear, neighbours, ordering
from headway.spec.serving import serving_table
from headway.spec.transports import RENDEZVOUS, Transport, stream_ordered
from headway.spec.workload import Workload
from headway.verification.model import Model
from headway.verification.prove import CONTRACTS, contract, prove
from headway.verification.prove.certificate import most_by_optimize
from headway.verification.reference import search

TABLE = serving_table()


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return prove(TABLE, contract(TABLE, "posted")).certificate()


def test_shipped_certificates_are_those_of_the_table() -> None:
    """Red after a change of the table without `headway prove --write`."""
    certificates = shipped()
    assert len(certificates) == len(PRODUCTION) * len(CONTRACTS)
    for name in PRODUCTION:
        table = load_table(name)
        own = [one for one in certificates if one.fingerprint == table.fingerprint]
        assert [dict(one.transports) for one in own] == [contract(table, each) for each in sorted(CONTRACTS)]
        for one in own:
            assert list(problems(one, table)) == []


def test_a_certificate_survives_its_text(certificate: Certificate) -> None:
    again = parse(certificate.text(), "memory")
    assert again == certificate
    assert list(problems(again, TABLE)) == []


def test_the_check_needs_no_prover() -> None:
    code = (
        "import sys; from headway.spec.certificate import shipped, problems\n"
        "from headway.spec.catalog import load_table\n"
        "assert not list(problems(shipped()[0], load_table(shipped()[0].table)))\n"
        "print(sorted(m for m in ('z3', 'torch') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_changed_number_of_a_potential_that_matters_is_noticed(certificate: Certificate) -> None:
    """Numbers moved far up or down break some wait; the checker must see each of them."""
    rng = random.Random(7)
    potential = certificate.potential
    points = list(potential.steps)
    for _ in range(20):
        point, by = rng.choice(points), rng.choice((-10_000, 10_000))
        steps = {**potential.steps, point: potential.steps[point] + Linear(by)}
        forged = replace(certificate, potential=replace(potential, steps=steps))
        assert next(problems(forged, TABLE), None) is not None, point


def test_symbolic_and_numeric_checks_both_refuse(certificate: Certificate) -> None:
    """One that holds up to 64 ranks only is refused by the expansion; one that fails at 5 ranks, by numbers too."""
    potential = certificate.potential
    shrinking = replace(potential, per_pass=Linear(10_000, -100))
    forged = list(problems(replace(certificate, potential=shrinking), TABLE))
    assert any("need not grow" in text for text in forged)
    falling = replace(potential, per_pass=Linear(-1))
    assert any("does not grow for P=" in text for text in problems(replace(certificate, potential=falling), TABLE))


@pytest.mark.parametrize("change", ["proved", "bounds", "lead", "steps", "fingerprint"])
def test_forgeries_are_refused(certificate: Certificate, change: str) -> None:
    steps = dict(certificate.potential.steps)
    steps.popitem()
    forged = {
        "proved": replace(certificate, proved=certificate.proved[1:]),
        "bounds": replace(certificate, bounds={**certificate.bounds, "decision": 1}),
        "lead": replace(certificate, lead=0),
        "steps": replace(certificate, potential=replace(certificate.potential, steps=steps)),
        "fingerprint": replace(certificate, fingerprint="0" * 64),
    }[change]
    assert list(problems(forged, TABLE))


def test_a_changed_table_needs_new_certificates() -> None:
    changed = edit(TABLE, move("flush decision", after="flush chain", roles=("middle",)))
    with pytest.raises(SpecError, match="no certificate covers table"):
        find(shipped(), changed, 3, 3, contract(changed, "posted"))
    assert all(list(problems(one, changed)) for one in shipped())


def test_a_launch_is_covered_or_told_why_not(certificate: Certificate) -> None:
    posted = dict(certificate.transports)

    def reason(ranks: int = 3, slots: int = 3, **transports: Transport) -> str | None:
        return covers(certificate, TABLE.fingerprint, ranks, slots, {**posted, **transports})

    assert reason() is None
    assert reason(ranks=1, slots=1) is None
    assert reason(ranks=40, slots=41) is None
    assert reason(slots=2) == "slots = 2 is below ranks = 3; it covers as many or more"
    assert reason(proxy=RENDEZVOUS) == "channel 'proxy' is rendezvous; it covers posted"
    assert covers(certificate, "f" * 64, 3, 3, posted) == f"it is for table {TABLE.fingerprint[:12]}, not ffffffffffff"
    del posted["proxy"]
    assert reason() == "no transport is given for channel 'proxy'"


def test_more_messages_that_need_no_receiver_are_covered() -> None:
    counted = next(o for o in shipped() if "stream_ordered(1)" in o.contract and o.fingerprint == TABLE.fingerprint)
    with_three = {**counted.transports, "proxy": stream_ordered(3)}
    without = {**counted.transports, "proxy": stream_ordered(0)}
    assert covers(counted, TABLE.fingerprint, 2, 2, with_three) is None
    assert covers(counted, TABLE.fingerprint, 2, 2, without) is not None
    assert find(shipped(), TABLE, 2, 2, with_three) is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "certificate it: JSONDecodeError"),
        ('{"format": 2}', "format 2; known: 1"),
        ("{}", "certificate it: KeyError"),
    ],
)
def test_files_that_are_no_certificates(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(text, "it")


def test_a_potential_must_be_of_integers(certificate: Certificate) -> None:
    content = json.loads(certificate.text())
    content["potential"]["per pass"] = [0.5, 0, 0]
    with pytest.raises(SpecError, match="not three integers"):
        parse(json.dumps(content), "it")


@pytest.mark.parametrize("name", list(CONTRACTS))
def test_bounds_by_shortest_paths_are_those_of_optimize(name: str) -> None:
    order = ordering(TABLE, contract(TABLE, name))
    for pair, ranks in product(neighbours(TABLE), (2, 3, 5)):
        if ranks not in pair.pipelines:
            continue
        known = list(differences(order, pair, ranks, ranks))
        ends = [(d.left, d.right) for d in known[:: len(known) // 4]]
        for left, right in ends:
            assert most(known, left, right) == most_by_optimize(order, pair, left, right, ranks, ranks)


@pytest.mark.parametrize("name", ["posted", "tensor-rendezvous"])
def test_the_bounds_are_reached_and_never_passed(name: str) -> None:
    """With the stated room no interleaving of two ranks overfills a channel; with less, one does.

    Of hidden states and outputs two ranks never have two: rank 0 takes the output of a pass before its next post.
    """
    order = ordering(TABLE, contract(TABLE, name))
    bounds = in_flight(order, 2, 2)
    for channel, room in (*bounds.items(), ("chain", 0), ("decision", 1)):
        changed = edit(TABLE, change_channel(channel, lambda c, room=room: replace(c, capacity=Const(room)), "room"))
        found = search(Model(Workload(1, 2).attach(changed), 2, 2, transports=dict(order.transports))).counterexample
        law = "bounded channel" if room != bounds[channel] else None
        assert (None if found is None else found.law) == law, (channel, room)
