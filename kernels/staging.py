"""Copies from the host to static device buffers that nobody waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Staging:
    """A ring of `depth` pinned buffers. The host waits only when it is `depth` uses ahead of the device."""

    def __init__(self, device: torch.device, depth: int = 8) -> None:
        self._pinned = device.type == "cuda"
        self._depth, self._next = depth, 0
        self._buffers: list[Tensor] = [torch.empty(0, dtype=torch.uint8)] * depth
        self._copied: list[torch.cuda.Event | None] = [None] * depth

    @contextmanager
    def buffer(self, size: int) -> Iterator[Tensor]:
        """At least `size` bytes of host memory [>= size] uint8, to fill and to copy from on the current stream
        before the context ends. Its contents are kept until those copies are done."""
        slot = self._next
        self._next = (slot + 1) % self._depth
        copied = self._copied[slot]
        if copied is not None and not copied.query():  # type: ignore[no-untyped-call]
            copied.synchronize()
        if self._buffers[slot].numel() < size:
            grown = max(4096, 1 << (size - 1).bit_length())
            self._buffers[slot] = torch.empty(grown, dtype=torch.uint8, pin_memory=self._pinned)
        yield self._buffers[slot]
        if self._pinned:
            if copied is None:
                copied = self._copied[slot] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()

    def upload(self, target: Tensor, *parts: NDArray[np.integer[Any]]) -> None:
        """Copy `parts` [n], one after another, to the first entries of `target`, contiguous int32, on the current
        stream."""
        count = sum(map(len, parts))
        with self.buffer(4 * count) as memory:
            host = memory[: 4 * count].view(torch.int32)
            np.concatenate(parts, out=host.numpy(), casting="same_kind")
            target[:count].copy_(host, non_blocking=True)
