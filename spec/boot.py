"""The boot table: in which order neighbours connect their tensor wires, before the first pass of any other table.

What connects two ranks may be a rendezvous (a communicator is made by both at once), so the order must be safe when
every post is one: each rank connects to the one before it, then to the one after it. The closing edge has no tensor
wire.
"""

from __future__ import annotations

from headway.spec.language import TRUE
from headway.spec.table import Await, Channel, Local, Post, Protocol, Receive, Role, Row

_OFFER = Row("offer", "offer", TRUE, Local("offer", (), ("offer",)), "post connect")
_POST = Row("post connect", "post connect", TRUE, Post("connect", ()), "settle connect")
_SETTLE = Row("settle connect", "settle connect", TRUE, Await("connect"), "end")
_RECEIVE = Row("receive connect", "receive connect", TRUE, Receive("connect"), "accept")


def _accept(to: str) -> Row:
    return Row("accept", "accept", TRUE, Local("accept", ("offer",)), to)


def boot_table() -> Protocol:
    """The boot table."""
    connect = Channel(
        "connect",
        "forward",
        "tensor",
        fields=(),
        payload="offer",
        doc="joins two neighbours' tensor wires; carries what the receiver must map of the sender's memory",
    )
    return Protocol(
        "boot",
        (connect,),
        ("offer",),
        (
            Role("solo", "solo", (), (Row("alone", "alone", TRUE, None, "end"),), "alone"),
            Role("first", "first", (), (_OFFER, _POST, _SETTLE), "offer"),
            Role("middle", "middle", (), (_RECEIVE, _accept("offer"), _OFFER, _POST, _SETTLE), "receive connect"),
            Role("last", "last", (), (_RECEIVE, _accept("end")), "receive connect"),
        ),
        __doc__ or "",
    )
