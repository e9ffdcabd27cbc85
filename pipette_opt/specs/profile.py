"""Measured layer times, which override the roofline."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileKey:
    """What a measured layer time holds for: the kind of GPU, the tensor-parallel size, the micro-batch, the length."""

    gpu: str
    tensor_model_parallel_size: int
    micro_batch_size: int
    seq_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProfile:
    """
    Seconds of one transformer layer of the instance's model, without communication.

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
