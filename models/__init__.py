"""Decoder families, their partition into pipeline stages, and the loading of weights and tokenizers.

A model is opened by name (`open_checkpoint`), split over the ranks (`partition`), and each rank loads its `Stage`.
"""

from headway.models.checkpoint import Checkpoint
from headway.models.config import ModelConfig
from headway.models.decoder import Stage, StageBatch
from headway.models.errors import ModelError
from headway.models.kv_cache import KvCache, allocate_kv_cache, kv_bytes_per_page
from headway.models.partition import StageSpan, partition
from headway.models.sources import SMOLLM2, open_checkpoint
from headway.models.tokenizer import ChatTemplateError, Detokenizer, Tokenizer

__all__ = [
    "SMOLLM2",
    "ChatTemplateError",
    "Checkpoint",
    "Detokenizer",
    "KvCache",
    "ModelConfig",
    "ModelError",
    "Stage",
    "StageBatch",
    "StageSpan",
    "Tokenizer",
    "allocate_kv_cache",
    "kv_bytes_per_page",
    "open_checkpoint",
    "partition",
]
