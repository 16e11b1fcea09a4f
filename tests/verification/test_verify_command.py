"""`headway verify` as users and CI call it: exit status, text, JSON, reports, their own tables."""

import json

import pytest

from headway.cli import main

SWAPPED = """
from headway.spec.edits import edit, move
from headway.spec.serving import serving_table

def table():
    return edit(serving_table(), move("post chain", after="flush decision", roles=["first"]))
"""


def verify(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["verify", *words])
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


@pytest.fixture
def swapped(tmp_path):
    path = tmp_path / "swapped.py"
    path.write_text(SWAPPED)
    return f"{path}:table"


def test_the_table_that_serve_runs_holds(capsys):
    code, out, err = verify(capsys, "--ranks", "1", "2", "3", "--requests", "1")
    assert code == 0
    assert out.count("holds") == 6
    assert "checking [6/6] serving P=3 L=4" in err


def test_a_swapped_table_is_rejected_with_the_cycle(capsys, swapped, tmp_path):
    code, out, _ = verify(capsys, "--table", swapped, "--ranks", "3", "--report", str(tmp_path / "reports"))
    assert code == 1
    assert "cycle: rank 0 waits at 'flush decision' on rank 1, and rank 1 waits at 'receive chain' on rank 0" in out
    story = json.loads((tmp_path / "reports" / "serving-P3-L3.json").read_text())
    assert story["cycle"] == [0, 1]
    assert (tmp_path / "reports" / "serving-P3-L3.html").exists()


def test_ring_k_has_the_known_size(capsys):
    code, out, _ = verify(capsys, "--table", "ring", "--set", "P=4", "--set", "K=1", "--unreduced", "--json")
    (found,) = json.loads(out)
    assert code == 0
    assert (found["states"], found["transitions"]) == (404_199, 1_336_708)


def test_memory_that_does_not_suffice_is_no_proof(capsys):
    words = ("--ranks", "4", "--slots", "4", "--unreduced", "--memory", "0.02", "--json")
    code, out, _ = verify(capsys, *words)
    (found,) = json.loads(out)
    assert code == 1
    assert found["verdict"].startswith("not exhausted: ")
    assert not found["exhausted"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--table", "nope"), "table 'nope': unknown"),
        (("--transport", "magic"), "transport 'magic': unknown"),
        (("--transport", "nope=posted"), "unknown channel 'nope'"),
        (("--ranks", "0"), "rank"),
        (("--set", "K"), "--set K: allowed: NAME=INTEGER"),
        (("--set", "K=2"), "table 'serving'"),
        (("--requests", "0"), "--requests = 0"),
        (("--memory", "0"), "--memory = 0.0"),
    ],
)
def test_wrong_usage_is_named_in_a_line(capsys, words, named):
    code, out, err = verify(capsys, *words)
    assert (code, out) == (2, "")
    assert named in err
    assert len(err.strip().splitlines()) == 1
