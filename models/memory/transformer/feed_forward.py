"""MLP of a transformer layer."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from models.memory.shapes import LocalShapes
from models.memory.stand_ins import DTYPES, apply
from models.memory.transformer.operations import Linear, Part
from pipette_opt.specs import ModelSpec, TrainingSpec


class _Activation(Function):
    """Fused bias and GELU, or SwiGLU if the output is half as wide as the input; keeps the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int) -> Tensor:
        ctx.save_for_backward(x)
        return x.new_empty(x.shape[0], width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        return torch.empty_like(x), None


class FeedForward(Part):
    """
    MLP of one rank: column-parallel product, activation, row-parallel product.

    The widths are parameters, because shared experts are also such an MLP.
    """

    def __init__(self, model: ModelSpec, training: TrainingSpec, shapes: LocalShapes, up: int, down: int) -> None:
        super().__init__()
        dtype = DTYPES[training.precision]
        self.shapes, self.fp8, self.width = shapes, training.fp8, down
        self.up_weight = self.weight(shapes.hidden, up, dtype=dtype)
        self.down_weight = self.weight(down, shapes.hidden, dtype=dtype)
        if model.add_bias_linear:
            self.up_bias = self.weight(up, dtype=dtype)
            self.down_bias = self.weight(shapes.hidden, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the MLP for one micro-batch."""
        up = apply(Linear, x, self.up_weight, self.shapes.sequence_shards, 1, self.fp8)
        down = apply(_Activation, up, self.width)
        del up
        return apply(Linear, down, self.down_weight, 1, self.shapes.sequence_shards, self.fp8)
