"""Stand-ins for fused kernels: outputs of equal size, and the tensors that the kernels keep for the backward pass."""
# ruff: noqa: D102 (forward and backward are names of torch)

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""torch type of each precision."""


def apply(function: Any, *inputs: Any) -> Tensor:
    """Return the output of an autograd function with a type; torch leaves ``Function.apply`` untyped."""
    out: Tensor = function.apply(*inputs)
    return out


class Normalise(Function):
    """Stand-in for a norm over ``width`` channels: keeps input and fp32 statistics (LayerNorm 2, RMSNorm 1 each)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int, num_statistics: int) -> Tensor:
        statistics = torch.empty(num_statistics, x.numel() // width, dtype=torch.float32)
        ctx.save_for_backward(x, statistics)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return torch.empty_like(grads[0]), None, None
