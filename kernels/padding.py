"""The rows that fill a decode batch up to the size of a graph."""

from __future__ import annotations

import torch
from torch import Tensor


def pad_decodes(
    batch: int, pages: int, context_lengths: Tensor, block_tables: Tensor, page_size: int
) -> tuple[Tensor, Tensor]:
    """`context_lengths` [b] and `block_tables` [b, N], with rows up to `batch` of one token, on page 0.

    Any page would do, since what a padding row attends to is thrown away. Raises ValueError for more than `batch`
    sequences, or a sequence of more than `pages` pages or than its table has.
    """
    count, width = block_tables.shape
    if count > batch or len(context_lengths) != count:
        raise ValueError(f"graph plan: {len(context_lengths)} contexts, {count} block tables; at most {batch} of each")
    longest = int(context_lengths.max()) if count else 0
    if longest > min(pages, width) * page_size:
        raise ValueError(
            f"graph plan: a context of {longest} tokens; at most {min(pages, width)} pages of {page_size} are reserved"
        )
    if count == batch:
        return context_lengths, block_tables
    contexts = torch.ones(batch, dtype=torch.int64)
    contexts[:count] = context_lengths
    tables = torch.zeros((batch, max(width, 1)), dtype=torch.int64)
    tables[:count, :width] = block_tables
    return contexts, tables
