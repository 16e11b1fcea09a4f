"""All obligations of a table in one go, and the certificate that they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from itertools import chain

import z3

from headway.spec.bounds import Count, differences, in_flight, lead
from headway.spec.certificate import Certificate
from headway.spec.language import SpecError, show
from headway.spec.ordering import Neighbours, Ordering, linear
from headway.spec.table import Channel, Protocol, Role, gated_channels
from headway.spec.transports import LAZY, POSTED, RENDEZVOUS, Transport, credits, stream_ordered
from headway.verification.prove.acyclic import Acyclic, prove_acyclic
from headway.verification.prove.facts import Fact
from headway.verification.prove.matched import FromFirst, Known, prove_matched
from headway.verification.prove.meeting import Facts
from headway.verification.prove.obligation import Finding, Obligation
from headway.verification.prove.of_use import prove_of_use
from headway.verification.prove.progress import prove_progress
from headway.verification.prove.wellformed import prove_wellformed

CONTRACTS: Mapping[str, Mapping[str, Transport]] = {
    "posted": {"control": POSTED, "tensor": POSTED},
    "tensor-rendezvous": {"control": POSTED, "tensor": RENDEZVOUS},
    "tensor-lazy": {"control": POSTED, "tensor": LAZY},
    "tensor-stream-ordered": {"control": POSTED, "tensor": stream_ordered(1)},
    "tensor-credits": {"control": POSTED, "tensor": credits(1)},
}
"""The contracts that certificates of the production table are made for, by kind of channel."""


def contract(protocol: Protocol, name: str) -> dict[str, Transport]:
    """The transport of each channel under a named contract."""
    return {channel.name: CONTRACTS[name][channel.kind] for channel in protocol.channels}


@dataclass
class Proof:
    """What was proved of a table under one contract. `acyclic` is None when an earlier obligation failed."""

    protocol: Protocol
    transports: Mapping[str, Transport]
    obligations: list[Obligation]
    facts: Facts
    carried: FromFirst = field(default_factory=dict)
    acyclic: Acyclic | None = None

    @property
    def holds(self) -> bool:
        """Whether every obligation was proved."""
        return self.acyclic is not None and all(obligation.holds for obligation in self.obligations)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything that was not proved."""
        return tuple(chain.from_iterable(obligation.findings for obligation in self.obligations))

    def certificate(self) -> Certificate:
        """The certificate; raises `SpecError` when something was not proved."""
        if self.acyclic is None or self.acyclic.potential is None or self.acyclic.ordering is None or not self.holds:
            raise SpecError(f"table {self.protocol.name!r}: {self.findings[0] if self.findings else 'nothing proved'}")
        order = self.acyclic.ordering
        facts = {role: tuple(map(str, facts)) for role, facts in self.facts.items()}
        for first, others in self.carried.items():
            for name, pairs in others.items():
                facts[f"{first} to {name}"] = tuple(f"{mine} = {theirs}" for mine, theirs in sorted(pairs))
        return Certificate(
            self.protocol.name,
            self.protocol.fingerprint,
            self.transports,
            tuple(obligation.name for obligation in self.obligations),
            facts,
            self.acyclic.template,
            self.acyclic.potential,
            in_flight(order, 2, 2),
            lead(order, 2, 2),
            {"headway": metadata.version("headway"), "z3": z3.get_version_string()},
        )


@dataclass
class Cache:
    """What was found of single roles and of pairs of neighbours, for tables that share some of them."""

    roles: dict[tuple[tuple[Channel, ...], Role, frozenset[str]], tuple[list[Obligation], tuple[Fact, ...]]] = field(
        default_factory=dict
    )
    pairs: Known = field(default_factory=dict)


def prove_table(protocol: Protocol, cache: Cache | None = None) -> tuple[list[Obligation], Facts, FromFirst]:
    """The obligations that do not depend on transports: well-formed, matched, progress."""
    obligations: list[Obligation] = []
    facts: dict[str, tuple[Fact, ...]] = {}
    cache = Cache() if cache is None else cache
    known = cache.roles
    for role in protocol.roles:
        key = (protocol.channels, role, gated_channels(protocol))
        if key not in known:
            wellformed, found, walked = prove_wellformed(protocol, role)
            both = [wellformed] if walked is None else [wellformed, prove_of_use(protocol, walked, found)]
            known[key] = (both, found)
        obligations += known[key][0]
        facts[role.name] = known[key][1]
    if not all(obligation.holds or obligation.apart for obligation in obligations):
        return obligations, facts, {}
    matched = prove_matched(protocol, facts, cache.pairs)
    obligations += matched.obligations
    if all(obligation.holds for obligation in matched.obligations):
        obligations.append(prove_progress(protocol, facts, matched))
    return obligations, facts, matched.from_first


def prove(protocol: Protocol, transports: Mapping[str, Transport]) -> Proof:
    """Every obligation of a table under these transports."""
    return with_transports(protocol, prove_table(protocol), transports)


def with_transports(
    protocol: Protocol, table: tuple[list[Obligation], Facts, FromFirst], transports: Mapping[str, Transport]
) -> Proof:
    """The same, given what `prove_table` found."""
    obligations, facts, carried = table
    proof = Proof(protocol, transports, list(obligations), facts, carried)
    if all(obligation.holds or obligation.apart for obligation in obligations):
        proof.acyclic = prove_acyclic(protocol, transports)
        proof.obligations.append(proof.acyclic.obligation)
        if proof.acyclic.ordering is not None:
            proof.obligations.append(_bounded(proof.acyclic.ordering))
    return proof


def _bounded(order: Ordering) -> Obligation:
    """No channel needs more room than it declares; for a channel on a shared wire no bound may be known."""
    obligation = Obligation("bounded")
    with obligation.timed():
        for name, bound in in_flight(order, 2, 2).items():
            room = linear(order.protocol.channel(name).capacity)
            obligation.proved.append(f"{name}: {'no bound' if bound is None else bound}")
            if bound is not None and (room.ranks or room.slots or room.one < bound):
                text = f"{bound} messages can be in flight, declared are {show(order.protocol.channel(name).capacity)}"
                obligation.findings.append(Finding("bounded channel", (name,), text))
    return obligation


def most_by_optimize(
    order: Ordering, pair: Neighbours, left: Count, right: Count, ranks: int, slots: int
) -> int | None:
    """`spec.bounds.most` found by Z3's Optimize instead of by a shortest path; None without a bound."""
    optimize = z3.Optimize()
    counts: dict[Count, z3.ArithRef] = {}

    def count(key: Count) -> z3.ArithRef:
        return counts.setdefault(key, z3.Int(f"{key[0]} {key[1].role} {key[1].location}"))

    for known in differences(order, pair, ranks, slots):
        optimize.add(count(known.left) - count(known.right) <= known.most)
    goal = optimize.maximize(count(left) - count(right))
    optimize.add(*(number >= 0 for number in counts.values()))
    if optimize.check() != z3.sat:
        raise ArithmeticError("Z3 gave no answer")
    upper = optimize.upper(goal)
    return upper.as_long() if z3.is_int_value(upper) else None
