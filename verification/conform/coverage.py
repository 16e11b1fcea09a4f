"""Which rows of a table, and which outcomes of their choices, some traces executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headway.spec.language import Bool, Domain, Enum
from headway.spec.table import Local, Protocol, Receive
from headway.verification.conform.known import field_domains
from headway.verification.conform.trace import RankTrace


@dataclass(frozen=True, order=True)
class Item:
    """A row of a role, or one value that its operation may obtain. A guard's outcomes are the rows of its location."""

    role: str
    row: str
    outcome: str = ""

    def words(self) -> str:
        """In a few words."""
        return f"role {self.role}, row {self.row!r}" + (f", {self.outcome}" if self.outcome else "")


def items(protocol: Protocol) -> tuple[Item, ...]:
    """Everything there is to cover, in the table's order."""
    found = []
    for role in protocol.roles:
        for row in role.rows:
            found.append(Item(role.name, row.name))
            if isinstance(row.operation, Local | Receive):
                domains = field_domains(protocol, row)
                found += [Item(role.name, row.name, text) for name, d in domains for _, text in _outcomes(name, d)]
    return tuple(found)


def _outcomes(name: str, domain: Domain) -> list[tuple[int, str]]:
    """The recorded integer and the words of each value of a small domain."""
    if isinstance(domain, Bool):
        return [(0, f"{name} = false"), (1, f"{name} = true")]
    return [(code, f"{name} = {value}") for code, value in enumerate(domain.names)] if isinstance(domain, Enum) else []


def covered(protocol: Protocol, traces: Iterable[RankTrace]) -> Counter[Item]:
    """How often each item was executed."""
    counts: Counter[Item] = Counter()
    for trace in traces:
        per_row = np.bincount(trace.rows, minlength=len(trace.role.rows))
        for index, row in enumerate(trace.role.rows):
            if not per_row[index]:
                continue
            counts[Item(trace.role.name, row.name)] += int(per_row[index])
            if not isinstance(row.operation, Local | Receive):
                continue
            values = trace.fields[(trace.rows == index) & trace.done]
            for position, (name, domain) in enumerate(field_domains(protocol, row)):
                for code, text in _outcomes(name, domain):
                    counts[Item(trace.role.name, row.name, text)] += int((values[:, position] == code).sum())
    return counts
