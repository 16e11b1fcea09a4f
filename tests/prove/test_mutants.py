"""Single edits of the production table, and random orders under random transports: proof and runs never disagree."""

from __future__ import annotations

import random

import pytest

from headway.spec.edits import Edit, drop_step, edit, forget, move, set_effect, strengthen, weaken
from headway.spec.language import FALSE, TRUE, SpecError, Var
from headway.spec.serving import serving_table
from headway.spec.sglang.loop import sglang_table
from headway.spec.sglang.traffic import Traffic
from headway.spec.table import Protocol
from headway.spec.transports import LAZY, POSTED, RENDEZVOUS, stream_ordered
from headway.verification.model import Model
from headway.verification.prove import contract, prove_acyclic, prove_table
from headway.verification.prove.certificate import Cache
from headway.verification.prove.mutants import Mutant, distinct, equivalent, judge, mutants
from headway.verification.prove.unroll import LOADS, run

TABLE = serving_table()
POSTED_EVERYWHERE = contract(TABLE, "posted")
CACHE = Cache()
CONTRACTS = (POSTED, POSTED, RENDEZVOUS, LAZY, stream_ordered(1))


@pytest.fixture(scope="module")
def edits() -> list[tuple[Mutant, Protocol]]:
    return list(distinct(TABLE))


def test_every_kind_of_edit_is_made(edits: list[tuple[Mutant, Protocol]]) -> None:
    assert {mutant.kind for mutant in mutants(TABLE)} == {
        "drop a handle",
        "drop a step",
        "move a step",
        "negate a guard",
        "weaken a guard",
        "strengthen a guard",
        "change who decides",
        "change an offset",
        "change a field",
        "compare less",
        "swap the channel",
        "duplicate a step",
    }
    assert len(edits) > 500


def test_nothing_that_is_proved_breaks_in_a_run(edits: list[tuple[Mutant, Protocol]]) -> None:
    chosen = random.Random(11).sample(edits, 16)
    judged = [judge(mutant, changed, POSTED_EVERYWHERE, CACHE, ranks=2) for mutant, changed in chosen]
    assert [judgement.mutant.edit.text for judgement in judged if judgement.contradiction] == []
    assert sum(bool(judgement.proof) for judgement in judged) > len(judged) // 2


@pytest.mark.parametrize(
    "change",
    [
        strengthen("plan", FALSE, roles=("first",)),
        set_effect("plan", "launch", FALSE, roles=("first",)),
        set_effect("receive decision", "void", TRUE, roles=("middle",)),
        drop_step("apply output", roles=("first",)),
        drop_step("gate hidden states", roles=("middle",)),
        move("launch", before="honour", roles=("last",)),
        move("post hidden states", before="launch", roles=("middle",)),
        weaken("report void", Var("upstream"), roles=("last",)),
        forget("receive decision", "pass", roles=("middle",)),
    ],
    ids=lambda change: change.text,
)
def test_slips_of_which_no_run_gets_stuck_are_refused(change: Edit) -> None:
    changed = edit(TABLE, change, checked=False)
    mutant = next(mutants(TABLE))
    assert judge(mutant, changed, POSTED_EVERYWHERE, CACHE, ranks=2).proof


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (strengthen("gate hidden states", Var("launch"), roles=("middle",)), "the same: "),
        (move("flush chain", before="flush decision", roles=("first",)), "the same in another order: "),
        (strengthen("post output", Var("will_launch")), ""),
        (move("plan", before="stop here", roles=("first",)), ""),
    ],
)
def test_what_does_the_same_is_told_from_what_does_not(change: Edit, same: str) -> None:
    found = equivalent(TABLE, edit(TABLE, change), CACHE)
    assert found.startswith(same)
    assert bool(found) == bool(same)


@pytest.mark.parametrize("seed", range(6))
def test_random_orders_under_random_transports(seed: int) -> None:
    """Fifty each: no run of two or three ranks gets stuck where all is proved, and what gets stuck has no potential."""
    rng = random.Random(seed)
    tables = (TABLE, Traffic().attach(sglang_table()))
    made = proved = 0
    while made < 50:
        table = rng.choice(tables)
        moves = []
        for role in rng.sample([role for role in table.roles if role.place != "solo"], rng.randint(1, 2)):
            steps = list(dict.fromkeys(row.at for row in role.rows if row.operation is not None))
            moves.append(move(rng.choice(steps), before=rng.choice(steps), roles=(role.name,)))
        try:
            changed = edit(table, *moves, checked=False)
        except SpecError:
            continue
        made += 1
        by_wire = {channel.wire or channel.name: rng.choice(CONTRACTS) for channel in changed.channels}
        transports = {channel.name: by_wire[channel.wire or channel.name] for channel in changed.channels}
        if prove_acyclic(changed, transports).potential is None:
            continue
        stuck = [
            (ranks, load)
            for ranks in (2, 3)
            for load in ("work in every pass", "work in passes 0 and 1 of 5")
            if run(Model(changed, ranks, ranks, transports=transports), LOADS[load], 2 * ranks + 2) is not None
        ]
        proved += not stuck
        if stuck:  # then it must be the messages that do not match
            obligations, _, _ = prove_table(changed, CACHE)
            assert any(o.findings for o in obligations if not o.apart), (seed, [m.text for m in moves], stuck)
    assert proved > 5
