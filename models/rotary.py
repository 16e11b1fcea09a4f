"""Rotary position embeddings as a table (Su et al., https://arxiv.org/abs/2104.09864)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headway.models.config import Llama3Scaling, ModelConfig


def rotary_table(config: ModelConfig, positions: int, device: torch.device | str = "cpu") -> Tensor:
    """[positions, head_dim] float32: the cosines, then the sines, of each position's head_dim / 2 angles."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequency = 1.0 / config.rope_theta**exponent
    if config.rope_scaling is not None:
        frequency = _stretch(frequency, config.rope_scaling)
    if config.rope_divisors:
        frequency = frequency / torch.tensor(config.rope_divisors)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequency
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)


def _stretch(frequency: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1: divide low frequencies by `factor`, keep high ones, and blend linearly between."""
    turns = scaling.original_context * frequency / (2 * math.pi)  # over the original context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequency / scaling.factor + blend * frequency
