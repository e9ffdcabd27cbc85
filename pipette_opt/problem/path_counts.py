"""What paths through a schedule consist of, before any times."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathCounts:
    """
    How often paths through a schedule do what; what :class:`~pipette_opt.problem.data.Paths` are, before any times.

    Parameters
    ----------
    stage
        Whose reduction of gradients follows each path, shape ``(num_paths,)``.
    forward, backward
        Operations of one micro-batch on each chunk of each stage, shape ``(num_paths, chunks, pp)``.
    up, down
        Transfers from each stage to the next (cyclic) and back, shape ``(num_paths, pp)``.
    first, last
        Of the operations the first forward and the last backward of a chunk, which may take longer than the others for
        what is sent beside them; shape ``(num_paths, chunks, pp)``.
    parts
        Of the parts of the reduction, one for each chunk, those that follow if they run beside compute, shape
        ``(num_paths,)``: the first chunk's after the last backward, all after the last of the last chunk.
    begun
        Operation that a path begins with as its parameters are there no sooner (``chunk * pp + stage``), or -1, shape
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

    def take(self, which: IntArray | BoolArray) -> "PathCounts":
        """Some of the paths."""
        return PathCounts(**{one.name: getattr(self, one.name)[which] for one in fields(self)})

    @classmethod
    def joined(cls, some: Sequence["PathCounts"]) -> "PathCounts":
        """The paths of all, each once."""
        names = [one.name for one in fields(cls)]
        every = cls(**{name: np.concatenate([getattr(one, name) for one in some]) for name in names})
        _, first = np.unique(every.table(), axis=0, return_index=True)
        return every.take(np.sort(first))

    def ending_at(self, stages: BoolArray) -> "PathCounts":
        """Those that end at some of the stages, shape ``(pp,)``."""
        return self.take(stages[self.stage])

    def without_begun(self, operations: IntArray) -> IntArray:
        """Counts of forwards without those that paths begin with: these are over when their parameters are there."""
        which = np.flatnonzero(self.begun >= 0)
        chunk, stage = np.divmod(self.begun[which], operations.shape[2])
        rest = operations.copy()
        rest[which, chunk, stage] -= 1
        return rest

    def table(self) -> IntArray:
        """A row for each path, by which paths can be compared."""
        return np.concatenate([getattr(self, one.name).reshape(len(self.stage), -1) for one in fields(self)], axis=1)


def plain_counts(pp: int, num_microbatches: int, chunks: int) -> PathCounts:
    """
    The paths that every schedule has.

    The first micro-batch goes through the first chunks up to a stage, the stage does all its work, and its last
    backward, one of the first chunk, ends the path or goes back to the first stage.
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
