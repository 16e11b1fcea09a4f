"""The laws: complete, each with a way of checking it or a reason, and tied to what searches report."""

import ast
from pathlib import Path

import pytest

from headway.spec.incidents import ELSEWHERE, INCIDENTS
from headway.spec.incidents.incident import Outcome
from headway.spec.language import SpecError
from headway.spec.laws import BROKEN, LAWS, OUTCOMES, WAYS, law, laws_of

VERIFICATION = Path(__file__).parents[2] / "verification"


def test_there_are_fifteen_laws_in_order():
    assert [one.number for one in LAWS] == list(range(1, 16))
    assert len({one.name for one in LAWS}) == 15


@pytest.mark.parametrize("one", LAWS, ids=lambda one: one.label)
def test_each_law_is_checked_in_some_way_or_says_why_not(one):
    assert one.demands.endswith(".")
    assert one.checked or one.unchecked
    ways = [way for way, _ in one.checked]
    assert set(ways) <= set(WAYS)
    assert len(ways) == len(set(ways))


@pytest.mark.parametrize("one", [one for one in LAWS if "search" in dict(one.checked)], ids=lambda one: one.label)
def test_a_law_that_the_search_checks_is_broken_by_some_incident(one):
    assert any(one.number in i.laws and i.expected.outcome != "pass" for i in INCIDENTS)


def test_every_name_that_a_search_reports_is_mapped():
    reported = {
        node.args[0].value
        for path in VERIFICATION.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Broken"
        if isinstance(node.args[0], ast.Constant)
    }
    assert reported, "no call of Broken found"
    assert reported <= set(BROKEN)
    assert set(BROKEN) == set(OUTCOMES)
    assert set(OUTCOMES.values()) <= set(Outcome.__args__)
    assert all(law(number) for numbers in BROKEN.values() for number in numbers)


def test_unknown_laws_are_refused():
    with pytest.raises(SpecError, match="law 16"):
        law(16)
    with pytest.raises(SpecError, match="'gravity'"):
        laws_of("gravity")
    assert [one.label for one in laws_of("handle custody")] == ["L4"]


def test_what_is_elsewhere_says_why():
    assert all(entry.reason and entry.where and entry.title for entry in ELSEWHERE)
    assert all(1 <= number <= 15 for entry in ELSEWHERE for number in entry.laws)
