"""Operations that several modules share: products, norms, dropout, recomputation, sending to the next stage."""
# ruff: noqa: D102 (forward and backward are names of torch)

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from models.memory.stand_ins import Normalise, apply
from pipette_opt.specs import ModelSpec


def product(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``x @ weight``, or an empty output of the right size for tensors without data or of unequal dtypes."""
    if x.is_meta or x.dtype != weight.dtype:
        return x.new_empty(x.shape[0], weight.shape[1], dtype=dtype)
    return x @ weight


class FreshGradient:
    """Empty gradient of a weight, given to autograd; that of a weight used twice is kept until the second use."""

    def __init__(self, used_twice: bool) -> None:
        self.used_twice = used_twice
        self.waiting: Tensor | None = None

    def make(self, weight: Tensor) -> None:
        """Allocate the empty gradient of the weight, after its product."""
        gradient = torch.empty_like(weight)
        self.waiting = gradient if self.used_twice else None


class Linear(Function):
    """
    Product ``x @ weight`` of one rank; ``gather`` and ``scatter`` are the ranks of sequence parallelism before and
    after.

    Gathering: the input is one shard of the sequence, gathered for the product and again for the weight gradient; only
    the shard is kept. Scattering: the output is reduced into one shard. In fp8 (Transformer Engine's ``Linear``), an
    fp8 copy of the input is kept in its place. Gathered tensors are fp8, as are two copies of the gradient, by rows and
    by columns.
    ``fresh`` makes the gradient of the weight that autograd gets.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gather: int, scatter: int, fp8: bool, fresh: "FreshGradient | None" = None
    ) -> Tensor:
        kept = torch.empty_like(x, dtype=torch.uint8) if fp8 else x
        ctx.save_for_backward(kept, weight)
        ctx.gather, ctx.scatter, ctx.dtype, ctx.fp8, ctx.fresh = gather, scatter, x.dtype, fp8, fresh
        total = kept if gather == 1 else kept.new_empty(x.shape[0] * gather, x.shape[1])
        out = product(total, weight, x.dtype)
        return out if scatter == 1 else out.new_empty(out.shape[0] // scatter, out.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        if ctx.fp8:
            grad = grad.new_empty(grad.shape[0] * ctx.scatter, 2 * grad.shape[1], dtype=torch.uint8)
        elif ctx.scatter > 1:
            grad = grad.new_empty(grad.shape[0] * ctx.scatter, grad.shape[1])
        if ctx.gather == 1:
            grad_input = product(grad, weight.t(), ctx.dtype)
            if ctx.fresh:
                ctx.fresh.make(weight)
            return grad_input, None, None, None, None, None
        gathered = x.new_empty(x.shape[0] * ctx.gather, x.shape[1])  # for the weight gradient, until the end
        grad_total = product(grad, weight.t(), ctx.dtype)
        grad_shard = torch.empty_like(x, dtype=ctx.dtype)
        if ctx.fresh:
            ctx.fresh.make(weight)
        del gathered, grad_total
        return grad_shard, None, None, None, None, None


class Dropout(Function):
    """Dropout; keeps a mask of one byte per element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (torch.empty_like(grads[0]),)


class DropoutAdd(Function):
    """Fused bias, dropout and residual sum; keeps the dropout mask, if dropout is on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, dropout: bool) -> Tensor:
        ctx.dropout = dropout
        if dropout:
            ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return (torch.empty_like(grad) if ctx.dropout else grad), grad, None


class Recompute(Function):
    """Recomputation: keeps only the inputs of ``run`` and calls it again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return run(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
        with torch.enable_grad():
            out = ctx.run(*inputs)
        torch.autograd.backward((out,), grads)
        return (None, *(tensor.grad for tensor in inputs))


class _Hop(Function):
    """
    Send of a stage's output to the next stage; the gradient must be in ``box`` before the backward pass.

    Models Megatron's freeing of a sent output: an empty tensor remains, which holds the autograd graph.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, box: list[Tensor]) -> Tensor:
        ctx.box = box
        return x.new_empty(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.box.pop(), None


def hop(x: Tensor, box: list[Tensor]) -> Tensor:
    """Send the output of a chunk; return the tensor to call ``backward`` on once ``box`` has the gradient."""
    return apply(_Hop, x, box)


class Part(nn.Module):
    """Base of modules whose weights take no part in autograd."""

    def weight(self, *shape: int, dtype: torch.dtype) -> nn.Parameter:
        """Return an empty weight."""
        return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)


class Norm(Part):
    """LayerNorm or RMSNorm over the hidden size."""

    def __init__(self, model: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.width = model.hidden_size
        self.num_statistics = 2 if model.normalization == "LayerNorm" else 1
        self.scale = self.weight(model.norm_parameters, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised activations of one micro-batch."""
        return apply(Normalise, x, self.width, self.num_statistics)
