"""Which device each rank runs on, what joins two of them, and how ranks share a device's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import torch

Link = Literal["gloo", "pipe", "cuda_ipc", "nccl"]


def place_ranks(device: str, ranks: int, visible: int) -> list[str]:
    """The device of each rank, for `--device`; `visible` is the number of GPUs that this process sees.

    `auto` is `cuda` where there is a GPU, else `cpu`. `cuda` spreads the ranks over the visible GPUs in blocks of
    neighbours, so that as few neighbours as can be are on different GPUs. A list such as `cuda:0,cuda:0,cuda:1` names
    the device of each rank. Raises `ValueError`.
    """
    if device == "auto":
        device = "cuda" if visible else "cpu"
    if device == "cpu":
        return ["cpu"] * ranks
    if device == "cuda":
        if not visible:
            raise ValueError("--device is cuda, but no GPU is visible; allowed here: cpu")
        used = min(visible, ranks)
        return [f"cuda:{rank * used // ranks}" for rank in range(ranks)]
    named = device.split(",")
    for name in named:
        kind, _, index = name.partition(":")
        if kind != "cuda" or not index.isdecimal() or int(index) >= visible:
            raise ValueError(
                f"--device names {name!r}; allowed: auto, cpu, cuda, or a list of cuda:N, N below {visible}"
            )
    if len(named) != ranks:
        raise ValueError(f"--device names {len(named)} devices for {ranks} ranks; allowed: one a rank")
    return [f"cuda:{int(name.partition(':')[2])}" for name in named]


def link_between(source: str, sink: str) -> Link:
    """What carries tensors from a rank on `source` to one on `sink`. Raises `ValueError` for a CPU beside a GPU."""
    kinds = torch.device(source).type, torch.device(sink).type
    if kinds == ("cpu", "cpu"):
        return "gloo"
    if kinds != ("cuda", "cuda"):
        raise ValueError(f"no wire joins {source} and {sink}; allowed: two CPU ranks, or two GPU ranks")
    return "cuda_ipc" if source == sink else "nccl"


def memory_shares(devices: Sequence[str], utilization: float) -> list[float]:
    """The fraction of its device's memory that each rank may use; ranks on one device share `utilization` evenly.

    Raises `ValueError` unless 0 < utilization <= 1.
    """
    if not 0 < utilization <= 1:
        raise ValueError(f"--gpu-memory-utilization is {utilization}; allowed: above 0, at most 1")
    sharing = Counter(devices)
    return [utilization / sharing[device] for device in devices]
