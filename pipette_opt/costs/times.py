"""Times of placed configurations in seconds: of a single placement, or of many placements with equal degrees."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, read_only


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTimes:
    """
    Times of every stage of every replica, in seconds, of one placement or of several.

    Shapes are those of one placement; with several, the first axis of every array is the placement.

    Parameters
    ----------
    forward_s, backward_s
        One micro-batch through one model chunk, communication inside layers and recomputation included, shape
        ``(num_chunks, pp, dp)``; one chunk without interleaving.
    tensor_forward_s, tensor_backward_s
        Communication inside layers, included in ``forward_s`` and ``backward_s``; shape ``(num_chunks, pp, dp)``.
    send_forward_s
        Transfer of one micro-batch from stage ``s`` to stage ``(s + 1) % pp``, shape ``(pp, dp)``; only interleaved
        schedules use the last row. Zero if ``pp`` is 1.
    send_backward_s
        Transfer from stage ``(s + 1) % pp`` to stage ``s``, shape ``(pp, dp)``.
    reduction_s
        Gradient reduction of each stage, shape ``(pp,)``; includes the parameter gather of the distributed optimizer
        unless the gather overlaps with the forwards.
    weight_s
        Gradients of weights, included in ``backward_s``, for schedules that split the backward; shape of
        ``backward_s``. ``None``: half of the backward without tensor communication.
    reduction_buckets
        Number of parts of each stage's reduction, shape ``(pp,)``: 0 without overlap. With one chunk, the number of
        equal parts that are reduced as the gradients arrive; with several chunks, one part for each.
    reduction_shares
        Fraction of each chunk in the stage's reduction, shape ``(num_chunks, pp)``; equal by default.
    gather_s
        Parameter gather of each stage, shape ``(pp,)``, if it overlaps with the first forwards.
    ready_s
        Earliest end of a chunk's forwards, by the arrival of its parameters, shape of ``forward_s``.
    first_extra_s, last_extra_s
        Additional time of the first forward, and of the last backward, of each chunk, shape of ``forward_s``: waits for
        parameters, and slowdown by collectives.
    expert_forward_s, expert_backward_s
        Exchange of tokens with experts, included in ``tensor_forward_s`` and ``tensor_backward_s``; the rest is tensor
        and context communication.
    sharded_forward_s, sharded_backward_s
        Gathers and scatters of ZeRO 2 and 3, included in ``forward_s`` and ``backward_s``.
    launch_forward_s, launch_backward_s
        Waits of the GPU for the host's launches, included in ``forward_s`` and ``backward_s``.
    overlap_p2p
        Whether an interleaved schedule with blocking sends continues while it sends, in its steady state.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    tensor_forward_s: FloatArray
    tensor_backward_s: FloatArray
    send_forward_s: FloatArray
    send_backward_s: FloatArray
    reduction_s: FloatArray
    weight_s: FloatArray | None = None
    reduction_buckets: IntArray | None = None
    gather_s: FloatArray | None = None
    ready_s: FloatArray | None = None
    first_extra_s: FloatArray | None = None
    last_extra_s: FloatArray | None = None
    reduction_shares: FloatArray | None = None
    expert_forward_s: FloatArray | None = None
    expert_backward_s: FloatArray | None = None
    sharded_forward_s: FloatArray | None = None
    sharded_backward_s: FloatArray | None = None
    launch_forward_s: FloatArray | None = None
    launch_backward_s: FloatArray | None = None
    overlap_p2p: bool = True


ARRAYS = tuple(part.name for part in fields(StageTimes) if part.default is MISSING)
"""Names of the array fields that every placement has."""

OPTIONAL = tuple(part.name for part in fields(StageTimes) if part.default is None and part.name != "reduction_buckets")
"""Names of the fields of floats that may be ``None``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedTimes(StageTimes):
    """
    Times of a placement, in seconds.

    Parameters
    ----------
    embedding_s
        All-reduce of the word embedding's gradient between the first and the last stage, if both hold it.
    """

    optimizer_s: float
    embedding_s: float = 0.0

    def __post_init__(self) -> None:
        for name in (*ARRAYS, *OPTIONAL):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, read_only(getattr(self, name), np.float64))
        if self.reduction_buckets is not None:
            object.__setattr__(self, "reduction_buckets", read_only(self.reduction_buckets, np.int64))


class MissingLink(NamedTuple):
    """Unmeasured link that a placement uses: name of the group, and the two hosts by index."""

    who: str
    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedBatch(StageTimes):
    """
    :class:`PlacedTimes` of several placements with equal degrees; the first axis of every field is the placement.

    Parameters
    ----------
    missing
        One unmeasured link for each placement that uses one, by index of the placement; its times hold NaN.
    """

    optimizer_s: FloatArray
    embedding_s: FloatArray
    missing: Mapping[int, MissingLink] = field(default_factory=dict)

    @classmethod
    def of(cls, times: PlacedTimes) -> "PlacedBatch":
        """Return the times of a single placement as a batch."""
        names = (*ARRAYS, *OPTIONAL, "reduction_buckets")
        arrays: dict[str, Any] = {
            name: None if (array := getattr(times, name)) is None else np.asarray(array)[None] for name in names
        }
        return cls(
            optimizer_s=np.array([times.optimizer_s]),
            embedding_s=np.array([times.embedding_s]),
            overlap_p2p=times.overlap_p2p,
            **arrays,
        )

    @property
    def size(self) -> int:
        """Number of placements."""
        return len(self.optimizer_s)

    def one(self, index: int) -> PlacedTimes:
        """Return the times of placement ``index``."""
        names = (*ARRAYS, *OPTIONAL, "reduction_buckets")
        arrays: dict[str, Any] = {
            name: None if (all_ := getattr(self, name)) is None else all_[index] for name in names
        }
        return PlacedTimes(
            optimizer_s=float(self.optimizer_s[index]),
            embedding_s=float(self.embedding_s[index]),
            overlap_p2p=self.overlap_p2p,
            **arrays,
        )

    def some(self, rows: IntArray) -> "PlacedBatch":
        """Return the batch of the placements with these indices."""
        names = (*ARRAYS, *OPTIONAL, "optimizer_s", "embedding_s", "reduction_buckets")
        kept: dict[str, Any] = {name: None if (all_ := getattr(self, name)) is None else all_[rows] for name in names}
        back = {int(row): index for index, row in enumerate(rows)}
        return PlacedBatch(
            **kept,
            overlap_p2p=self.overlap_p2p,
            missing={back[row]: link for row, link in self.missing.items() if row in back},
        )
