"""Measured layer times, which replace the estimated ones."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileKey:
    """Conditions of a measured layer time: GPU type, tensor-parallel size, micro-batch size and sequence length."""

    gpu: str
    tensor_model_parallel_size: int
    micro_batch_size: int
    seq_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProfile:
    """
    Measured times of one transformer layer of the instance's model, without communication.

    Parameters
    ----------
    layers
        ``(forward_s, backward_s)`` of one layer and one micro-batch, without recomputation.
    """

    layers: Mapping[ProfileKey, tuple[float, float]]

    def __post_init__(self) -> None:
        for key, times in self.layers.items():
            if not min(times) > 0:
                raise ValueError(f"layer times must be > 0, got {times} for {key}.")
