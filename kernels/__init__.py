"""The operations that models are made of: methods of a `Kernels` object, whose backend is chosen once, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headway.kernels.base import AttentionPlan, AttentionShape, GraphPlan, Kernels, SamplingBatch
from headway.kernels.reference import ReferenceKernels

__all__ = ["BACKENDS", "AttentionPlan", "AttentionShape", "GraphPlan", "Kernels", "SamplingBatch", "load_kernels"]

BACKENDS: dict[str, Callable[[torch.device | str], Kernels]] = {"reference": ReferenceKernels}


def load_kernels(name: str, device: torch.device | str = "cpu") -> Kernels:
    """The backend called `name`, working on `device`. Raises ValueError for a name that is not in `BACKENDS`."""
    if name not in BACKENDS:
        raise ValueError(f"kernels: no backend {name!r}; allowed: {', '.join(BACKENDS)}")
    return BACKENDS[name](device)
