"""Which forward and backward passes one stage runs, in order, and how many are in flight."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from pipette_opt.types import IntArray


class Pass(NamedTuple):
    """One forward or backward of one model chunk for one micro-batch."""

    kind: Literal["forward", "backward"]
    chunk: int
    microbatch: int


def num_warmup_passes(pp: IntArray, stage: IntArray, num_chunks: IntArray, num_microbatches: IntArray) -> IntArray:
    """
    Forward passes of a stage before its first backward, as Megatron-Core's 1F1B and interleaved 1F1B count them.

    All arguments broadcast. Interleaved passes are those of one chunk.
    """
    behind = pp - stage - 1
    warmup = np.where(num_chunks > 1, 2 * behind + (num_chunks - 1) * pp, behind)
    counts: IntArray = np.minimum(warmup, num_microbatches * num_chunks)
    return counts


def num_in_flight(pp: IntArray, stage: IntArray, num_chunks: IntArray, num_microbatches: IntArray) -> IntArray:
    """Passes whose activations a stage holds at most at once, the running one included; arguments broadcast."""
    warmup = num_warmup_passes(pp, stage, num_chunks, num_microbatches)
    counts: IntArray = np.minimum(warmup + 1, num_microbatches * num_chunks)
    return counts


def stage_passes(pp: int, stage: int, num_chunks: int, num_microbatches: int) -> Iterator[Pass]:
    """
    Passes of one stage from the start of the iteration until memory can no longer grow.

    Warm-up, then one forward, one backward for one full round (every chunk at least once in each direction, with
    the largest number in flight). The rest repeats that round or only frees.
    """
    total = num_microbatches * num_chunks
    warmup = int(num_warmup_passes(*(np.array(x) for x in (pp, stage, num_chunks, num_microbatches))))
    for index in range(warmup):
        yield _forward(index, pp, num_chunks)
    wanted = pp * num_chunks + 1 if num_chunks > 1 else 2
    steady = min(total - warmup, wanted)
    for index in range(steady):
        yield _forward(warmup + index, pp, num_chunks)
        yield _backward(index, pp, num_chunks)
    for index in range(steady, min(total, wanted)):
        yield _backward(index, pp, num_chunks)


def _forward(index: int, pp: int, num_chunks: int) -> Pass:
    """The forward of that index: groups of ``pp`` micro-batches go through chunk 0, then chunk 1, ..."""
    group, inside = divmod(index, pp * num_chunks)
    return Pass("forward", inside // pp, group * pp + inside % pp)


def _backward(index: int, pp: int, num_chunks: int) -> Pass:
    """The backward of that index: the same groups, from the last chunk to the first."""
    forward = _forward(index, pp, num_chunks)
    return Pass("backward", num_chunks - 1 - forward.chunk, forward.microbatch)
