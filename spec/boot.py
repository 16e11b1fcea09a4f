"""The boot table: in which order neighbours connect their wires, before the first pass of any other table.

What connects two ranks may be a rendezvous (a communicator is made by both at once), so the order must be safe when
every post is one: each rank connects to the one before it, then to the one after it. The least capacity of all ranks
travels along and closes the ring, so rank 0 plans with what every rank has, and once it has it every rank is connected.
"""

from __future__ import annotations

from headway.spec.serving import Steps
from headway.spec.table import Await, Channel, Local, Post, Protocol, Receive, Role

CHANNELS = (
    Channel(
        "connect",
        "forward",
        "tensor",
        fields=(),
        payload="offer",
        doc="joins two neighbours' tensor wires; carries what the receiver must map of the sender's memory",
    ),
    Channel(
        "ready",
        "closing",
        "control",
        fields=(),
        payload="capacity",
        doc="every rank is connected; the least capacity of them",
    ),
)


def _connect_upstream(steps: Steps) -> None:
    steps.do("receive connect", Receive("connect"))
    steps.do("accept", Local("accept", ("offer",)))


def _connect_downstream(steps: Steps) -> None:
    steps.do("offer", Local("offer", (), ("offer",)))
    steps.do("post connect", Post("connect", ()))
    steps.do("settle connect", Await("connect"))


def boot_table() -> Protocol:
    """The boot table."""
    solo, first, middle, last = Steps(), Steps(), Steps(), Steps()
    solo.do("alone", None)
    _connect_downstream(first)
    first.do("receive ready", Receive("ready"))
    first.do("adopt", Local("adopt", ("capacity",)))
    _connect_upstream(middle)
    _connect_downstream(middle)
    _connect_upstream(last)
    last.do("sum up", Local("sum_up", (), ("capacity",)))
    last.do("post ready", Post("ready", ()))
    last.do("settle ready", Await("ready"))
    roles = (
        Role("solo", "solo", (), solo.rows("end"), "alone"),
        Role("first", "first", (), first.rows("end"), "offer"),
        Role("middle", "middle", (), middle.rows("end"), "receive connect"),
        Role("last", "last", (), last.rows("end"), "receive connect"),
    )
    return Protocol("boot", CHANNELS, ("offer", "capacity"), roles, __doc__ or "")
