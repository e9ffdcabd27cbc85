"""Network from features to ``log(peak / formula)``; scaling is a buffer, so one ``state_dict`` holds all of it."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from pipette_opt.memory.features import FEATURE_NAMES


class MemoryNetwork(nn.Module):
    """
    Small MLP over standardised features.

    Hidden units are ``tanh``, so predictions outside the training range level off.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, hidden: Sequence[int] = (24, 24), num_features: int = len(FEATURE_NAMES)) -> None:
        super().__init__()
        sizes = [num_features, *hidden, 1]
        self.register_buffer("mean", torch.zeros(sizes[0], dtype=torch.float64))
        self.register_buffer("scale", torch.ones(sizes[0], dtype=torch.float64))
        self.layers = nn.ModuleList(nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(sizes))

    def set_scaling(self, features: Tensor) -> None:
        """Set the scaling to mean and standard deviation of training features; a constant feature gets scale 1."""
        self.mean.copy_(features.mean(dim=0))
        deviation = features.std(dim=0)
        self.scale.copy_(torch.where(deviation > 1e-9, deviation, 1.0))

    def forward(self, features: Tensor) -> Tensor:
        """Return ``log(peak / formula)`` of each row, shape ``(num_rows,)``."""
        x = (features - self.mean) / self.scale
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        out: Tensor = self.layers[-1](x)
        return out[:, 0]
