"""Single edits of a table, each of which the proof or a run should tell from the table, and the score of who does.

A mutant that everybody accepts is a survivor: it is equivalent (say why), or a law is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import z3

from headway.spec.edits import (
    Edit,
    drop_handle,
    drop_step,
    edit,
    forget,
    insert,
    move,
    rewrite,
    set_effect,
    set_field,
    strengthen,
    swap_channel,
    weaken,
)
from headway.spec.edits import (
    negate as negate_guard,
)
from headway.spec.language import (
    FALSE,
    TRUE,
    Bool,
    Const,
    Expr,
    Got,
    Past,
    Posted,
    SpecError,
    ThisPass,
    Var,
    substitute,
    walk,
)
from headway.spec.table import Await, Post, Protocol, Receive, Role, Row
from headway.spec.transports import Transport
from headway.verification.prove.certificate import Cache, prove_table, with_transports
from headway.verification.prove.obligation import refute
from headway.verification.prove.translate import Term, conj, negate, same
from headway.verification.prove.unroll import unroll
from headway.verification.prove.walk import Pass, Rank, walk_pass
from headway.verification.prove.wellformed import known_at_start


@dataclass(frozen=True)
class Mutant:
    """One edit of a table. `kind` is what sort of edit it is."""

    kind: str
    edit: Edit


@dataclass(frozen=True)
class Judgement:
    """Who refuses a mutant, and why: the check of small instances, the proof, and runs of small pipelines.

    `contradiction` is set when the proof accepts what a run shows to be broken.
    """

    mutant: Mutant
    check: str
    proof: str
    run: str
    seconds: float  # of the proof

    @property
    def killed(self) -> bool:
        """Whether anybody refuses it."""
        return bool(self.check or self.proof or self.run)

    @property
    def contradiction(self) -> bool:
        """Whether a run breaks although the table is proved."""
        return bool(self.run) and not self.check and not self.proof


def mutants(protocol: Protocol) -> Iterator[Mutant]:
    """All single edits of the kinds below, of the roles that have neighbours."""
    for channel in protocol.channels:
        yield Mutant("drop a handle", drop_handle(channel.name))
    for role in protocol.roles:
        if role.place == "solo":
            continue
        steps = list(dict.fromkeys(row.at for row in role.rows))
        for at in steps:
            yield Mutant("drop a step", drop_step(at, roles=(role.name,)))
            for other in steps:
                if other != at:
                    yield Mutant("move a step", move(at, before=other, roles=(role.name,)))
            yield from _at(protocol, role, at)


def _at(protocol: Protocol, role: Role, at: str) -> Iterator[Mutant]:
    own = (role.name,)
    flags = [v.name for v in role.variables if isinstance(v.domain, Bool)]
    for row in role.rows_at(at):
        if row.operation is None:
            continue
        if row.guard != TRUE:
            yield Mutant("negate a guard", negate_guard(at, roles=own))
            yield Mutant("weaken a guard", weaken(at, TRUE, roles=own))
        yield Mutant("strengthen a guard", strengthen(at, FALSE, roles=own))
        for flag in flags:
            yield Mutant("strengthen a guard", strengthen(at, Var(flag), roles=own))
            yield Mutant("weaken a guard", weaken(at, Var(flag), roles=own))
        yield from _operation(protocol, role, row)
        for name, value in row.effects:
            if isinstance(role.variable(name).domain, Bool):
                for other in (TRUE, FALSE, Var(name)):
                    if other != value:
                        yield Mutant("change who decides", set_effect(at, name, other, roles=own))
                for node in dict.fromkeys(walk(value)):
                    if isinstance(node, Var | Got):
                        yield Mutant("change who decides", set_effect(at, name, _without(value, node), roles=own))
        for node in dict.fromkeys(walk(row.guard)):
            if isinstance(node, Past):
                for by in (1, -1):
                    yield Mutant("change an offset", _rewritten(at, node, Past(node.name, node.lag + by), own))


def _operation(protocol: Protocol, role: Role, row: Row) -> Iterator[Mutant]:
    own, operation = (role.name,), row.operation
    if isinstance(operation, Post):
        for name, value in operation.fields:
            if isinstance(value, ThisPass):
                yield Mutant("change an offset", set_field(row.at, name, ThisPass() + 1, roles=own))
            elif isinstance(dict(protocol.channel(operation.channel).fields)[name], Bool):
                for other in (TRUE, FALSE):
                    if other != value:
                        yield Mutant("change a field", set_field(row.at, name, other, roles=own))
            else:
                yield Mutant("change a field", set_field(row.at, name, Const(1), roles=own))
    if isinstance(operation, Receive):
        for name, _ in operation.expect:
            yield Mutant("compare less", forget(row.at, name, roles=own))
    if isinstance(operation, Post | Receive | Await):
        for channel in protocol.channels:
            if channel.name != operation.channel:
                yield Mutant("swap the channel", swap_channel(row.at, channel.name, roles=own))
        again = Posted(operation.channel) if isinstance(operation, Await) else row.guard
        copy = insert(f"{row.at} again", operation, row.effects, before=row.at, when=again, roles=own)
        yield Mutant("duplicate a step", copy)


def _without(value: Expr, part: Expr) -> Expr:
    return substitute(value, lambda node: TRUE if node == part else None)


def _rewritten(at: str, old: Expr, new: Expr, roles: tuple[str, ...]) -> Edit:
    return rewrite(f"read {new} at {at!r}", at, old, new, roles=roles)


def distinct(protocol: Protocol) -> Iterator[tuple[Mutant, Protocol]]:
    """The mutants that can be made, each different from the table and from the ones before."""
    seen = {protocol.fingerprint}
    for mutant in mutants(protocol):
        try:
            changed = edit(protocol, mutant.edit, checked=False)
        except SpecError:
            continue  # the edit does not apply there
        if changed.fingerprint not in seen:
            seen.add(changed.fingerprint)
            yield mutant, changed


def equivalent(original: Protocol, changed: Protocol, cache: Cache) -> str:
    """Why a table does the same as the original one, as far as each role alone can tell; empty if it may not.

    Both walk a pass from the same values: the same rows fire under the same conditions and carry and leave the same
    values. Then only the order of steps can differ, and for that the mutant has a certificate of its own.
    """
    if original.channels != changed.channels or original.registers != changed.registers:
        return ""
    _, facts, _ = prove_table(original, cache)
    order = "the same"
    for old, new in zip(original.roles, changed.roles, strict=True):
        if old == new:
            continue
        rank = Rank(original, old, "a")
        before, after = walk_pass(rank, z3.Int("n")), walk_pass(Rank(changed, new, "a"), z3.Int("n"))
        solver = z3.SolverFor("QF_UFLIA")
        solver.add(z3.Int("n") >= 0, *known_at_start(rank, z3.Int("n"), facts[old.name], []))
        solver.add(*rank.facts, *after.rank.facts)
        if refute(solver, z3.Not(conj(*_same_pass(before, after)))) is not None:
            return ""
        steps = [[f.row.name for f in walked.firings.values() if f.row.operation] for walked in (before, after)]
        if steps[0] != steps[1]:
            order = "the same in another order"
    return f"{order}: every row fires under the same conditions, with the same values"


def _same_pass(before: Pass, after: Pass) -> Iterator[Term]:
    yield same(before.advances, after.advances)
    yield same(before.ends, after.ends)
    for name, value in before.after.items():
        yield z3.Implies(before.advances, same(value, after.after[name]))
    for name in dict.fromkeys([*before.firings, *after.firings]):
        old, new = before.firings.get(name), after.firings.get(name)
        if old is None or new is None:
            alone = old or new
            if alone is not None and alone.row.operation is not None:
                yield negate(alone.when)
            continue
        if old.row.operation is None and new.row.operation is None:
            continue
        yield same(old.when, new.when)
        if type(old.row.operation) is not type(new.row.operation) or set(old.fields) != set(new.fields):
            yield negate(old.when)
        for field, value in old.fields.items():
            yield z3.Implies(old.when, same(value, new.fields.get(field, value)))


def judge(
    mutant: Mutant, changed: Protocol, transports: Mapping[str, Transport], cache: Cache, ranks: int = 3
) -> Judgement:
    """Have everybody judge one mutant, each on its own."""
    check = _refusal(lambda: str(replace(changed, checked=True) and ""))
    start = time.perf_counter()
    proof = _refusal(lambda: _proof(changed, transports, cache))
    seconds = time.perf_counter() - start
    ran = "" if check else _refusal(lambda: _run(changed, transports, ranks))
    return Judgement(mutant, check, proof, ran, seconds)


def _refusal(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except SpecError as error:
        return str(error)


def _proof(changed: Protocol, transports: Mapping[str, Transport], cache: Cache) -> str:
    try:
        proof = with_transports(changed, prove_table(changed, cache), transports)
    except z3.Z3Exception as error:  # operands that do not fit together
        return f"types: {error}"
    return str(proof.findings[0]) if proof.findings else ""


def _run(changed: Protocol, transports: Mapping[str, Transport], ranks: int) -> str:
    found = unroll(changed, transports, ranks)
    return "" if found is None else f"{found.counterexample.law} for P={found.ranks}, {found.load}"


def explain(original: Protocol, changed: Protocol, cache: Cache) -> str:
    """Why a survivor is none: it does the same, or it is another protocol that was proved in full."""
    return equivalent(original, changed, cache) or "another protocol, proved in full"
