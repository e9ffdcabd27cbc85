"""Transformer layers, and the chunks of layers of a stage."""

from collections.abc import Callable

from torch import Tensor, nn

from models.memory.shapes import ExpertShapes, LocalShapes
from models.memory.stand_ins import DTYPES, apply
from models.memory.transformer.attention import Attention
from models.memory.transformer.ends import Embeddings, Head
from models.memory.transformer.experts import Experts
from models.memory.transformer.feed_forward import FeedForward
from models.memory.transformer.operations import DropoutAdd, Norm, Part, Recompute
from pipette_opt.specs import ModelSpec, TrainingSpec


class Layer(Part):
    """One transformer layer: norm, attention, residual; norm, MLP or experts, residual."""

    def __init__(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        shapes: LocalShapes,
        selective: bool,
        experts: ExpertShapes | None = None,
    ) -> None:
        super().__init__()
        dtype = DTYPES[training.precision]
        self.dropout = model.hidden_dropout > 0
        self.attention_norm = Norm(model, dtype)
        self.attention = Attention(model, training, shapes, selective)
        self.feed_forward_norm = Norm(model, dtype)
        self.feed_forward: nn.Module
        if experts is None:
            self.feed_forward = FeedForward(model, training, shapes, shapes.up, shapes.down)
        else:
            self.feed_forward = Experts(model, training, shapes, experts)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer for one micro-batch."""
        x = apply(DropoutAdd, self.attention(self.attention_norm(x)), x, self.dropout)
        return apply(DropoutAdd, self.feed_forward(self.feed_forward_norm(x)), x, self.dropout)


class Chunk(nn.Module):
    """
    Consecutive layers of one stage, with the embeddings before the model's first layer and the head after its last.

    Parameters
    ----------
    recomputed
        Number of recomputed layers, counted from the first.
    at_once
        Layers that one recomputation restores.
    """

    def __init__(
        self, layers: list[Layer], embeddings: Embeddings | None, head: Head | None, recomputed: int, at_once: int
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.embeddings, self.head = embeddings, head
        self.recomputed, self.at_once = recomputed, at_once

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the chunk for one micro-batch: activations, or the loss."""
        if self.embeddings is not None:
            x = self.embeddings(x)
        layers = list(self.layers)
        for start in range(0, self.recomputed, max(self.at_once, 1)):
            x = apply(Recompute, _in_turn(layers[start : min(start + self.at_once, self.recomputed)]), x)
        for layer in layers[self.recomputed :]:
            x = layer(x)
        return x if self.head is None else self.head(x)


def _in_turn(layers: list[nn.Module]) -> Callable[[Tensor], Tensor]:
    """Return a function that applies the layers one after the other."""

    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return run
