"""The compiled loop behind :mod:`pipette_opt.simulate.longest_paths` and :mod:`pipette_opt.simulate.breakdown`."""

from typing import Any

import numpy as np

from pipette_opt.base.jit import njit
from pipette_opt.simulate._kernel import COMPUTE, MEET, WAIT


@njit(cache=True)
def count_critical(
    rows: Any,
    piece: Any,
    work_s: Any,
    ready_s: Any,
    hop_s: Any,
    hop_link: Any,
    m: int,
    num_forward_rows: int,
    launch: Any,
    targets: Any,
) -> Any:
    """
    Of one replica: what its critical paths consist of, and what its stages wait for.

    Executes a program as ``_kernel.run`` does, remembers what each event waited for last, and walks back from some
    operations.

    Parameters
    ----------
    work_s
        Seconds by kind and chunk, shape ``(kinds, pp)``; the first ``num_forward_rows`` are forwards.
    ready_s
        No forward of a chunk ends before, shape ``(num_chunks, pp)``.
    hop_s, hop_link
        Transfer times of each border and direction, and their rows in the link table, shape ``(hops,)``.
    launch
        Chunk whose reduction may start when an operation of a stage is done, or -1, shape ``(pp, num_ops)``.
    targets
        Where paths end: a stage, and the chunk whose reduction may start then, or -1 for the stage's last operation;
        shape ``(targets, 2)``.

    Returns
    -------
    tuple
        Of each path: operations by kind and chunk, shape ``(targets, kinds, pp)``; transfers by row of the link table,
        shape ``(targets, 2 * pp + 1)``; seconds at its start in which parameters are gathered, and by which chunk and
        stage (``chunk * pp + stage``, -1 if it waits for none), shape ``(targets,)`` each. Of each stage until its last
        operation ends: seconds in which it waits for a transfer that is under way, and for parameters, shape ``(pp,)``
        each.
    """
    kinds, pp = work_s.shape
    num_chunks = ready_s.shape[0]
    clock, cause = np.zeros(pp), np.full(pp, -1, dtype=np.int64)
    num_messages = hop_s.shape[0] * m
    when, sender = np.zeros(num_messages), np.full(num_messages, -1, dtype=np.int64)
    parent = np.full(rows.shape[0], -1, dtype=np.int64)
    gathers = np.zeros(rows.shape[0], dtype=np.bool_)
    ends = np.full((num_chunks + 1, pp), -1, dtype=np.int64)  # where a chunk is launched; the last row: the last of all
    waits, transfer_s, gather_s = np.zeros(pp), np.zeros(pp), np.zeros(pp)
    for index in range(rows.shape[0]):
        what, stage, value = rows[index, 0], rows[index, 1], rows[index, 2]
        if what == COMPUTE:
            row = piece[stage, value]
            parent[index] = cause[stage]
            clock[stage] += work_s[row, stage]
            if row < num_forward_rows and ready_s[row % num_chunks, stage] > clock[stage]:
                gather_s[stage] += ready_s[row % num_chunks, stage] - clock[stage]
                clock[stage] = ready_s[row % num_chunks, stage]
                parent[index], gathers[index] = -1, True
            cause[stage] = index
            ends[-1, stage], transfer_s[stage] = index, waits[stage]
            if launch[stage, value] >= 0:
                ends[launch[stage, value], stage] = index
        elif what == WAIT:
            if when[value] > clock[stage]:
                waits[stage] += min(when[value] - clock[stage], hop_s[value // m])  # before, the sender is not ready
                clock[stage] = when[value]
                cause[stage] = sender[value]
        elif what == MEET:
            parent[index] = sender[value]
            if clock[stage] > when[value]:
                when[value] = clock[stage]
                parent[index] = cause[stage]
            when[value] += hop_s[value // m]
            sender[value] = index
        else:
            when[value] = clock[stage]
            sender[value] = cause[stage]
    operations = np.zeros((targets.shape[0], kinds, pp), dtype=np.int64)
    transfers = np.zeros((targets.shape[0], 2 * pp + 1), dtype=np.int64)
    started_s, begun = np.zeros(targets.shape[0]), np.full(targets.shape[0], -1, dtype=np.int64)
    for target in range(targets.shape[0]):
        index = ends[targets[target, 1], targets[target, 0]]
        while index >= 0:
            stage, value = rows[index, 1], rows[index, 2]
            if rows[index, 0] == COMPUTE:
                row = piece[stage, value]
                operations[target, row, stage] += 1
                if gathers[index]:
                    started_s[target] = ready_s[row % num_chunks, stage] - work_s[row, stage]
                    begun[target] = (row % num_chunks) * pp + stage
            else:
                transfers[target, hop_link[value // m]] += 1
            index = parent[index]
    return operations, transfers, started_s, begun, transfer_s, gather_s
