"""Numbers of passes and transfers on each path through a pipeline schedule; `problem.data.Paths` adds their times."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathCounts:
    """
    Numbers of passes and transfers on paths through a schedule; :class:`~pipette_opt.problem.data.Paths` adds their
    times.

    Parameters
    ----------
    stage
        Stage whose gradient reduction follows each path, shape ``(num_paths,)``.
    forward, backward
        Number of micro-batch passes on each chunk of each stage, shape ``(num_paths, chunks, pp)``.
    up, down
        Number of transfers from each stage to the next (cyclic) and back, shape ``(num_paths, pp)``.
    first, last
        Number of these passes that are the first forward, or the last backward, of a chunk, shape ``(num_paths, chunks,
        pp)``. Overlapped communication may lengthen such passes.
    parts
        Number of chunks whose reduction follows the path, if reductions overlap, shape ``(num_paths,)``. One chunk
        after the stage's last backward, all chunks after the last backward of the last chunk, ``n`` chunks after that
        of the ``n``-th.
    begun
        First forward (``chunk * pp + stage``) of a path that begins with a wait for parameters, or -1, shape
        ``(num_paths,)``.
    """

    stage: IntArray
    forward: IntArray
    backward: IntArray
    up: IntArray
    down: IntArray
    first: IntArray
    last: IntArray
    parts: IntArray
    begun: IntArray

    def take(self, rows: IntArray | BoolArray) -> "PathCounts":
        """Return the selected paths; ``rows`` holds indices or a mask."""
        return PathCounts(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @classmethod
    def joined(cls, sets: Sequence["PathCounts"]) -> "PathCounts":
        """Return the paths of all sets, without duplicates."""
        names = [field.name for field in fields(cls)]
        every = cls(**{name: np.concatenate([getattr(counts, name) for counts in sets]) for name in names})
        _, first = np.unique(every.table(), axis=0, return_index=True)
        return every.take(np.sort(first))

    def ending_at(self, stages: BoolArray) -> "PathCounts":
        """Return the paths that end at the masked stages; ``stages`` has shape ``(pp,)``."""
        return self.take(stages[self.stage])

    def without_begun(self, operations: IntArray) -> IntArray:
        """Return the passes without the first forward of paths that wait for parameters, whose end is given."""
        waiting_paths = np.flatnonzero(self.begun >= 0)
        chunk, stage = np.divmod(self.begun[waiting_paths], operations.shape[2])
        rest = operations.copy()
        rest[waiting_paths, chunk, stage] -= 1
        return rest

    def table(self) -> IntArray:
        """Return all counts as a table with one row for each path, to find duplicates."""
        arrays = [getattr(self, field.name) for field in fields(self)]
        return np.concatenate([array.reshape(len(self.stage), -1) for array in arrays], axis=1)


def plain_counts(pp: int, num_microbatches: int, chunks: int) -> PathCounts:
    """
    Return the paths that exist in every pipeline schedule.

    The first micro-batch passes the first chunks up to a stage, and the stage does all its work. The path ends with the
    stage's last backward, of its first chunk, or goes back from it to the first stage.
    """
    stage = np.arange(pp)
    before = np.tile(np.tri(pp, k=-1, dtype=np.int64), (2, 1))
    here = np.tile(np.eye(pp, dtype=np.int64), (2, 1))
    back = np.concatenate([np.zeros((pp, pp), dtype=np.int64), before[pp:]])
    once = np.repeat(here[:, None, :], chunks, axis=1)
    forward, backward, first, last = num_microbatches * once, num_microbatches * once, once.copy(), once.copy()
    for up, down in ((forward, backward), (first, last)):
        up[:, 0] += before
        down[:, 0] += back
    first_ends_once = np.arange(1, 2 * pp)
    return PathCounts(
        stage=np.concatenate([stage, np.zeros_like(stage)]),
        forward=forward,
        backward=backward,
        up=before,
        down=back,
        first=first,
        last=last,
        parts=np.ones(2 * pp, dtype=np.int64),
        begun=np.full(2 * pp, -1, dtype=np.int64),
    ).take(first_ends_once)
