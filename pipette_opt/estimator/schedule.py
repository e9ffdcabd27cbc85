"""
Pipeline schedules as data: which stage does what, in which order.

The orders of 1F1B are those of Megatron-Core 0.16.1, ``core/pipeline_parallel/schedules.py``: a stage does its warm-up
forwards, then one forward and one backward in turn, then the remaining backwards. Without interleaving stage ``s``
warms up with ``min(pp - s - 1, m)`` forwards; with ``v`` chunks with ``min(2 (pp - s - 1) + (v - 1) pp, m v)``,
the micro-batches in groups of ``pp`` that pass chunk 0, chunk 1, ... (backwards in the reverse order of chunks).
Other orders are in ``orders.py``.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from pipette_opt.types import BoolArray, IntArray, read_only

FORWARD, BACKWARD, INPUT, WEIGHT = range(4)
"""Kinds of operations: a forward, a whole backward, or its halves: gradients of the inputs, of the weights."""

LETTERS = "FBIW"

Layout = Literal["loop", "vee"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """
    What each stage does, in order; every array has shape ``(pp, num_ops)`` unless stated otherwise.

    Parameters
    ----------
    num_microbatches
        ``m``, per replica.
    num_chunks
        Model chunks per stage, 1 without interleaving.
    kind
        What is done: ``FORWARD``, ``BACKWARD``, or its halves ``INPUT`` and ``WEIGHT``.
    microbatch, chunk
        On what.
    num_warmup
        Forwards before forwards and backwards alternate, shape ``(pp,)``; of other orders than 1F1B those before the
        first backward.
    layout
        Where the layers are. ``loop``: chunk ``c`` of stage ``s`` is layer group ``c * pp + s``. ``vee``: odd chunks go
        back, chunk ``c`` of stage ``s`` is group ``c * pp + pp - 1 - s``, so the last stage keeps its activations.
    """

    num_microbatches: int
    num_chunks: int
    kind: IntArray
    microbatch: IntArray
    chunk: IntArray
    num_warmup: IntArray
    layout: Layout = "loop"

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
        """Pipeline stages."""
        return len(self.kind)

    @property
    def backward(self) -> BoolArray:
        """Whether an operation is a backward or a half of one."""
        is_backward: BoolArray = self.kind != FORWARD
        return is_backward

    @property
    def group(self) -> IntArray:
        """Layer group that each operation works on."""
        return self.group_of(np.arange(self.num_stages)[:, None], self.chunk)

    def group_of(self, stage: IntArray, chunk: IntArray) -> IntArray:
        """Layer group of a chunk of a stage; arguments broadcast."""
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
        One line per stage for people and tests, e.g. ``F0 F1 B0 B1``; ``F0.1`` is chunk 1 with interleaving.

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


@lru_cache(maxsize=256)
def build_schedule(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """
    1F1B, interleaved if ``num_chunks`` is above 1, in Megatron-Core's order.

    Interleaving needs at least two stages and whole groups of ``num_stages`` micro-batches; ``ValueError`` if not.
    """
    if min(num_stages, num_microbatches, num_chunks) < 1:
        raise ValueError(
            f"stages, micro-batches and chunks must be >= 1, got {num_stages}, {num_microbatches} and {num_chunks}."
        )
    if num_chunks > 1 and (num_stages < 2 or num_microbatches % num_stages):
        raise ValueError(
            f"interleaving needs >= 2 stages and a multiple of that many micro-batches, got {num_stages} stages "
            f"and {num_microbatches} micro-batches."
        )
    after = num_stages - 1 - np.arange(num_stages)
    warmup = after if num_chunks == 1 else 2 * after + (num_chunks - 1) * num_stages
    number = np.arange(num_microbatches * num_chunks)
    num_warmup = np.minimum(warmup, len(number))
    # Without interleaving the group size plays no role.
    group, inside = np.divmod(number, num_stages * num_chunks)
    chunk, rest = np.divmod(inside, num_stages) if num_chunks > 1 else (np.zeros_like(number), inside)
    microbatch = group * num_stages + rest
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
    )


def _positions(num_warmup: IntArray, number: IntArray) -> tuple[IntArray, IntArray]:
    """Where in its stage's order the n-th backward and the n-th forward stand, shapes ``(pp, m * v)``."""
    steady = number.shape[1] - num_warmup
    forward = np.where(number < num_warmup, number, 2 * number - num_warmup)
    backward = np.where(number < steady, num_warmup + 2 * number + 1, num_warmup + steady + number)
    return backward, forward


def check_schedule(schedule: Schedule) -> None:
    """
    Raise ``ValueError`` unless each stage does each chunk of each micro-batch once each way, without deadlock.

    Each way: one forward, and one backward or its two halves, the input half first. Deadlock: every stage waits for an
    input that nobody will make before something that waits itself.
    """
    _check_complete(schedule)
    needs, makes = dependencies(schedule)
    num_ops = schedule.kind.shape[1]
    done = np.zeros(int(makes.max(initial=0)) + 2, dtype=np.bool_)
    done[-1] = True  # what -1 stands for: nothing
    position, progress = [0] * schedule.num_stages, True
    while progress:
        progress = False
        for stage in range(schedule.num_stages):
            while position[stage] < num_ops and done[needs[:, stage, position[stage]]].all():
                done[makes[stage, position[stage]]] = True
                position[stage] += 1
                progress = True
    stuck = [stage for stage, at in enumerate(position) if at < num_ops]
    if stuck:
        raise ValueError(f"the schedule deadlocks: stages {stuck} wait for each other.")


def dependencies(schedule: Schedule) -> tuple[IntArray, IntArray]:
    """
    What each operation needs (two results at most, -1 for none) and what it makes.

    Returns
    -------
    tuple
        Result numbers, shapes ``(2, pp, num_ops)`` and ``(pp, num_ops)``. Results ``(what * groups + group) * m +
        microbatch``: activations (``what`` 0), gradients of inputs (1), of weights (2).
    """
    groups, m = schedule.num_stages * schedule.num_chunks, schedule.num_microbatches
    group = schedule.group

    def result(what: int, of_group: IntArray) -> IntArray:
        return (what * groups + of_group) * m + schedule.microbatch

    forward, weight = schedule.kind == FORWARD, schedule.kind == WEIGHT
    before = np.where(group > 0, result(0, group - 1), -1)
    behind = np.where(group < groups - 1, result(1, group + 1), -1)
    first = np.where(forward, before, np.where(weight, result(1, group), behind))
    second = np.where(forward, -1, result(0, group))
    makes = np.where(forward, result(0, group), np.where(weight, result(2, group), result(1, group)))
    return np.stack([first, second]), makes


def _check_complete(schedule: Schedule) -> None:
    """Every stage: each forward once, each backward once, whole or as two halves."""
    chunks, m = schedule.num_chunks, schedule.num_microbatches
    for stage in range(schedule.num_stages):
        piece = schedule.chunk[stage] * m + schedule.microbatch[stage]
        inside = (schedule.chunk[stage] >= 0) & (schedule.chunk[stage] < chunks)
        inside &= (schedule.microbatch[stage] >= 0) & (schedule.microbatch[stage] < m)
        complete = bool(inside.all())
        if complete:
            forward, whole, halves, weights = (
                np.bincount(piece[schedule.kind[stage] == kind], minlength=chunks * m)
                for kind in (FORWARD, BACKWARD, INPUT, WEIGHT)
            )
            complete = bool((forward == 1).all() and (whole + halves == 1).all() and (weights == halves).all())
        if not complete:
            raise ValueError(f"stage {stage} does not do each of {m} micro-batches x {chunks} chunks once each way.")


def in_flight(schedule: Schedule) -> IntArray:
    """
    Activations (of one chunk and micro-batch each) that a stage holds during each operation, shape ``(pp, num_ops)``.

    They live from the start of the forward to the end of the backward, or of its weight half.
    """
    frees = (schedule.kind == BACKWARD) | (schedule.kind == WEIGHT)
    held = np.cumsum((schedule.kind == FORWARD).astype(np.int64) - frees, axis=1)
    during: IntArray = held + frees
    return during


def max_in_flight(schedule: Schedule) -> IntArray:
    """Most activations (of one chunk and micro-batch each) that a stage holds at once, shape ``(pp,)``."""
    most: IntArray = in_flight(schedule).max(axis=1)
    return most
