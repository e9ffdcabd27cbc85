"""All costs of a configuration on given GPUs, in seconds."""

from dataclasses import dataclass

import numpy as np

from pipette_opt.types import FloatArray, read_only


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedTimes:
    """
    Times of every stage of every replica, in seconds.

    Parameters
    ----------
    forward_s, backward_s
        One micro-batch through one model chunk, tensor communication and recomputation included, shape
        ``(num_chunks, pp, dp)``; one chunk without interleaving.
    tensor_forward_s, tensor_backward_s
        The part of them that is tensor communication, same shape.
    send_forward_s
        Transfer of one micro-batch from stage ``s`` to stage ``(s + 1) % pp``, shape ``(pp, dp)``; the last
        row is used by interleaved schedules only. Zero if ``pp`` is 1.
    send_backward_s
        Transfer from stage ``(s + 1) % pp`` to stage ``s``, same shape.
    reduction_s
        Gradient reduction of each stage (and the parameter gather of the distributed optimizer), shape ``(pp,)``.
    optimizer_s
        Optimizer step.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    tensor_forward_s: FloatArray
    tensor_backward_s: FloatArray
    send_forward_s: FloatArray
    send_backward_s: FloatArray
    reduction_s: FloatArray
    optimizer_s: float

    def __post_init__(self) -> None:
        for name in (
            "forward_s",
            "backward_s",
            "tensor_forward_s",
            "tensor_backward_s",
            "send_forward_s",
            "send_backward_s",
            "reduction_s",
        ):
            object.__setattr__(self, name, read_only(getattr(self, name), np.float64))
