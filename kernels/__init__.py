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
FLASHINFER = "0.6.14"  # this version alone, since the backend calls what lies under its public classes


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
    found = _installed("flashinfer-python")
    if found != FLASHINFER or torch.device(device).type != "cuda":
        raise ValueError(
            f"kernels: backend 'flashinfer' needs a CUDA device and flashinfer-python {FLASHINFER}; "
            f"here are {str(device)!r} and {found or 'none'}"
        )
    from headway.kernels.flashinfer_backend import FlashInferKernels

    return FlashInferKernels(device)


def choose_backend(device: torch.device | str) -> tuple[str, str]:
    """The fastest backend that can work on `device`, and why, in a few words."""
    if torch.device(device).type != "cuda":
        return "reference", f"the device is {device}"
    if _installed("triton") is None:
        return "reference", "triton is not installed"
    found = _installed("flashinfer-python")
    if found != FLASHINFER:
        return "triton", f"flashinfer-python {FLASHINFER} is not installed" + (f" but {found}" if found else "")
    return "flashinfer", f"flashinfer-python {found} is installed"


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
