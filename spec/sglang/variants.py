"""Variants of SGLang's loop as edits: orders of the exchange, places of the chain's await, deeper pipelines."""

from __future__ import annotations

from headway.spec.edits import Edit, insert, move
from headway.spec.sglang.loop import batch
from headway.spec.table import Gate

ODD = ("middle odd", "last odd")
EVEN = ("first", "middle even", "last even")

SEND_FIRST = move("post output", before="receive output", roles=ODD)
"""Every rank sends an output before it receives one (the fork, and SGLang before it had a parity order)."""

RECEIVE_FIRST = move("receive output", before="post output", roles=EVEN)
"""Every rank receives an output before it sends one."""

FLUSH_TOP: tuple[Edit, ...] = ()
FLUSH_BEFORE_PROXY = (move("await chain", before="post proxy"),)
FLUSH_END = (move("await chain", after="rotate"),)
FLUSH_AFTER_POST = (move("await chain", after="post chain"),)
"""Where a rank awaits its chain: SGLang's place, and three others."""


def _early(role: str, before: str) -> tuple[Edit, ...]:
    exchange = ("post output", "receive output") if role in EVEN else ("receive output", "post output")
    return tuple(move(at, before=before, roles=(role,)) for at in ("await output", *exchange))


EARLY_ON_VERIFY = tuple(
    change for role in ("first", "middle odd", "middle even") for change in _early(role, "await proxy")
)
"""Ranks but the last exchange outputs before they launch, as on verify rounds of speculative decoding."""

EARLY_EXCHANGE = (
    *EARLY_ON_VERIFY,
    *(change for role in ("last odd", "last even") for change in _early(role, "launch")),
)
"""Every rank exchanges outputs before it launches, as with d > 0."""

GATE_ON_SENT = (insert("gate proxy", Gate("proxy", counter="sent"), before="receive proxy", when=batch),)
GATE_ON_ATTEMPTED = (insert("gate proxy", Gate("proxy"), before="receive proxy", when=batch),)
"""A readiness gate in front of the hidden states, on either counter."""
