"""Public reports about pipeline parallelism in other engines, as edits of our tables."""

from __future__ import annotations

from dataclasses import replace

from headway.spec.edits import (
    Edit,
    add_field,
    add_variable,
    at_rank,
    change_channel,
    choose,
    diverge,
    drop_handle,
    drop_step,
    everywhere,
    guard,
    insert,
    move,
    set_effect,
    set_field,
)
from headway.spec.incidents.incident import PASS, Incident, busy, dead, free, mispair, requests
from headway.spec.language import FALSE, TRUE, Bool, Const, Got, Param, Past, ThisPass, Var, ite
from headway.spec.serving import OUTPUT_LAG
from headway.spec.sglang.loop import NOBODY
from headway.spec.table import Collective, Variable
from headway.spec.transports import RENDEZVOUS, credits

SEND_FIRST = move("post output", before="receive output", roles=("middle odd", "last odd"))
DICT = ("proxy", "relay", "output")


UNTYPED = tuple(change_channel(name, lambda c: replace(c, wire=""), f"{name} without a kind") for name in DICT)
"""With transport `credits`, the messages of a pair of ranks still share one wire; nothing says which kind comes."""

HEALTHY = ~Var("warm_up")
WARM_UP: tuple[Edit, ...] = (
    add_variable(Variable("warm_up", Bool(), True, "the first pass: it samples nothing"), roles=("last",)),
    insert("end warm-up", None, (("warm_up", FALSE),), after="post output", roles=("last",)),
)

PYTORCH = (
    Incident(
        "both-send-first",
        "both ranks wait for their send before they post the receive",
        (1,),
        "sglang",
        (SEND_FIRST,),
        dead("post output", "post output", cycle=(0, 1)),
        "pytorch/pytorch#172668",
        busy(),
        ranks=2,
        transports=tuple((name, RENDEZVOUS) for name in DICT),
    ),
    Incident(
        "parity-order",
        "even ranks send first, odd ranks receive first",
        (1,),
        "sglang",
        (),
        PASS,
        "NVIDIA/Megatron-LM, p2p_communication.py: the order that the report's thread points to",
        free(),
        ranks=2,
        transports=tuple((name, RENDEZVOUS) for name in DICT),
    ),
    Incident(
        "fixed-order-of-operations",
        "shapes are exchanged in one fixed order on all of four ranks",
        (1,),
        "sglang",
        (SEND_FIRST,),
        dead("post output", "post output", "post output", "post output", cycle=(0, 1, 2, 3)),
        "NVIDIA/Megatron-LM#5100",
        busy(),
        ranks=4,
        transports=tuple((name, RENDEZVOUS) for name in DICT),
    ),
)

TENSORRT = (
    Incident(
        "send-buffer-collected",
        "the handle and buffer of the hidden states' send are locals, collected before the send is done",
        (4,),
        "serving",
        (drop_handle("proxy"),),
        dead("receive output", "receive hidden states", cycle=(0, 1)),
        "NVIDIA/TensorRT-LLM PR #3688",
        requests(),
        ranks=2,
    ),
    Incident(
        "ranks-schedule-alone",
        "each rank schedules for itself, and rank 1 finds no memory for a batch",
        (6,),
        "sglang",
        (diverge("plan", "no_memory", (("batch", FALSE),), rank=at_rank(1), only=Var("work")),),
        mispair(1, "receive proxy"),
        "NVIDIA/TensorRT-LLM PR #9659",
        busy(2),
        ranks=2,
    ),
    Incident(
        "ended-on-one-rank",
        "a request ends on the last rank while the others still run it",
        (7, 13),
        "serving",
        (diverge("honour", "ended", (("launch", FALSE), ("will_launch", FALSE)), rank=at_rank(2), only=Var("launch")),),
        dead("receive output", "receive chain", "receive chain", cycle=(0, 2, 1)),
        "NVIDIA/TensorRT-LLM PR #7455",
        requests(),
    ),
)

SGLANG = (
    Incident(
        "kinds-told-by-order",
        "hidden states and outputs share a wire and are told apart by their order, and rank 1 declined a batch",
        (10,),
        "sglang",
        (
            *UNTYPED,
            diverge(
                "plan", "declined", (("batch", FALSE),), rank=at_rank(1), only=Var("work") & Past("batch", Const(1))
            ),
        ),
        mispair(1, "receive output"),
        "sgl-project/sglang PR #20341",
        busy(),
        ranks=2,
        transports=tuple((name, credits(0)) for name in DICT),
    ),
    Incident(
        "barrier-before-forward",
        "rank 0 enters a barrier before it forwards the request that makes the others enter it",
        (12, 1),
        "serving",
        (
            add_variable(Variable("save", Bool(), False, "this pass's requests ask for a barrier")),
            add_field("chain", "save", Bool(), Var("save"), "save"),
            choose("learn requests", "asked", TRUE, (("save", Got("asked")),), roles=("first",)),
            insert("barrier", Collective("barrier"), after="learn requests", when=Var("save")),
        ),
        dead("barrier", "receive chain", "receive chain", cycle=(0, 1)),
        "sgl-project/sglang#24687",
        requests(),
    ),
    Incident(
        "time-out-by-own-clock",
        "rank 1 judges a deadline by its own clock and drops the batch without saying so",
        (6,),
        "serving",
        (diverge("honour", "timed_out", (("will_launch", FALSE),), rank=at_rank(1), only=Var("launch")),),
        dead("receive output", "flush decision", "gate hidden states", cycle=(1, 2)),
        "sgl-project/sglang#27221",
        requests(),
    ),
    Incident(
        "abort-sets-differ",
        "ranks 2 and 3 of 4 know of an abort and skip the batch that ranks 0 and 1 launch",
        (6, 2),
        "sglang",
        (
            add_variable(Variable("gone", Bool(), False, "this pass's request was aborted, as far as the chain knows")),
            add_field("chain", "gone", Bool(), Var("gone"), "gone"),
            choose("take requests", "aborted", ~Got("aborted") | Got("work"), (("gone", Got("aborted")),)),
            set_effect("plan", "batch", Var("work") & ~(Var("gone") & ~Param("R").lt(2))),
        ),
        dead("await chain", "await proxy", "receive chain", "receive chain", cycle=(1, 2)),
        "sgl-project/sglang#34572",
        busy(1),
        ranks=4,
    ),
    Incident(
        "grammar-ready-on-one-rank",
        "a grammar is compiled on rank 0 and not yet on rank 1",
        (6,),
        "sglang",
        (
            diverge(
                "plan", "not_ready", (("batch", FALSE), ("digest", Const(NOBODY))), rank=at_rank(1), only=Var("work")
            ),
        ),
        mispair(1, "receive proxy"),
        "sgl-project/sglang#28424",
        busy(),
    ),
    Incident(
        "cache-events-counted-alone",
        "each rank counts its own cache events, so the cached prefix of one request differs",
        (6, 10),
        "sglang",
        (diverge("plan", "other_prefix", (("digest", Const(2)),), rank=at_rank(2), only=Var("work")),),
        mispair(2, "receive proxy"),
        "sgl-project/sglang#22607, PR #27010",
        busy(),
    ),
)

VLLM = (
    Incident(
        "send-lost-in-rebase",
        "the receive of the sampled tokens was kept, their send was lost",
        (3,),
        "serving",
        (drop_step("post output"), drop_step("flush output"), drop_step("settle output")),
        dead("receive output", "receive chain", cycle=(0, 1)),
        "vllm-project/vllm-omni PR #7393",
        requests(),
        ranks=2,
        unchecked=True,
    ),
    Incident(
        "receive-in-warm-up",
        "warm-up samples nothing, so the last rank sends nothing, but rank 0 posts the receive",
        (2,),
        "serving",
        (*WARM_UP, guard("post output", Var("launch") & HEALTHY)),
        dead("receive output", "receive chain", cycle=(0, 1)),
        "vllm-project/vllm PR #56956",
        requests(),
        ranks=2,
    ),
    Incident(
        "token-nobody-needs",
        "each chunk waits for the answer to the last one, so chunks do not overlap; nothing hangs",
        (1,),
        "serving",
        (
            move("post hidden states", before="receive output", roles=("first",)),
            everywhere(
                "collect each output in the pass of its launch", lambda e: Const(0) if e == OUTPUT_LAG else None
            ),
        ),
        PASS,
        "vllm-project/vllm PR #38726: throughput, not a deadlock",
        requests(2, 2),
    ),
    Incident(
        "previous-tokens-expected",
        "the sender sends the new tokens, the receivers expect the previous ones",
        (10,),
        "serving",
        (set_field("post output", "pass", ThisPass() - 1),),
        mispair(0, "receive output"),
        "vllm-project/vllm#49355",
        requests(),
        ranks=2,
    ),
)

MINI = (
    Incident(
        "rows-in-set-order",
        "each rank iterates its own set of requests, so rows come in another order",
        (6, 10),
        "serving",
        (diverge("honour", "reordered", (("digest", ite(Var("digest").eq(0), 1, 0)),), rank=at_rank(1)),),
        mispair(1, "receive hidden states"),
        "sgl-project/mini-sglang PR #113",
        requests(),
        ranks=2,
    ),
)

INCIDENTS = (*PYTORCH, *TENSORRT, *SGLANG, *VLLM, *MINI)
