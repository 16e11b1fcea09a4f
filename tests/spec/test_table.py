"""The canonical form and the fingerprint: prose changes neither, behaviour always does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from headway.spec.catalog import load_table
from headway.spec.language import Const, Param, Slot, SpecError, ThisPass, Var
from headway.spec.serving import serving_table
from headway.spec.table import Protocol, history_depths, pass_window

TABLE = serving_table()
PROSE = {"doc", "checked"}


def changed(value: Any) -> Iterator[Any]:
    """`value` with one thing in it changed, for each thing that can be."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, str):
        yield value + "x"
    elif isinstance(value, tuple):
        for i, part in enumerate(value):
            yield value[:i] + value[i + 1 :]
            for other in changed(part):
                yield (*value[:i], other, *value[i + 1 :])
        for i in range(len(value) - 1):
            if value[i] != value[i + 1]:
                yield (*value[:i], value[i + 1], value[i], *value[i + 2 :])
    elif is_dataclass(value):
        if isinstance(value, Var | Param):
            yield Const(value.name)
            yield Var(value.name) if isinstance(value, Param) else Param(value.name)
        elif isinstance(value, ThisPass | Slot):
            yield Var("n" if isinstance(value, ThisPass) else "slot")
        elif isinstance(value, Const) and isinstance(value.value, bool):
            yield Const(str(value.value).lower())
        for field in fields(value):
            if field.name not in PROSE:
                for other in changed(getattr(value, field.name)):
                    yield replace(value, **{field.name: other})


def test_every_behavioural_change_changes_the_fingerprint():
    table = replace(TABLE, checked=False)
    assert table.fingerprint == TABLE.fingerprint
    prints = [other.fingerprint for other in changed(table)]
    assert len(prints) > 1500
    assert TABLE.fingerprint not in prints


def rewritten(value: Any) -> Any:
    """`value` with all prose in it changed."""
    if isinstance(value, tuple):
        return tuple(rewritten(part) for part in value)
    if not is_dataclass(value):
        return value
    new = {f.name: rewritten(getattr(value, f.name)) for f in fields(value) if f.name not in PROSE}
    if any(f.name == "doc" for f in fields(value)):
        new["doc"] = "other words"
    return replace(value, **new)


def test_prose_does_not():
    other = rewritten(TABLE)
    assert other.doc != TABLE.doc
    assert other.channels[0].doc != TABLE.channels[0].doc
    assert other.fingerprint == TABLE.fingerprint


def test_the_canonical_form_is_the_same_in_every_process():
    code = "from headway.spec.serving import serving_table; print(serving_table().fingerprint)"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert said.stdout.strip() == TABLE.fingerprint


def test_the_canonical_form_is_json_without_prose():
    form = json.loads(TABLE.canonical)
    assert [role["name"] for role in form["roles"]] == [role.name for role in TABLE.roles]
    assert '"doc"' not in TABLE.canonical


def test_a_rank_has_the_role_of_its_place():
    assert TABLE.role_of(0, 1).name == "solo"
    assert [TABLE.role_of(rank, 4).name for rank in range(4)] == ["first", "middle", "middle", "last"]
    with pytest.raises(SpecError, match="rank 3 is not one of 3 ranks"):
        TABLE.role_of(3, 3)
    with pytest.raises(SpecError, match="has no role for rank 1 of 3"):
        TABLE.with_roles([role for role in TABLE.roles if role.name != "middle"]).role_of(1, 3)


def test_history_goes_as_far_back_as_the_longest_lag():
    assert history_depths(TABLE.role("first"), {"P": 4, "L": 5, "R": 0}) == {"launch": 3, "digest": 3}
    assert history_depths(TABLE.role("last"), {"P": 4, "L": 5, "R": 3}) == {}


@pytest.mark.parametrize(("ranks", "slots"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 6)])
def test_the_pass_window_keeps_slots_exact(ranks: int, slots: int):
    window = pass_window(TABLE, ranks, slots)
    assert window % slots == 0
    assert window > 2 * (ranks + 1 + ranks - 1)


def test_a_table_is_found_by_its_name_by_module_and_by_file(tmp_path):
    assert load_table("serving") == TABLE
    assert load_table("headway.spec.serving:serving_table") == TABLE
    own = tmp_path / "own.py"
    own.write_text(
        "from dataclasses import replace\nfrom headway.spec.serving import serving_table\n"
        "def table():\n    return replace(serving_table(), name='own')\n"
        "def number():\n    return 7\n"
        "def choosy(size):\n    return serving_table()\n"
    )
    assert isinstance(load_table(f"{own}:table"), Protocol)
    assert load_table(f"{own}:table").name == "own"
    (tmp_path / "torn.py").write_text("def table(:")
    for name, message in (
        (f"{tmp_path}/torn.py:table", r"torn.py:table': invalid syntax \(torn.py, line 1\)"),
        ("sarving", "table 'sarving': unknown; allowed: .*serving.*, module:function, or file.py:function"),
        ("headway.nothing:table", "No module named 'headway.nothing'"),
        (f"{tmp_path}/none.py:table", "No such file"),
        (f"{own}:tabel", "has no 'tabel'"),
        (f"{own}:number", "made a int, not a Protocol"),
        (f"{own}:choosy", "missing 1 required positional argument: 'size'"),
    ):
        with pytest.raises(SpecError, match=message):
            load_table(name)
