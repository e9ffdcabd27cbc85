"""
Checks of a schedule before it is simulated (every operation once, no deadlock), and its dependencies.

The schedule itself is in ``parallel/schedule.py``, since the memory of a stage is computed from it, too.
"""

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.parallel.schedule import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Schedule,
)


def check_schedule(schedule: Schedule) -> None:
    """
    Raise ``ValueError`` unless each stage does each chunk of each micro-batch exactly once, without deadlock.

    It needs one forward, and one backward or its two halves, the input half first. In a deadlock, every stage waits for
    an input that no stage can make.
    """
    _check_complete(schedule)
    needs, makes = dependencies(schedule)
    num_ops = schedule.kind.shape[1]
    done = np.zeros(int(makes.max(initial=0)) + 2, dtype=np.bool_)
    done[-1] = True  # index -1 stands for no dependency
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
    Return the results that each operation needs (at most two, -1 for none), and the result that it makes.

    Returns
    -------
    tuple
        Result numbers, shapes ``(2, pp, num_ops)`` and ``(pp, num_ops)``. Results ``(sort * groups + group) * m +
        microbatch``: activations (``sort`` 0), gradients of inputs (1), of weights (2).
    """
    groups, m = schedule.num_stages * schedule.num_chunks, schedule.num_microbatches
    group = schedule.group

    def result(sort: int, of_group: IntArray) -> IntArray:
        return (sort * groups + of_group) * m + schedule.microbatch

    forward, weight = schedule.kind == FORWARD, schedule.kind == WEIGHT
    before = np.where(group > 0, result(0, group - 1), -1)
    behind = np.where(group < groups - 1, result(1, group + 1), -1)
    first = np.where(forward, before, np.where(weight, result(1, group), behind))
    second = np.where(forward, -1, result(0, group))
    makes = np.where(forward, result(0, group), np.where(weight, result(2, group), result(1, group)))
    return np.stack([first, second]), makes


def _check_complete(schedule: Schedule) -> None:
    """Raise ``ValueError`` unless every stage does each forward once, and each backward, whole or as two halves."""
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
