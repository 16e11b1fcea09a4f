"""Certificates: what was proved of a table, in a file that can be checked again without the prover.

`covers` is what a launch asks of a certificate; `problems` re-checks one against the table itself with integer
arithmetic only: the potential along every wait, the bounds, and that every obligation is named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from headway.spec.bounds import in_flight, lead
from headway.spec.language import SpecError
from headway.spec.ordering import Linear, neighbours, ordering
from headway.spec.ordering import Point as Point
from headway.spec.potential import Potential
from headway.spec.table import Protocol
from headway.spec.transports import Transport, parse_transport

FORMAT = 1
PRODUCTION = ("serving", "serving-in-step")
"""The tables that certificates are shipped for."""
MOST_RANKS = 64
"""Up to how many ranks a check evaluates every wait by numbers, besides the check for all of them."""


@dataclass(frozen=True)
class Certificate:
    """What was proved of the table with this fingerprint, for any P and any L >= P, under these transports.

    `proved` names the obligations; `facts` says what they rest on; `bounds` are messages in flight by channel, and
    `lead` the passes that a rank can be ahead of the next one (None: no bound was found).
    """

    table: str
    fingerprint: str
    transports: Mapping[str, Transport]
    proved: tuple[str, ...]
    facts: Mapping[str, tuple[str, ...]]
    template: str
    potential: Potential
    bounds: Mapping[str, int | None]
    lead: int | None
    versions: Mapping[str, str]

    @property
    def contract(self) -> str:
        """The transports in one line."""
        return ", ".join(f"{name} {transport.name}" for name, transport in self.transports.items())

    def text(self) -> str:
        """The certificate as JSON text that `parse` reads."""
        steps: dict[str, dict[str, list[int]]] = {}
        for point, number in self.potential.steps.items():
            steps.setdefault(point.role, {})[point.location] = _numbers(number)
        content = {
            "format": FORMAT,
            "table": self.table,
            "fingerprint": self.fingerprint,
            "for": "every P >= 1 and L >= P",
            "transports": {name: transport.name for name, transport in self.transports.items()},
            "proved": list(self.proved),
            "facts": {name: list(facts) for name, facts in self.facts.items()},
            "potential": {
                "template": self.template,
                "coefficients of": ["1", "P", "L"],
                "per pass": _numbers(self.potential.per_pass),
                "per rank": _numbers(self.potential.per_rank),
                "steps": steps,
            },
            "in flight": dict(self.bounds),
            "lead": self.lead,
            "versions": dict(self.versions),
        }
        return json.dumps(content, indent=1) + "\n"


def _numbers(linear: Linear) -> list[int]:
    return [linear.one, linear.ranks, linear.slots]


def parse(text: str, source: str) -> Certificate:
    """A certificate from its JSON text; raises `SpecError` naming `source` and what is wrong."""
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise SpecError(f"certificate {source}: format {content['format']!r}; known: {FORMAT}")
        potential = content["potential"]
        steps = {
            Point(role, location): _linear(numbers)
            for role, locations in potential["steps"].items()
            for location, numbers in locations.items()
        }
        return Certificate(
            str(content["table"]),
            str(content["fingerprint"]),
            {name: parse_transport(transport) for name, transport in content["transports"].items()},
            tuple(map(str, content["proved"])),
            {name: tuple(map(str, facts)) for name, facts in content["facts"].items()},
            str(potential["template"]),
            Potential(_linear(potential["per pass"]), _linear(potential["per rank"]), steps),
            {name: None if bound is None else int(bound) for name, bound in content["in flight"].items()},
            None if content["lead"] is None else int(content["lead"]),
            {name: str(version) for name, version in content["versions"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"certificate {source}: {type(error).__name__}: {error}") from error


def _linear(numbers: Any) -> Linear:
    one, ranks, slots = numbers
    if not all(type(number) is int for number in (one, ranks, slots)):
        raise ValueError(f"{numbers!r} are not three integers")
    return Linear(one, ranks, slots)


def read(path: str | Path) -> Certificate:
    """The certificate in a file; raises `SpecError` when it cannot be read."""
    try:
        return parse(Path(path).read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"certificate {path}: {error}") from error


def shipped() -> tuple[Certificate, ...]:
    """The certificates that come with the package."""
    folder = resources.files("headway.spec") / "certificates"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return tuple(parse(file.read_text(encoding="utf-8"), file.name) for file in files)


# --- what a launch asks ------------------------------------------------------------------------------------


def covers(
    certificate: Certificate, fingerprint: str, ranks: int, slots: int, transports: Mapping[str, Transport]
) -> str | None:
    """Why a certificate does not cover a launch; None when it does. `transports` are those of the wires in use."""
    if certificate.fingerprint != fingerprint:
        return f"it is for table {certificate.fingerprint[:12]}, not {fingerprint[:12]}"
    if ranks < 1:
        return f"ranks = {ranks}; it covers 1 or more"
    if slots < ranks:
        return f"slots = {slots} is below ranks = {ranks}; it covers as many or more"
    if ranks == 1:
        return None  # no wires
    for channel, transport in transports.items():
        proved = certificate.transports.get(channel)
        if proved is None:
            return f"it knows no channel {channel!r}"
        if not _includes(proved, transport):
            return f"channel {channel!r} is {transport.name}; it covers {proved.name}"
    missing = [channel for channel in certificate.transports if channel not in transports]
    return f"no transport is given for channel {missing[0]!r}" if missing else None


def _includes(proved: Transport, used: Transport) -> bool:
    """More messages that complete without a receiver only take waits away, from one on."""
    if proved == used:
        return True
    return (
        proved.kind == used.kind
        and proved.kind in ("credits", "stream_ordered")
        and 1 <= proved.credits <= used.credits
    )


def find(
    certificates: tuple[Certificate, ...],
    protocol: Protocol,
    ranks: int,
    slots: int,
    transports: Mapping[str, Transport],
) -> Certificate:
    """The first certificate that covers a launch of this table; if none does, raises `SpecError` with their reasons."""
    what = f"no certificate covers table {protocol.name!r} {protocol.fingerprint[:12]}"
    candidates = [certificate for certificate in certificates if certificate.fingerprint == protocol.fingerprint]
    if not candidates:
        raise SpecError(f"{what}: none is for this fingerprint")
    reasons = []
    for certificate in candidates:
        reason = covers(certificate, protocol.fingerprint, ranks, slots, transports)
        if reason is None:
            return certificate
        reasons.append(f"{certificate.table} ({certificate.contract}): {reason}")
    raise SpecError(f"{what}: {'; '.join(dict.fromkeys(reasons))}")


# --- checking one without the prover -----------------------------------------------------------------------


def obligations(protocol: Protocol) -> tuple[str, ...]:
    """The names of the obligations of a table, apart from the potential."""
    pairs = neighbours(protocol)
    followers = {role.name: None for role in protocol.roles if role.place in ("middle", "last")} if pairs else {}
    return (
        *(f"{what}: {role.name}" for role in protocol.roles for what in ("well-formed", "of use")),
        *(f"matched: {pair.source.name} to {pair.sink.name}" for pair in pairs),
        *(f"settled: {name}" for name in followers),
        "progress",
    )


def problems(certificate: Certificate, protocol: Protocol) -> Iterator[str]:
    """What is wrong with a certificate of this table; nothing when all of it can be confirmed.

    The obligations on guards are named, not proved again: for small instances `spec.wellformed` enumerates them.
    """
    if certificate.fingerprint != protocol.fingerprint:
        yield f"it is for table {certificate.fingerprint[:12]}, not {protocol.fingerprint[:12]} ({protocol.name})"
        return
    for name in obligations(protocol):
        if name not in certificate.proved:
            yield f"obligation {name!r} is not among those proved"
    try:
        order = ordering(protocol, certificate.transports)
        waits = order.waits
    except SpecError as error:
        yield str(error)
        return
    yield from certificate.potential.faults(waits, MOST_RANKS)
    for ranks in range(2, MOST_RANKS + 1):
        for channel, bound in in_flight(order, ranks, ranks).items():
            if channel not in certificate.bounds or certificate.bounds[channel] != bound:
                stated = certificate.bounds.get(channel)
                yield f"channel {channel!r} can hold {bound} messages for P={ranks}, not {stated}"
        if lead(order, ranks, ranks) != certificate.lead:
            yield f"a rank can lead by {lead(order, ranks, ranks)} passes for P={ranks}, not {certificate.lead}"
