"""First and last modules of the model: embeddings; final norm, output product and loss."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from models.memory.shapes import LocalShapes
from models.memory.stand_ins import DTYPES, apply
from models.memory.transformer.operations import Dropout, FreshGradient, Linear, Norm, Part
from pipette_opt.specs import ModelSpec, TrainingSpec


class _Embedding(Function):
    """
    Vocabulary-parallel look-up, reduced over the group; keeps the token ids.

    ``anchor`` is an empty tensor that makes autograd call the backward pass. In that pass, the gradient of each whole
    table exists until it is added to the main gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, tokens: Tensor, tables: "nn.ParameterList", shards: int, fresh: FreshGradient
    ) -> Tensor:
        ctx.tables, ctx.shards, ctx.fresh = tables, shards, fresh
        outside = torch.empty_like(tokens, dtype=torch.bool)
        masked = torch.empty_like(tokens)
        ctx.save_for_backward(masked)
        width = tables[0].shape[1]
        found = tables[0].new_empty(tokens.shape[0], width)
        del outside
        out = torch.empty_like(found)  # batch first becomes sequence first
        if len(tables) > 1:
            found = torch.empty_like(out)  # plus positions
            out = torch.empty_like(out)
        return out if shards == 1 else out.new_empty(out.shape[0] // shards, width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        if ctx.shards > 1:
            grad = grad.new_empty(grad.shape[0] * ctx.shards, grad.shape[1])
        ordered = torch.empty_like(grad)
        for table in ctx.tables:
            torch.empty_like(table)
        ctx.fresh.waiting = None
        del ordered
        return None, None, None, None, None


class _CrossEntropy(Function):
    """Vocabulary-parallel cross entropy: an fp32 copy of the logits becomes first the softmax, then the gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        softmax = torch.empty_like(logits, dtype=torch.float32) if logits.dtype != torch.float32 else logits
        loss = torch.empty(logits.shape[0], dtype=torch.float32)
        ctx.save_for_backward(
            softmax, torch.empty_like(loss, dtype=torch.bool), torch.empty_like(loss, dtype=torch.int64)
        )
        ctx.dtype = logits.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        softmax = ctx.saved_tensors[0]
        return (softmax.to(ctx.dtype),)


class Embeddings(Part):
    """Word (and learned position) embeddings of the first stage."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, shapes: LocalShapes) -> None:
        super().__init__()
        dtype = DTYPES[training.precision]
        self.shapes, self.dropout = shapes, model.hidden_dropout > 0
        self.fresh = FreshGradient(used_twice=False)
        self.tables = nn.ParameterList([self.weight(shapes.vocab, shapes.hidden, dtype=dtype)])
        if model.position_embedding_type == "learned_absolute":
            self.tables.append(self.weight(model.max_position_embeddings, shapes.hidden, dtype=dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the activations of one micro-batch from its token ids."""
        anchor = torch.empty(0, requires_grad=True)
        out = apply(_Embedding, anchor, tokens, self.tables, self.shapes.sequence_shards, self.fresh)
        return apply(Dropout, out) if self.dropout else out


class Head(Part):
    """Final norm, output product over this rank's part of the vocabulary, and loss."""

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        shapes: LocalShapes,
        table: Tensor | None,
        fresh: FreshGradient | None,
    ) -> None:
        super().__init__()
        dtype = DTYPES[training.precision]
        self.shapes, self.fresh = shapes, fresh
        self.norm = Norm(model, dtype)
        self.table = self.weight(shapes.vocab, shapes.hidden, dtype=dtype) if table is None else table

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss of one micro-batch."""
        x = self.norm(x)
        logits = apply(Linear, x, self.table.t(), self.shapes.sequence_shards, 1, False, self.fresh)
        return apply(_CrossEntropy, logits).mean()
