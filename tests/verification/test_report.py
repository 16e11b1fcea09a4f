"""A counterexample in words, as data, as a diagram and as a page: all from the steps of one search."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from headway.spec.edits import edit, move
from headway.spec.serving import serving_table
from headway.spec.workload import Workload
from headway.verification.model import Model
from headway.verification.reference import search
from headway.verification.report import diagram, page, tell, words


@pytest.fixture(scope="module")
def stuck():
    """Rank 0 awaits its decision before it has posted the chain."""
    table = edit(serving_table(), move("post chain", after="flush decision", roles=["first"]))
    model = Model(Workload(2, 2, 0).attach(table), 3, 3)
    return model, search(model).counterexample


@pytest.fixture(scope="module")
def mispaired():
    """Rank 0 forgets what the last output said, so the run goes on for some passes before a law breaks."""
    table = Workload(2, 2, 0).attach(serving_table())
    rows = tuple(replace(row, effects=()) if row.name == "receive decision" else row for row in table.role("last").rows)
    roles = [replace(role, rows=rows) if role.name == "last" else role for role in table.roles]
    model = Model(table.with_roles(roles), 2, 2)
    return model, search(model).counterexample


def test_words_name_positions_and_the_cycle(stuck):
    text = "\n".join(words(*stuck))
    assert "rank 0 waits at 'flush decision' (pass 0) on rank 1 to receive 'decision'" in text
    assert "cycle: rank 0 waits at 'flush decision' on rank 1, and rank 1 waits at 'receive chain' on rank 0" in text


@pytest.mark.parametrize("name", ["stuck", "mispaired"])
def test_a_story_has_a_frame_for_each_step_and_an_arrow_for_each_message(name, request):
    model, example = request.getfixturevalue(name)
    story = tell(model, example)
    posts = sum("posts" in step.detail for step in example.steps)
    takes = sum("takes" in step.detail for step in example.steps)
    assert len(story.frames) == len(example.steps) + 1
    assert len(story.arrows) == posts
    assert sum(arrow.taken is not None for arrow in story.arrows) == takes
    assert all(arrow.taken is None or arrow.sent < arrow.taken for arrow in story.arrows)
    assert json.loads(json.dumps(story.to_json()))["law"] == example.law


def test_the_wires_of_the_last_frame_hold_what_nobody_took(stuck):
    last = tell(*stuck).frames[-1]
    assert last.wires["decision 0→1"] == ("decision(pass 0, launch false, void false, digest 0)",)
    assert last.wires["chain 0→1"] == ()


def test_steps_of_another_model_are_refused(stuck):
    _, example = stuck
    other = Model(Workload(2, 2, 0).attach(serving_table()), 3, 3)
    with pytest.raises(ValueError, match="rank 0 cannot take step"):
        tell(other, example)


def test_the_diagram_is_xml_with_the_cycle_in_red(stuck):
    root = ElementTree.fromstring(diagram(tell(*stuck)))
    marked = [element for element in root.iter() if element.get("class") == "stuck"]
    assert len(marked) == 2


def test_the_page_needs_nothing_from_elsewhere_and_carries_the_story(stuck):
    story = tell(*stuck)
    text = page(story)
    assert not re.search(r"""(?:src|href)=|url\(['"]?http|@import|fetch\(""", text)
    data = re.search(r'<script type="application/json" id="story">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert json.loads(data[1].replace("<\\/", "</")) == json.loads(json.dumps(story.to_json()))
