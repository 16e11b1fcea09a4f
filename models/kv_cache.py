"""The paged key/value cache of one stage."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.models.config import ModelConfig


@dataclass(frozen=True)
class KvCache:
    """Keys and values, one tensor [pages, page_size, kv_heads, head_dim] for each layer of the stage."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    page_size: int


def kv_bytes_per_page(config: ModelConfig, layers: int, page_size: int, dtype: torch.dtype) -> int:
    """Bytes that one page takes on a rank that holds `layers` layers."""
    return 2 * layers * page_size * config.kv_heads * config.head_dim * dtype.itemsize


def allocate_kv_cache(
    config: ModelConfig,
    layers: int,
    pages: int,
    page_size: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> KvCache:
    """A cache of `pages` pages of `page_size` tokens. Zeros, because masked keys still meet a zero weight."""
    if pages < 1 or page_size < 1:
        raise ValueError(f"KV cache: {pages} pages of {page_size} tokens; both must be at least 1")
    shape = (pages, page_size, config.kv_heads, config.head_dim)
    keys, values = (tuple(_zeros(shape, dtype, torch.device(device)) for _ in range(layers)) for _ in range(2))
    return KvCache(keys, values, page_size)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Memory that the kernel zeroes when a page of it is first touched: a pool costs nothing until it is used.
    return torch.frombuffer(mmap.mmap(-1, math.prod(shape) * dtype.itemsize), dtype=dtype).view(shape)
