"""The operations that models are made of: methods of a `Kernels` object, whose backend is chosen once, by name."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import torch

from headway.kernels.base import AttentionPlan, AttentionShape, GraphPlan, Kernels, SamplingBatch
from headway.kernels.reference import ReferenceKernels

__all__ = [
    "BACKENDS",
    "AttentionPlan",
    "AttentionShape",
    "GraphPlan",
    "Kernels",
    "SamplingBatch",
    "choose_backend",
    "load_kernels",
]

BACKENDS = ("reference", "triton", "flashinfer")


def load_kernels(name: str, device: torch.device | str = "cpu") -> Kernels:
    """The backend called `name`, one of `BACKENDS`, or what `choose_backend` says for 'auto', working on `device`.

    Raises ValueError for another name, or a backend that cannot work here. Its `name` says which was loaded.
    """
    if name == "auto":
        name, _ = choose_backend(device)
    if name == "reference":
        return ReferenceKernels(device)
    if name not in BACKENDS:
        raise ValueError(f"kernels: no backend {name!r}; allowed: auto, {', '.join(BACKENDS)}")
    # Imported late, since not every machine has their packages.
    if _installed("triton") is None:
        raise ValueError(f"kernels: backend {name!r} needs the package triton, which is not installed")
    if name == "triton":
        from headway.kernels.triton_backend import TritonKernels

        return TritonKernels(device)
    if _installed("flashinfer-python") is None:
        raise ValueError("kernels: backend 'flashinfer' needs the package flashinfer-python, which is not installed")
    from headway.kernels.flashinfer_backend import FlashInferKernels

    return FlashInferKernels(device)


def choose_backend(device: torch.device | str) -> tuple[str, str]:
    """The fastest backend that can work on `device`, and why, in a few words."""
    if torch.device(device).type != "cuda":
        return "reference", f"the device is {device}"
    if _installed("triton") is None:
        return "reference", "triton is not installed"
    if _installed("flashinfer-python") is None:
        return "triton", "flashinfer-python is not installed"
    return "flashinfer", f"flashinfer-python {_installed('flashinfer-python')} is installed"


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
