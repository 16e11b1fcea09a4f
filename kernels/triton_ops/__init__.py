"""The Triton kernels, each with the function that launches it. They run on CUDA, and on the CPU where the environment
variable TRITON_INTERPRET is 1 before this folder is first imported. Last dimensions must be contiguous."""

from headway.kernels.triton_ops.attention import BLOCK, JOIN, TILE, paged_attention
from headway.kernels.triton_ops.elementwise import embed, silu_mul
from headway.kernels.triton_ops.matrix import skinny_linear
from headway.kernels.triton_ops.norms import add_rms_norm, rms_norm
from headway.kernels.triton_ops.rotary import rope_write
from headway.kernels.triton_ops.sampling import sample

__all__ = [
    "BLOCK",
    "JOIN",
    "TILE",
    "add_rms_norm",
    "embed",
    "paged_attention",
    "rms_norm",
    "rope_write",
    "sample",
    "silu_mul",
    "skinny_linear",
]
