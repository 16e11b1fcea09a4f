"""Block tables as page lists one after another, which is how the attention kernels read them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Int32s = NDArray[np.int32]


def page_lists(context_lengths: Tensor, block_tables: Tensor, page_size: int) -> tuple[Int32s, Int32s]:
    """Where each sequence's list starts [B + 1], and the lists [total], for host tensors [B] and [B, N]."""
    counts = -(-context_lengths.numpy() // page_size)
    tables = block_tables.numpy()
    starts = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts, tables[np.arange(tables.shape[1]) < counts[:, None]].astype(np.int32)
