"""Books follow decisions, refuse what their rank cannot do, and are repaired by a retry."""

from array import array
from copy import deepcopy

import pytest

from headway.engine.messages import BatchRow, Decision, Relayed, Sampling
from headway.engine.scheduling import Books, Member, UnhonourableError, batch_digest

WARM = Sampling(temperature=0.5, seed=7)


def books_of(*requests, pages=8):
    books = Books(pages, page_size=4)
    books.learn([Relayed(request, WARM) for request in requests])
    return books


def row(request, start, count, first_page, pages, samples=True):
    return BatchRow(request, start, count, first_page, pages, samples)


def test_rows_extend_and_replace_the_block_table():
    books = books_of(1, 2)
    assert books.apply(Decision([row(1, 0, 4, 0, [5]), row(2, 0, 3, 0, [2], False)])) == [
        Member(1, array("q", [5]), 0, 4, WARM, True),
        Member(2, array("q", [2]), 0, 3, WARM, False),
    ]
    grown = Decision([row(1, 4, 1, 1, [6])])
    assert books.apply(grown) == books.apply(grown) == [Member(1, array("q", [5, 6]), 4, 1, WARM, True)]
    assert books.apply(Decision([row(1, 0, 5, 0, [0, 1])])) == [Member(1, array("q", [0, 1]), 0, 5, WARM, True)]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (row(9, 0, 1, 0, [0]), "request 9 is unknown"),
        (row(2, 0, 4, 0, [8]), r"request 2: pages \[8\] are not all within 0..7"),
        (row(2, 0, 4, 0, [-1]), r"pages \[-1\]"),
        (row(2, 0, 5, 0, [3]), "5 tokens in pages for 4"),
        (row(2, 4, 1, 1, [3]), "pages from entry 1, the block table has 0"),
        (row(1, 5, 1, 1, [3]), "starts at 5, 4 tokens are known"),
    ],
)
def test_refusal_changes_no_row_and_keeps_the_releases(bad, text):
    books = books_of(1, 2, 3)
    books.apply(Decision([row(1, 0, 4, 0, [5])]))
    before = {k: deepcopy(v) for k, v in books.entries.items() if k != 3}
    with pytest.raises(UnhonourableError, match=text):
        books.apply(Decision([row(1, 4, 1, 1, [6]), bad], released=[3]))
    assert books.entries == before


def test_decision_refused_elsewhere_only_releases():
    books = books_of(1, 2)
    assert books.apply(Decision([row(1, 0, 4, 0, [5])], released=[2], refused_by=1, refusal="no")) == []
    assert list(books.entries) == [1]
    assert list(books.entries[1].table) == []


def test_broken_bookkeeping_is_loud():
    books = books_of(1)
    with pytest.raises(ValueError, match="request 1 was relayed twice"):
        books.learn([Relayed(1, WARM)])
    with pytest.raises(ValueError, match="unknown request 4"):
        books.apply(Decision(released=[4]))


def test_digest_tells_batches_apart():
    rows = [row(1, 0, 4, 0, [5]), row(2, 0, 3, 0, [2], False)]
    same = [row(1, 0, 4, 0, [7]), row(2, 0, 3, 0, [], False)]
    others = [rows[::-1], rows[:1], [rows[0], row(2, 0, 3, 0, [2])], [rows[0], row(2, 0, 2, 0, [2], False)]]
    assert batch_digest([]) == 0
    assert batch_digest(rows) == batch_digest(same)
    digests = {batch_digest(batch) for batch in [rows, *others]}
    assert len(digests) == 5
    assert all(0 < digest < 2**63 for digest in digests)
    assert batch_digest([row(1, 0, 4, 0, [])]) == 815337569120972087  # the same on every machine and version
