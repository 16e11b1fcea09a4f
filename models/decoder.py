"""The decoder layers of one pipeline rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.kernels import AttentionPlan, AttentionShape, GraphPlan, Kernels
from headway.models.checkpoint import Checkpoint
from headway.models.config import ModelConfig
from headway.models.kv_cache import KvCache
from headway.models.partition import StageSpan
from headway.models.rotary import rotary_table
from headway.models.weights import StageWeights, load_stage_weights


@dataclass(frozen=True)
class StageBatch:
    """One pass: T tokens of B sequences, each a run of consecutive positions, sequence after sequence. All int64.

    On the stage's device: `token_ids` [T], read by the first stage only (None elsewhere), `positions` [T],
    `write_slots` [T], page * page size + offset of each token's key and value, -1 for padding, and `logit_rows` [S],
    the tokens whose logits are wanted, None for all of them. In host memory, for planning: `query_starts` [B + 1],
    `context_lengths` [B], tokens of a sequence after this pass, and `block_tables` [B, N], its pages, padded with any
    valid page.
    """

    token_ids: Tensor | None
    positions: Tensor
    write_slots: Tensor
    query_starts: Tensor
    context_lengths: Tensor
    block_tables: Tensor
    logit_rows: Tensor | None


class Stage:
    """Layers `span` of a model. What it knows of its place in the pipeline is `span.first` and `span.last`."""

    def __init__(
        self,
        config: ModelConfig,
        span: StageSpan,
        weights: StageWeights,
        kernels: Kernels,
        positions: int | None = None,
    ) -> None:
        """`positions` bounds a sequence's length in tokens; the model's context length when None."""
        self.config, self.span, self.weights, self.kernels = config, span, weights, kernels
        norm = weights.layers[0].input_norm
        self.dtype, self.device = norm.dtype, norm.device
        self.rotary = rotary_table(config, positions or config.context_length, self.device)

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        span: StageSpan,
        kernels: Kernels,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        positions: int | None = None,
    ) -> Stage:
        """Read this rank's layers, and nothing else, from `checkpoint`. Raises ModelError."""
        weights = load_stage_weights(checkpoint, span, kernels, dtype, device)
        return cls(checkpoint.config, span, weights, kernels, positions)

    def plan(self, batch: StageBatch, page_size: int) -> AttentionPlan:
        """Prepare attention for `batch`, from its host tensors."""
        shape = self._attention_shape(page_size)
        return self.kernels.plan_attention(batch.query_starts, batch.context_lengths, batch.block_tables, shape)

    def plan_graph(self, batch: int, pages: int, page_size: int) -> GraphPlan:
        """Reserve attention for graphs that decode `batch` sequences of up to `pages` pages each."""
        return self.kernels.plan_graph(batch, pages, self._attention_shape(page_size))

    def _attention_shape(self, page_size: int) -> AttentionShape:
        config = self.config
        return AttentionShape(
            config.heads, config.kv_heads, config.head_dim, page_size, self.dtype, config.sliding_window
        )

    @torch.inference_mode()
    def forward(self, batch: StageBatch, cache: KvCache, hidden: Tensor | None = None) -> Tensor:
        """One pass. Takes `hidden` [T, hidden] from the rank before (ignored by the first stage) and gives the same
        for the next, or from the last stage logits [S, vocabulary] for `batch.logit_rows`. Writes to `cache`, and may
        overwrite `hidden`."""
        return self.compute(batch, cache, self.plan(batch, cache.page_size), hidden)

    @torch.inference_mode()
    def compute(self, batch: StageBatch, cache: KvCache, plan: AttentionPlan, hidden: Tensor | None) -> Tensor:
        """`forward` after planning."""
        rows = self.trunk(batch, cache, plan, hidden)
        return self.logits(rows) if self.span.last else rows

    def logits(self, rows: Tensor) -> Tensor:
        """The head: [S, vocabulary] for what `trunk` gives on the last stage."""
        if self.weights.head is None:
            raise ValueError("stage: no head; only the last stage has one")
        return self.kernels.linear(rows, self.weights.head)

    @torch.inference_mode()
    def trunk(self, batch: StageBatch, cache: KvCache, plan: AttentionPlan, hidden: Tensor | None) -> Tensor:
        """The layers: device work only, no synchronisation, so that they can be captured in a graph.

        Gives [T, hidden] for the next stage, or on the last one the final norm [S, hidden] of `batch.logit_rows`.
        """
        queries, residual = self.enter(batch, cache, hidden)
        for index in range(1, self.span.layers):
            attended = self.attend(index - 1, queries, cache, plan)
            queries, residual = self.between(index, attended, residual, batch, cache)
        attended = self.attend(self.span.layers - 1, queries, cache, plan)
        return self.leave(attended, residual, batch.logit_rows)

    # The pieces of `trunk` around the attention of each layer, counted from 0 in this stage, and that attention.

    def enter(self, batch: StageBatch, cache: KvCache, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """Up to the first attention: its queries [T, H, D], and the residual [T, hidden]."""
        residual = self._input(batch, hidden)
        x = self.kernels.rms_norm(residual, self.weights.layers[0].input_norm, self.config.rms_eps)
        return self._queries(0, x, batch, cache), residual

    def attend(
        self, index: int, queries: Tensor, cache: KvCache, plan: AttentionPlan, out: Tensor | None = None
    ) -> Tensor:
        """The attention of layer `index`: [T, H * D], in `out` if given."""
        return self.kernels.attend(queries, cache.keys[index], cache.values[index], plan, out)

    def between(
        self, index: int, attended: Tensor, residual: Tensor, batch: StageBatch, cache: KvCache
    ) -> tuple[Tensor, Tensor]:
        """From the attention before that of layer `index` to that one: its queries, and the residual."""
        delta, residual = self._feed_forward(index - 1, attended, residual)
        norm = self.weights.layers[index].input_norm
        x, residual = self.kernels.add_rms_norm(delta, residual, norm, self.config.rms_eps)
        return self._queries(index, x, batch, cache), residual

    def leave(self, attended: Tensor, residual: Tensor, rows: Tensor | None) -> Tensor:
        """From the last attention to what `trunk` gives."""
        delta, residual = self._feed_forward(self.span.layers - 1, attended, residual)
        if self.weights.final_norm is None:
            return residual + delta
        if rows is not None:
            if not len(rows):
                return residual[:0]
            delta, residual = delta.index_select(0, rows), residual.index_select(0, rows)
        return self.kernels.add_rms_norm(delta, residual, self.weights.final_norm, self.config.rms_eps)[0]

    def _queries(self, index: int, x: Tensor, batch: StageBatch, cache: KvCache) -> Tensor:
        layer = self.weights.layers[index]
        qkv = self.kernels.linear(x, layer.qkv, layer.qkv_bias)
        return self.kernels.rope_write(
            qkv,
            batch.positions,
            self.rotary,
            batch.write_slots,
            cache.keys[index],
            cache.values[index],
            layer.head_norms,
            self.config.rms_eps,
        )

    def _feed_forward(self, index: int, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """What the block adds to the residual, kept apart for the fused add and norm that follows; the residual."""
        kernels, layer = self.kernels, self.weights.layers[index]
        delta = kernels.linear(attended, layer.output)
        x, residual = kernels.add_rms_norm(delta, residual, layer.ffn_norm, self.config.rms_eps)
        return kernels.linear(kernels.silu_mul(kernels.linear(x, layer.gate_up)), layer.down), residual

    def _input(self, batch: StageBatch, hidden: Tensor | None) -> Tensor:
        if self.weights.embedding is not None:
            if batch.token_ids is None:
                raise ValueError("stage batch: token_ids is None; the first stage needs them")
            return self.kernels.embed(batch.token_ids, self.weights.embedding)
        if hidden is None:
            raise ValueError("stage: hidden is None; all stages but the first need the hidden states")
        return hidden
