"""
Pipeline schedules as data: which stage does what, in which order.

The orders are those of Megatron-Core 0.16.1, ``core/pipeline_parallel/schedules.py``: a stage does its warm-up
forwards, then one forward and one backward in turn, then the remaining backwards. Without interleaving stage ``s``
warms up with ``min(pp - s - 1, m)`` forwards; with ``v`` chunks with ``min(2 (pp - s - 1) + (v - 1) pp, m v)``,
the micro-batches in groups of ``pp`` that pass chunk 0, chunk 1, ... (backwards in the reverse order of chunks).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipette_opt.types import BoolArray, IntArray, read_only


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """
    What each stage does, in order; every array has shape ``(pp, num_ops)`` unless stated otherwise.

    Parameters
    ----------
    num_microbatches
        ``m``, per replica.
    num_chunks
        Model chunks per stage, 1 without interleaving. Chunk ``c`` of stage ``s`` is layer group ``c * pp + s``.
    backward
        Whether an operation is a backward; else it is a forward.
    microbatch, chunk
        On what it works.
    num_warmup
        Forwards before forwards and backwards alternate, shape ``(pp,)``.
    """

    num_microbatches: int
    num_chunks: int
    backward: BoolArray
    microbatch: IntArray
    chunk: IntArray
    num_warmup: IntArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "backward", read_only(self.backward, np.bool_))
        for name in ("microbatch", "chunk", "num_warmup"):
            object.__setattr__(self, name, read_only(getattr(self, name), np.int64))
        if self.backward.ndim != 2 or not self.backward.shape == self.microbatch.shape == self.chunk.shape:
            raise ValueError(
                f"backward, microbatch and chunk must have one shape (pp, num_ops), got {self.backward.shape}, "
                f"{self.microbatch.shape} and {self.chunk.shape}."
            )

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return len(self.backward)

    def text(self) -> str:
        """One line per stage for people and tests, e.g. ``F0 F1 B0 B1``; ``F0.1`` is chunk 1 with interleaving."""
        lines = []
        for row in zip(self.backward, self.microbatch, self.chunk, strict=True):
            lines.append(
                " ".join(
                    f"{'B' if backward else 'F'}{microbatch}" + (f".{chunk}" if self.num_chunks > 1 else "")
                    for backward, microbatch, chunk in zip(*row, strict=True)
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
        backward=scatter(np.zeros_like(number), np.ones_like(number)).astype(np.bool_),
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

    Deadlock: every stage waits for an input that nobody will make before something that waits itself.
    """
    pp, chunks, m = schedule.num_stages, schedule.num_chunks, schedule.num_microbatches
    for stage in range(pp):
        key = (schedule.backward[stage] * chunks + schedule.chunk[stage]) * m + schedule.microbatch[stage]
        if not np.array_equal(np.sort(key), np.arange(2 * chunks * m)):
            raise ValueError(f"stage {stage} does not do each of {m} micro-batches x {chunks} chunks once each way.")
    done: set[tuple[bool, int, int]] = set()  # (backward, layer group, micro-batch)
    position, last_group = [0] * pp, pp * chunks - 1
    progress = True
    while progress:
        progress = False
        for stage in range(pp):
            while position[stage] < schedule.backward.shape[1]:
                at = (stage, position[stage])
                group, microbatch = int(schedule.chunk[at]) * pp + stage, int(schedule.microbatch[at])
                if schedule.backward[at]:
                    needs = (True, group + 1, microbatch) if group < last_group else (False, group, microbatch)
                    ready = needs in done and (False, group, microbatch) in done
                else:
                    ready = group == 0 or (False, group - 1, microbatch) in done
                if not ready:
                    break
                done.add((bool(schedule.backward[at]), group, microbatch))
                position[stage] += 1
                progress = True
    stuck = [stage for stage in range(pp) if position[stage] < schedule.backward.shape[1]]
    if stuck:
        raise ValueError(f"the schedule deadlocks: stages {stuck} wait for each other.")


def max_in_flight(schedule: Schedule) -> IntArray:
    """
    Most forwards (of one chunk each) whose activations a stage holds at once, shape ``(pp,)``.

    Activations live from the start of the forward to the end of the backward.
    """
    signs = np.where(schedule.backward, -1, 1)
    most: IntArray = np.cumsum(signs, axis=1).max(axis=1)
    return most
