"""
Pipeline schedules as data: the operations of each stage in order, and the activations that each stage holds.

1F1B orders are those of Megatron-Core 0.16.1, ``core/pipeline_parallel/schedules.py``. A stage runs its warm-up
forwards, then one forward and one backward in turn, then the remaining backwards. Without interleaving stage ``s``
warms up with ``min(pp - s - 1, m)`` forwards; with ``v`` chunks with ``min(2 (pp - s - 1) + (v - 1) pp, m v)``. With
chunks, micro-batches run in groups of ``pp`` through chunk 0, chunk 1, ... (backwards in the reverse order of chunks).
Other orders are in ``simulate/orders.py``. The simulator and the memory prediction both read this object.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray, read_only

FORWARD, BACKWARD, INPUT, WEIGHT = range(4)
"""Kinds of operations: forward, whole backward, and its two halves: gradients of inputs, and of weights."""

LETTERS = "FBIW"
"""Letter of each kind of operation, in the order of ``FORWARD``, ``BACKWARD``, ``INPUT``, ``WEIGHT``."""

Layout = Literal["loop", "vee"]
"""Assignment of layer groups to chunks, see :class:`Schedule`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """
    Operations of each stage in order; every array has shape ``(pp, num_ops)`` unless stated otherwise.

    Parameters
    ----------
    num_microbatches
        ``m``, micro-batches per replica.
    num_chunks
        Model chunks per stage, 1 without interleaving.
    kind
        Kind of each operation: ``FORWARD``, ``BACKWARD``, or the halves ``INPUT`` and ``WEIGHT``.
    num_warmup
        Forwards before forwards and backwards alternate, shape ``(pp,)``; in orders other than 1F1B, forwards before
        the first backward.
    layout
        Assignment of consecutive layer groups to chunks. ``loop``: chunk ``c`` of stage ``s`` has group ``c * pp + s``.
        ``vee``: odd chunks run backwards over the stages, with group ``c * pp + pp - 1 - s``, so that the last stage
        passes its activations to itself.
    group_size
        Micro-batches per group of interleaved 1F1B; ``None`` for ``pp``, and for other orders.
    """

    num_microbatches: int
    num_chunks: int
    kind: IntArray
    microbatch: IntArray
    chunk: IntArray
    num_warmup: IntArray
    layout: Layout = "loop"
    group_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("kind", "microbatch", "chunk", "num_warmup"):
            object.__setattr__(self, name, read_only(getattr(self, name), np.int64))
        if self.kind.ndim != 2 or not self.kind.shape == self.microbatch.shape == self.chunk.shape:
            raise ValueError(
                f"kind, microbatch and chunk must have one shape (pp, num_ops), got {self.kind.shape}, "
                f"{self.microbatch.shape} and {self.chunk.shape}."
            )

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.kind)

    @property
    def backward(self) -> BoolArray:
        """Return whether each operation is a backward or a half of a backward, shape ``(pp, num_ops)``."""
        is_backward: BoolArray = self.kind != FORWARD
        return is_backward

    @property
    def group(self) -> IntArray:
        """Layer group of each operation, shape ``(pp, num_ops)``."""
        return self.group_of(np.arange(self.num_stages)[:, None], self.chunk)

    def group_of(self, stage: IntArray, chunk: IntArray) -> IntArray:
        """Return the layer group of a chunk of a stage; arguments broadcast."""
        back = (chunk % 2 == 1) & (self.layout == "vee")
        group: IntArray = chunk * self.num_stages + np.where(back, self.num_stages - 1 - stage, stage)
        return group

    @property
    def stage_of_group(self) -> IntArray:
        """Stage that holds each layer group, shape ``(pp * num_chunks,)``."""
        stage, chunk = np.meshgrid(np.arange(self.num_stages), np.arange(self.num_chunks), indexing="ij")
        stages = np.empty(stage.size, dtype=np.int64)
        stages[self.group_of(stage, chunk)] = stage
        return stages

    def text(self) -> str:
        """
        Return the schedule as text, one line per stage, e.g. ``F0 F1 B0 B1``; ``F0.1`` is chunk 1 with interleaving.

        ``I`` and ``W`` are the halves of a backward: gradients of inputs and of weights.
        """
        lines = []
        for row in zip(self.kind, self.microbatch, self.chunk, strict=True):
            lines.append(
                " ".join(
                    f"{LETTERS[kind]}{microbatch}" + (f".{chunk}" if self.num_chunks > 1 else "")
                    for kind, microbatch, chunk in zip(*row, strict=True)
                )
            )
        return "\n".join(lines)


def num_warmup_forwards(
    num_stages: IntArray,
    stage: IntArray,
    num_chunks: IntArray,
    num_microbatches: IntArray,
    group_size: IntArray | None = None,
) -> IntArray:
    """
    Return the warm-up forwards of a stage in 1F1B, interleaved if ``num_chunks`` is above 1.

    All arguments broadcast. With interleaving a forward is that of one chunk. ``group_size`` is the number of
    micro-batches per group, by default ``num_stages``.
    """
    behind = num_stages - 1 - stage
    group = num_stages if group_size is None else group_size
    warmup = np.where(num_chunks > 1, 2 * behind + (num_chunks - 1) * group, behind)
    counts: IntArray = np.minimum(warmup, num_microbatches * num_chunks)
    return counts


def num_in_flight(num_stages: IntArray, stage: IntArray, num_chunks: IntArray, num_microbatches: IntArray) -> IntArray:
    """
    Return the largest number of activations that a 1F1B stage holds, without building the schedule.

    Equals :func:`max_in_flight`: the warm-up forwards plus one. Arguments broadcast.
    """
    warmup = num_warmup_forwards(num_stages, stage, num_chunks, num_microbatches)
    counts: IntArray = np.minimum(warmup + 1, num_microbatches * num_chunks)
    return counts


def check_interleaving(num_stages: int, num_microbatches: int, num_chunks: int, group_size: int | None = None) -> None:
    """Raise ``ValueError`` for an interleaved schedule that Megatron-Core cannot run."""
    if num_chunks == 1:
        return
    if group_size is not None:
        if num_stages < 2 or not has_group(num_stages, num_microbatches, group_size):
            raise ValueError(
                f"groups must have from {num_stages} micro-batches, one a stage, to all {num_microbatches}, and the "
                f"last group is whole or has {num_stages} at least, got groups of {group_size}."
            )
    elif num_stages < 2 or num_microbatches % num_stages:
        raise ValueError(
            f"interleaving needs >= 2 stages and a multiple of that many micro-batches, got {num_stages} stages "
            f"and {num_microbatches} micro-batches."
        )


def has_group(num_stages: int, num_microbatches: int, group_size: int) -> bool:
    """
    Return whether Megatron-Core interleaves groups of this many micro-batches (``microbatch_group_size_per_vp_stage``).

    ``forward_backward_pipelining_with_interleaving`` refuses a last group with fewer micro-batches than stages.
    """
    last = num_microbatches % group_size
    return num_stages <= group_size <= num_microbatches and (last == 0 or last >= num_stages)


@lru_cache(maxsize=256)
def build_schedule(
    num_stages: int, num_microbatches: int, num_chunks: int = 1, group_size: int | None = None
) -> Schedule:
    """
    Return the 1F1B schedule in Megatron-Core's order, interleaved if ``num_chunks`` is above 1.

    Interleaving needs at least two stages, and whole groups of ``num_stages`` micro-batches or a ``group_size`` that
    :func:`has_group` allows; otherwise ``ValueError``.
    """
    if min(num_stages, num_microbatches, num_chunks) < 1:
        raise ValueError(
            f"stages, micro-batches and chunks must be >= 1, got {num_stages}, {num_microbatches} and {num_chunks}."
        )
    check_interleaving(num_stages, num_microbatches, num_chunks, group_size)
    size = num_stages if group_size is None else group_size
    number = np.arange(num_microbatches * num_chunks)
    num_warmup = num_warmup_forwards(
        np.array(num_stages), np.arange(num_stages), np.array(num_chunks), np.array(num_microbatches), np.array(size)
    )
    # Without interleaving the group size plays no role; the last group may be smaller.
    group, inside = np.divmod(number, size * num_chunks)
    of_group = np.minimum(size, num_microbatches - group * size)
    chunk, rest = np.divmod(inside, of_group) if num_chunks > 1 else (np.zeros_like(number), inside)
    microbatch = group * size + rest
    backward, position = _positions(num_warmup[:, None], number[None, :])
    rows = np.arange(num_stages)[:, None]

    def scatter(of_forward: IntArray, of_backward: IntArray) -> IntArray:
        out = np.empty((num_stages, 2 * len(number)), dtype=np.int64)
        out[rows, position] = of_forward
        out[rows, backward] = of_backward
        return out

    return Schedule(
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
        kind=scatter(np.full_like(number, FORWARD), np.full_like(number, BACKWARD)),
        microbatch=scatter(microbatch, microbatch),
        chunk=scatter(chunk, num_chunks - 1 - chunk),
        num_warmup=num_warmup,
        group_size=group_size,
    )


def _positions(num_warmup: IntArray, number: IntArray) -> tuple[IntArray, IntArray]:
    """Return the positions of the n-th backward and the n-th forward in each stage's order, shapes ``(pp, m * v)``."""
    steady = number.shape[1] - num_warmup
    forward = np.where(number < num_warmup, number, 2 * number - num_warmup)
    backward = np.where(number < steady, num_warmup + 2 * number + 1, num_warmup + steady + number)
    return backward, forward


def in_flight(schedule: Schedule) -> IntArray:
    """
    Return the activations (each of one chunk and one micro-batch) held during each operation, shape ``(pp, num_ops)``.

    An activation lives from the start of its forward to the end of its backward, or of the weight half.
    """
    frees = (schedule.kind == BACKWARD) | (schedule.kind == WEIGHT)
    held = np.cumsum((schedule.kind == FORWARD).astype(np.int64) - frees, axis=1)
    during: IntArray = held + frees
    return during


def max_in_flight(schedule: Schedule) -> IntArray:
    """Return the most activations (of a chunk and a micro-batch) that a stage holds at once, shape ``(pp,)``."""
    most: IntArray = in_flight(schedule).max(axis=1)
    return most
