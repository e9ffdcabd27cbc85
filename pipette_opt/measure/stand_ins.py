"""Stand-ins for fused kernels: outputs of equal size, and the tensors that the kernels keep for the backward pass."""
# ruff: noqa: D102 (forward and backward are names of torch)

from typing import Any

import torch
from torch import Tensor, nn
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


class NormStandIn(nn.Module):
    """Stand-in for a fused norm, with the constructor that megatron-core calls."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.width, self.statistics = hidden_size, 2 if config.normalization == "LayerNorm" else 1
        self.weight = nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype))
        if self.statistics == 2:
            self.bias = nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return an uninitialised output of the norm's size."""
        return apply(Normalise, x, self.width, self.statistics)


class _FlashAttention(Function):
    """Stand-in for fused attention: keeps query, key, value, output, and one fp32 number per head and token."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        s, b, heads, width = query.shape
        out = query.new_empty(s, b, heads * width)
        sums = torch.empty(b, heads, s, dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query.clone(), key.clone(), value.clone(), out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class AttentionStandIn(nn.Module):
    """Stand-in for fused attention, with the constructor that megatron-core calls."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return an uninitialised output of the attention's size."""
        return apply(_FlashAttention, query, key, value)
