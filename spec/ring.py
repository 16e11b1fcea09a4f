"""Ring K: a model of the output ring with blocking channels, small enough that other checkers can count its states.

Rank 0 freely launches a batch in a pass or not; the chain carries which. Hidden states go down the pipeline in the same
pass; an output goes round the ring and reaches every rank P - 1 passes after its launch; the ranks between forward it
one pass later. Channels are bounded FIFOs of K messages: a post waits while its channel is full (`ring_transport`), and
nothing is awaited. No message carries a pass number, so passes are no part of the state, and the search is exhaustive
for endless runs. For P = 4, six checkers that were written apart agree on 404,199 states and 1,336,708 transitions for
K = 1, 2,747,885 and 9,936,286 for K = 2 (189 levels), 8,285,652 and 30,881,752 for K = 3 (225 levels).
"""

from __future__ import annotations

from headway.spec.language import FALSE, TRUE, Bool, Const, Got, Param, Past, Var
from headway.spec.serving import Steps, next_pass
from headway.spec.table import Channel, Local, Place, Post, Protocol, Receive, Role, Variable
from headway.spec.transports import Transport, stream_ordered

_LAUNCH = Variable("launch", Bool(), False, "this pass launches a batch")
_CARRIED = Variable("carried", Bool(), False, "an output received in the last pass is to be forwarded in this one")


def ring_table(K: int = 1) -> Protocol:
    """The ring with channels of K messages; it needs two ranks or more."""
    capacity = Const(K)
    lag = Param("P") - 1
    channels = (
        Channel("chain", "forward", "control", (("launch", Bool()),), capacity=capacity),
        Channel("proxy", "forward", "tensor", (), capacity=capacity),
        Channel("relay", "forward", "control", (), lag=Const(0) - 1, capacity=capacity),
        Channel("output", "closing", "control", (), lag=lag, capacity=capacity),
    )
    return Protocol("ring", channels, (), tuple(_role(place) for place in ("first", "middle", "last")), __doc__ or "")


def ring_transport(K: int = 1) -> Transport:
    """The contract that makes every channel a bounded FIFO."""
    return stream_ordered(K)


def _role(place: Place) -> Role:
    first, last = place == "first", place == "last"
    launch, steps = Var("launch"), Steps()
    take = Local("choose", returns=(("launch", Bool()),)) if first else Receive("chain")
    steps.do("receive chain", take, (("launch", Got("launch")),))
    steps.do("forward chain", None if last else Post("chain", (("launch", launch),), handle="drop"))
    steps.do("receive proxy", None if first else Receive("proxy"), when=TRUE if first else launch)
    if last:
        steps.do("send output", Post("output", (), handle="drop"), when=launch)
    else:
        steps.do("send output", Post("relay", (), handle="drop"), (("carried", FALSE),), when=Var("carried"))
    steps.do(
        "receive output",
        Receive("output" if first else "relay"),
        () if last else (("carried", TRUE),),
        when=Past("launch", Param("P") - 1),
        otherwise=() if last else (("carried", FALSE),),
    )
    steps.do("send proxy", None if last else Post("proxy", (), handle="drop"), when=TRUE if last else launch)
    rows = next_pass(steps.rows("receive chain"), "receive chain")
    return Role(place, place, (_LAUNCH,) if last else (_LAUNCH, _CARRIED), rows, "receive chain")
