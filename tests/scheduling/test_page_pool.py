"""The page pool grants in a fixed order and knows every page's owner."""

import pytest

from headway.engine.scheduling import PageError, PagePool


def test_grants_are_deterministic_and_whole():
    pool = PagePool(4)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(2) is None
    assert pool.free == 1
    pool.release([0, 1])
    assert pool.allocate(3) == [0, 1, 3]
    assert pool.free == 0
    assert pool.allocate(0) == []


@pytest.mark.parametrize(
    ("pages", "text"), [([1, 1], "page 1 is freed twice"), ([3], "freed twice"), ([4], "foreign"), ([-1], "foreign")]
)
def test_wrong_release_is_refused(pages, text):
    pool = PagePool(4)
    pool.allocate(2)
    with pytest.raises(PageError, match=text):
        pool.release(pages)


def test_negative_allocation_is_refused():
    with pytest.raises(PageError, match="-1 pages"):
        PagePool(4).allocate(-1)


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        ([[0, 1], [1, 2]], "page 1 has two owners"),
        ([[0, 1]], "page 2 is lost"),
        ([[0, 1, 2, 3]], "page 3 has two owners"),
        ([[0, 1, 7]], "page 7 is foreign"),
    ],
)
def test_audit_names_the_page(tables, text):
    pool = PagePool(4)
    pool.allocate(3)
    pool.audit([[0], [1, 2]])
    with pytest.raises(PageError, match=text):
        pool.audit(tables)
