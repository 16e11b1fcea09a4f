"""Runs one stage of the model on its device, a pass ahead of the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from headway.engine.scheduling import Limits, Member
from headway.engine.workers.graphs import (
    Capture,
    DecodeGraph,
    StaticBuffers,
    decode_graphs,
)
from headway.engine.workers.layout import Int64s, Layout, lay_out
from headway.engine.workers.pieces import Pieces, PromptGraph, prompt_graphs
from headway.kernels import AttentionPlan, Kernels, SamplingBatch
from headway.kernels.staging import Staging
from headway.models import KvCache, Stage, StageBatch


@dataclass(frozen=True)
class Work:
    """A pass of `rows` tokens made ready: on the device, once what was enqueued is done. `samplers`: the requests that
    sample, in order; `logit_rows`: their tokens, None for all. It runs in a `decode` graph, in a `prompt` graph with
    `plan`, or else with `batch` and `plan`."""

    rows: int
    samplers: list[int]
    sampling: SamplingBatch
    logit_rows: Tensor | None
    decode: DecodeGraph | None = None
    prompt: PromptGraph | None = None
    batch: StageBatch | None = None
    plan: AttentionPlan | None = None


class Mark(Protocol):
    """A point in the device's work; a `torch.cuda.Event`."""

    def record(self) -> object:
        """Here."""

    def synchronize(self) -> object:
        """Wait until the device has come here."""


class _Reached:
    """The mark of a device that works while it is told to."""

    def record(self) -> None:
        """Here."""

    def synchronize(self) -> None:
        """No wait."""


@dataclass(frozen=True)
class _Outbox:
    """Where the tokens of one pass arrive in host memory, and when."""

    tokens: Tensor
    arrived: Mark


class Worker:
    """One stage with its KV cache. Knows neither rank nor pass.

    Inputs of a pass travel in one copy to static buffers on the device, in stream order: `prepare` may be called before
    the passes before it have run. Sampled tokens stay on the device, where the next pass may read them; a copy goes to
    the host. `collect` is the only call that waits for the device.
    """

    def __init__(
        self,
        stage: Stage,
        cache: KvCache,
        kernels: Kernels,
        limits: Limits,
        decode_sizes: Sequence[int] = (),
        prompt_sizes: Sequence[int] = (),
    ) -> None:
        """Captures graphs of decodes, and of passes with prompts, of these numbers of tokens; overwrites page 0."""
        self._stage, self._cache, self._kernels = stage, cache, kernels
        self._first_stage, self._last_stage, device = stage.span.first, stage.span.last, stage.device
        rows, tokens = limits.max_batch_rows, limits.max_batch_tokens
        # Four words a token and six a row; then, past what is copied, the tokens sampled last.
        self._inputs = 4 * tokens + 6 * rows
        self._words = torch.zeros(self._inputs + rows, dtype=torch.int64, device=device)
        self._sampled = self._words[self._inputs :]
        self._last: dict[int, int] = {}  # request -> where in `_sampled` its last token is
        none = [0] * rows
        self._greedy = SamplingBatch.of(none, none, none, none, none, device)
        pinned = device.type == "cuda"
        self._staging = Staging(device)
        self._free = [
            _Outbox(
                torch.empty(rows, dtype=torch.int64, pin_memory=pinned),
                torch.cuda.Event() if pinned else _Reached(),  # type: ignore[no-untyped-call]
            )
            for _ in range(limits.slots + limits.ahead + 1)
        ]
        self._launched: deque[tuple[_Outbox, int]] = deque()
        most = max([0, *decode_sizes, *prompt_sizes])
        pages = min(limits.pages_for(limits.max_context), len(cache.keys[0]))
        with torch.inference_mode():
            self._buffers = StaticBuffers(stage, self._words, most)
            capture, pieces = Capture(device), Pieces(stage, cache, self._buffers, most)
            self._prompts = prompt_graphs(prompt_sizes, pieces, capture)
            self._decodes = decode_graphs(
                decode_sizes, stage, cache, pages, self._buffers, self._choose_greedily, capture
            )

    @torch.inference_mode()
    def prepare(self, members: Sequence[Member], tokens: Sequence[Sequence[int]]) -> Work:
        """Lay out a batch. `tokens`: input token ids, one list a member, empty where the worker knows the token; none
        at all where the stage does not embed."""
        layout = lay_out(members, self._cache.page_size)
        count = layout.tokens
        decode = self._decodes.fitting(count) if layout.decodes else None
        prompt = self._prompts.fitting(count) if decode is None else None
        held = decode or prompt
        length = held.size if held else count
        samplers = [members[row] for row in layout.samplers] if self._last_stage else []
        every = not self._last_stage or len(samplers) == count
        random = any(member.sampling.temperature > 0 for member in samplers)
        words = length * (4 if self._first_stage else 2) + len(samplers) * ((not every) + 5 * random)
        with self._staging.buffer(8 * words) as memory:
            host = memory[: 8 * words].view(torch.int64)
            packer = _Packer(host.numpy(), self._words)
            packer.put(layout.positions, length)
            packer.put(layout.write_slots, length, -1)
            if self._first_stage:
                self._put_ids(packer, members, tokens, layout, length)
            logit_rows = None if every else packer.on_device(packer.put(layout.logit_rows, len(samplers)))
            sampling = _put_sampling(packer, samplers) if random else self._greedy
            self._words[:words].copy_(host, non_blocking=True)
        requests = [member.request for member in samplers]
        contexts, tables = torch.from_numpy(layout.context_lengths), torch.from_numpy(layout.block_tables)
        if decode:
            decode.plan.update(contexts, tables)
            return Work(count, requests, sampling, logit_rows, decode=decode)
        device = self._buffers.batch(length)
        starts = torch.from_numpy(layout.query_starts)
        batch = StageBatch(None, device.positions, device.write_slots, starts, contexts, tables, logit_rows)
        plan = self._stage.plan(batch, self._cache.page_size)
        if prompt:
            return Work(count, requests, sampling, logit_rows, prompt=prompt, plan=plan)
        return Work(count, requests, sampling, logit_rows, batch=batch, plan=plan)

    def _put_ids(
        self,
        packer: _Packer,
        members: Sequence[Member],
        tokens: Sequence[Sequence[int]],
        layout: Layout,
        length: int,
    ) -> None:
        """Where in the device's words each input token is, then the tokens that travel; others were sampled last."""
        sources = np.arange(length) + packer.used + length
        ids = np.zeros(length, np.int64)
        unknown = [row for row, member in enumerate(members) if member.from_last]
        known = np.ones(layout.tokens, np.bool_)
        if unknown:
            rows = layout.query_starts[unknown]
            sources[rows] = [self._inputs + self._last[members[row].request] for row in unknown]
            known[rows] = False
        ids[: layout.tokens][known] = np.fromiter([token for part in tokens for token in part], np.int64)
        packer.put(sources, length)
        packer.put(ids, length)

    @torch.inference_mode()
    def forward(self, work: Work, hidden: Tensor | None) -> Tensor:
        """Hidden states [T, hidden] for the next stage; valid until the next pass is prepared or run."""
        return self._run(work, hidden)

    @torch.inference_mode()
    def launch(self, work: Work, hidden: Tensor | None) -> None:
        """Run the stage and sample; `collect` gives the tokens."""
        if not self._free:
            raise RuntimeError(f"{len(self._launched)} passes are launched and not collected; allowed: no more")
        count, outbox = len(work.samplers), self._free.pop()
        if work.decode and work.decode.greedy and work.logit_rows is None and not work.sampling.random:
            self._take(hidden, work.rows)
            work.decode.greedy()
        else:
            rows = self._run(work, hidden)
            if count:
                self._sampled[:count].copy_(self._kernels.sample(self._stage.logits(rows), work.sampling))
        outbox.tokens[:count].copy_(self._sampled[:count], non_blocking=True)
        outbox.arrived.record()
        self._launched.append((outbox, count))
        self._last = {request: index for index, request in enumerate(work.samplers)}

    def _choose_greedily(self, rows: Tensor) -> None:
        self._sampled[: len(rows)].copy_(self._kernels.sample(self._stage.logits(rows), self._greedy))

    def collect(self) -> list[int]:
        """Wait for the oldest launched pass: a token for each member that sampled, in order."""
        outbox, count = self._launched.popleft()
        outbox.arrived.synchronize()
        self._free.append(outbox)
        tokens: list[int] = outbox.tokens[:count].tolist()
        return tokens

    def _run(self, work: Work, hidden: Tensor | None) -> Tensor:
        """What comes out of the layers: for the next stage, or of the rows that sample for the head."""
        if work.decode:
            self._take(hidden, work.rows)
            work.decode.replay()
            output = self._buffers.output[: work.rows]
        elif work.plan is None:
            raise ValueError("work: it has neither a decode graph nor a plan")
        elif work.prompt:
            self._take(hidden, work.rows)
            output = work.prompt.run(work.rows, work.plan)
        elif work.batch:
            batch = work.batch
            if self._first_stage:
                batch = replace(batch, token_ids=self._buffers.batch_with_ids(work.rows).token_ids)
            return self._stage.trunk(batch, self._cache, work.plan, hidden)
        else:
            raise ValueError("work: it has neither a graph nor a batch")
        return output if work.logit_rows is None else output.index_select(0, work.logit_rows)

    def _take(self, hidden: Tensor | None, rows: int) -> None:
        if hidden is not None:
            self._buffers.hidden[:rows].copy_(hidden)


class _Packer:
    """Writes arrays one after another into host words that will be copied to the first words of the device."""

    def __init__(self, host: Int64s, device: Tensor) -> None:
        self._host, self._device = host, device
        self.used = 0

    def put(self, values: Int64s | Sequence[int], length: int, padding: int = 0) -> slice:
        """`values` and padding up to `length`; where they are."""
        begin, self.used = self.used, self.used + length
        self._host[begin : begin + len(values)] = values
        self._host[begin + len(values) : self.used] = padding
        return slice(begin, self.used)

    def put_floats(self, values: Sequence[float]) -> slice:
        """The same for float32, in the first half of as many words."""
        begin, self.used = self.used, self.used + len(values)
        self._host[begin : self.used].view(np.float32)[: len(values)] = values
        return slice(begin, self.used)

    def on_device(self, words: slice) -> Tensor:
        """Words as the device will have them."""
        return self._device[words]

    def floats_on_device(self, words: slice) -> Tensor:
        """The floats in them."""
        return self._device[words].view(torch.float32)[: words.stop - words.start]


def _put_sampling(packer: _Packer, members: Sequence[Member]) -> SamplingBatch:
    choices = [member.sampling for member in members]

    def put(values: Sequence[int]) -> Tensor:
        return packer.on_device(packer.put(values, len(values)))

    def put_floats(values: Sequence[float]) -> Tensor:
        return packer.floats_on_device(packer.put_floats(values))

    return SamplingBatch(
        put_floats([choice.temperature for choice in choices]),
        put([choice.top_k for choice in choices]),
        put_floats([choice.top_p for choice in choices]),
        put([(choice.seed + 2**63) % 2**64 - 2**63 for choice in choices]),
        put([member.start + member.count for member in members]),
        random=True,
        filtered=any(choice.temperature > 0 and (choice.top_k > 0 or choice.top_p < 1) for choice in choices),
    )
