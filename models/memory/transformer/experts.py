"""Layers with experts: router, dispatch, grouped products, combination."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from models.memory.shapes import ExpertShapes, LocalShapes
from models.memory.stand_ins import DTYPES, apply
from models.memory.transformer.feed_forward import FeedForward
from models.memory.transformer.operations import Part
from pipette_opt.specs import ModelSpec, TrainingSpec


class _Route(Function):
    """
    Router: fp32 logits, scores and chosen experts of every token (``TopKRouter`` with a balancing loss).

    Keeps its input, the fp32 scores of all experts for the balancing loss, and the weights and ids of the chosen
    experts.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, experts: int, topk: int) -> Tensor:
        tokens = x.shape[0]
        logits = torch.empty(tokens, experts, dtype=torch.float32)
        scores = torch.empty_like(logits)
        chosen = torch.empty(tokens, topk, dtype=torch.float32)
        ctx.save_for_backward(x, scores, chosen, torch.empty(tokens, topk, dtype=torch.int64))
        return torch.empty_like(logits)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, scores, _, _ = ctx.saved_tensors
        work = [torch.empty_like(scores), torch.empty_like(scores)]
        grad = torch.empty_like(x)
        del work
        return grad, None, None


class _Move(Function):
    """
    Move of token rows to other ranks or places: ``rows`` rows after the forward pass, the input's rows after the
    backward.

    Models permutations (Transformer Engine's fused ones), all-to-all, gathering and scattering over the ranks of an
    expert. Keeps the int32 map of a permutation, ``map_width`` numbers per token of the side with fewer rows.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int, map_rows: int, map_width: int) -> Tensor:
        ctx.rows = x.shape[0]
        if map_rows:
            ctx.save_for_backward(torch.empty(map_rows, map_width, dtype=torch.int32))
        return x.new_empty(rows, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return grad.new_empty(ctx.rows, *grad.shape[1:]), None, None, None


class _Pick(Function):
    """Weight of each routed token, selected from the weights of all experts; keeps nothing."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, rows: int) -> Tensor:
        ctx.shape = weights.shape
        return weights.new_empty(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0].new_empty(ctx.shape), None


class _Grouped(Function):
    """Products of all local experts in one call (``TEGroupedLinear``); keeps its input, in fp8 a copy of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int, fp8: bool) -> Tensor:
        ctx.save_for_backward(torch.empty_like(x, dtype=torch.uint8) if fp8 else x)
        ctx.dtype, ctx.fp8 = x.dtype, fp8
        return x.new_empty(x.shape[0], width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        (x,) = ctx.saved_tensors
        if ctx.fp8:
            grad = grad.new_empty(grad.shape[0], 2 * grad.shape[1], dtype=torch.uint8)
        return x.new_empty(x.shape, dtype=ctx.dtype), None, None


class _Sum(Function):
    """In-place sum of two tensors; keeps nothing, and both inputs get the same gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], grads[0]


class _WeightedActivation(Function):
    """Fused SwiGLU or GELU times the router's weight; keeps input and weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, width: int) -> Tensor:
        ctx.save_for_backward(x, weights)
        return x.new_empty(x.shape[0], width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weights = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weights), None


class Experts(Part):
    """
    Router, dispatch, experts and combination: Megatron-Core's ``MoELayer`` with the all-to-all dispatcher.

    Tokens are routed evenly and none is dropped. The steps are those of ``MoEAlltoAllTokenDispatcher`` and
    ``TEGroupedMLP`` (megatron-core 0.16.1) with fused permutations and a weighted fused activation.
    """

    def __init__(self, model: ModelSpec, training: TrainingSpec, shapes: LocalShapes, sizes: ExpertShapes) -> None:
        super().__init__()
        dtype = DTYPES[training.precision]
        self.shapes, self.sizes, self.fp8 = shapes, sizes, training.fp8
        self.router_weight = self.weight(sizes.num_experts, shapes.hidden, dtype=dtype)
        self.up_weights = nn.ParameterList(
            self.weight(shapes.hidden, sizes.up, dtype=dtype) for _ in range(sizes.local)
        )
        self.down_weights = nn.ParameterList(
            self.weight(sizes.down, shapes.hidden, dtype=dtype) for _ in range(sizes.local)
        )
        self.shared = None
        if sizes.shared_down:
            self.shared = FeedForward(model, training, shapes, sizes.shared_up, sizes.shared_down)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the experts for one micro-batch."""
        sizes = self.sizes
        shared = None if self.shared is None else self.shared(x)
        tokens, routed = x.shape[0], x.shape[0] * sizes.topk
        weights = apply(_Route, x, sizes.num_experts, sizes.topk)
        chosen = apply(_Pick, weights, routed)
        moved = apply(_Move, x, routed, tokens, 2 * sizes.num_experts + 1)
        del weights
        for rows in self._journey(routed):
            moved, chosen = apply(_Move, moved, rows, 0, 0), apply(_Move, chosen, rows, 0, 0)
        up = apply(_Grouped, moved, sizes.up, self.fp8)
        del moved
        down = apply(_WeightedActivation, up, chosen, sizes.down)
        del up, chosen
        out = apply(_Grouped, down, self.shapes.hidden, self.fp8)
        del down
        for rows in self._way_back(routed):
            out = apply(_Move, out, rows, 0, 0)
        out = apply(_Move, out, tokens, 0, 0)
        return out if shared is None else apply(_Sum, out, shared)

    def _journey(self, routed: int) -> list[int]:
        """Return the number of rows after each step from the permuted tokens to the experts."""
        sizes = self.sizes
        rows = [routed] if sizes.ranks > 1 else []
        if sizes.tensor > 1:
            rows.append(routed * sizes.tensor)
        if sizes.local > 1:
            rows.append(routed * sizes.tensor)
        return rows

    def _way_back(self, routed: int) -> list[int]:
        """Return the number of rows after each step from the experts back to the permuted tokens."""
        sizes = self.sizes
        rows = [routed * sizes.tensor] if sizes.local > 1 else []
        if sizes.tensor > 1:
            rows.append(routed)
        if sizes.ranks > 1:
            rows.append(routed)
        return rows
