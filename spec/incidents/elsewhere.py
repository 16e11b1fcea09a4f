"""Reported incidents that are no matter of the protocol table, with the reason, so that none is forgotten."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Elsewhere:
    """An incident that no table expresses. `laws` are the numbers of the laws that it broke; `where` says who looks."""

    source: str
    title: str
    laws: tuple[int, ...]
    reason: str
    where: str


ONE_RANK = "arithmetic or bookkeeping of one rank: no message and no other rank takes part"
DEVICE = "a buffer of the device, which no row names"
WORDS = "no behaviour, only what is recorded or printed"

ELSEWHERE = (
    Elsewhere(
        "fork #795 epoch stamp", "slots restart at a cut-over", (10,), "there is no epoch change yet", "run time"
    ),
    Elsewhere(
        "fork #753 (i), (vi)", "crossings inside a stage; drift across passes", (1,), "layers inside a pass", "none"
    ),
    Elsewhere("fork #796c, #767, #695", "a tensor's truth value; work inside log calls", (14,), WORDS, "lint"),
    Elsewhere(
        "fork #973", "a bounded join of a handle", (8,), "a bound ends a wait, it does not remove its cycle", "watchdog"
    ),
    Elsewhere("fork #1015d", "joins deferred by a lap", (1, 4), "its own comments contradict each other", "none"),
    Elsewhere(
        "fork #968", "one chunk field for all slots", (6, 13), "requests stay in their slot in the table", "engine"
    ),
    Elsewhere("fork #969 L", "an unrun batch is published", (13,), "see slot-publish; the cause is the same", "corpus"),
    Elsewhere(
        "fork #1027 to #1033", "prefilled requests that never decode", (13,), "no mechanism is established", "none"
    ),
    Elsewhere("fork #1157", "a time-out priced on a span not yet known", (15, 5), ONE_RANK, "none"),
    Elsewhere("fork #924", "a state slot released twice", (13,), ONE_RANK, "page pool, run time"),
    Elsewhere("fork #747, #766, #779, #715", "tests and records", (14,), WORDS, "none"),
    Elsewhere("fork #788 trace", "suppression of log lines by local facts", (14,), WORDS, "recorder"),
    Elsewhere("fork #656, #681, #682, #683", "targets that the payer cannot pay", (15,), ONE_RANK, "none"),
    Elsewhere("fork #684", "foreign memory; a recovery target above a reservation", (14, 15, 9), ONE_RANK, "none"),
    Elsewhere("fork corridor latch", "a one-way maximum", (15,), ONE_RANK, "none"),
    Elsewhere(
        "fork #731, #744, #746", "a request in two places; a parked extent", (13, 15), ONE_RANK, "scheduling tests"
    ),
    Elsewhere("fork #677, drain mode", "exit conditions of a layout", (9, 15), "there is one layout", "none"),
    Elsewhere("fork wait_host_release", "a gate that prints what it does not test", (15,), ONE_RANK, "none"),
    Elsewhere("fork fork() role start, Engram", "a field not copied; initialisation order", (13,), ONE_RANK, "none"),
    Elsewhere(
        "TensorRT-LLM PR #10488, Megatron-LM PR #4047", "a buffer reused before its send", (4,), DEVICE, "run time"
    ),
    Elsewhere("vllm-project/vllm PR #54962", "sends not awaited before the next forward", (4,), DEVICE, "run time"),
    Elsewhere(
        "TensorRT-LLM PR #7099", "sends that progress only inside calls", (1,), "no transport of ours does", "none"
    ),
    Elsewhere("sglang#34815, vllm#28270", "bubbles", (), "throughput", "benchmarks"),
    Elsewhere("sglang PR #10214, PR #33666", "pool sizes that differ by stage", (6,), ONE_RANK, "launch check"),
)
