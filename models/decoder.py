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
        kernels, eps = self.kernels, self.config.rms_eps
        residual = self._input(batch, hidden)
        delta: Tensor | None = None  # what the last block adds to the residual, kept apart for the fused add and norm
        for layer, keys, values in zip(self.weights.layers, cache.keys, cache.values, strict=True):
            if delta is None:
                x = kernels.rms_norm(residual, layer.input_norm, eps)
            else:
                x, residual = kernels.add_rms_norm(delta, residual, layer.input_norm, eps)
            qkv = kernels.linear(x, layer.qkv, layer.qkv_bias)
            queries = kernels.rope_write(
                qkv, batch.positions, self.rotary, batch.write_slots, keys, values, layer.head_norms, eps
            )
            delta = kernels.linear(kernels.attend(queries, keys, values, plan), layer.output)
            x, residual = kernels.add_rms_norm(delta, residual, layer.ffn_norm, eps)
            delta = kernels.linear(kernels.silu_mul(kernels.linear(x, layer.gate_up)), layer.down)
        if delta is None:
            raise ValueError("stage: no layers")
        if self.weights.final_norm is None:
            return residual + delta
        if batch.logit_rows is not None:
            if not len(batch.logit_rows):
                return residual[:0]
            delta, residual = delta.index_select(0, batch.logit_rows), residual.index_select(0, batch.logit_rows)
        return kernels.add_rms_norm(delta, residual, self.weights.final_norm, eps)[0]

    def _input(self, batch: StageBatch, hidden: Tensor | None) -> Tensor:
        if self.weights.embedding is not None:
            if batch.token_ids is None:
                raise ValueError("stage batch: token_ids is None; the first stage needs them")
            return self.kernels.embed(batch.token_ids, self.weights.embedding)
        if hidden is None:
            raise ValueError("stage: hidden is None; all stages but the first need the hidden states")
        return hidden
