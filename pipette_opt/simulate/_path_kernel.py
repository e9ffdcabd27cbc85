"""Compiled search for critical paths, for :mod:`.longest_paths` and :mod:`.breakdown`."""

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
    Count the operations on one replica's critical paths, and the seconds that its stages wait.

    Executes a program as ``_kernel.run`` does, remembers for each event the last event that it waited for, and walks
    back from the given ends.

    Parameters
    ----------
    rows, piece, m, num_forward_rows
        Arguments of ``_kernel.run``.
    work_s
        Seconds by operation type and chunk, shape ``(kinds, pp)``; the first ``num_forward_rows`` are forwards.
    ready_s
        Earliest end of a chunk's forwards, seconds, shape ``(num_chunks, pp)``.
    hop_s, hop_link
        Transfer seconds of each border and direction, and their rows in the link table, shape ``(hops,)``.
    launch
        Chunk whose reduction may start after an operation of a stage, or -1, shape ``(pp, num_ops)``.
    targets
        Ends of paths, shape ``(targets, 2)``: a stage, and the chunk whose reduction may start then, or -1 for the
        stage's last operation.

    Returns
    -------
    tuple
        For each path: operations by type and chunk, shape ``(targets, kinds, pp)``; transfers by row of the link table,
        shape ``(targets, 2 * pp + 1)``; seconds of parameter gathers at its start, and the chunk and stage that gather
        them (``chunk * pp + stage``, -1 without a wait), shape ``(targets,)`` each. For each stage until its last
        operation ends: seconds of waiting for transfers under way, and for parameters, shape ``(pp,)`` each.
    """
    kinds, pp = work_s.shape
    num_chunks = ready_s.shape[0]
    clock, cause = np.zeros(pp), np.full(pp, -1, dtype=np.int64)
    num_messages = hop_s.shape[0] * m
    when, sender = np.zeros(num_messages), np.full(num_messages, -1, dtype=np.int64)
    parent = np.full(rows.shape[0], -1, dtype=np.int64)
    gathers = np.zeros(rows.shape[0], dtype=np.bool_)
    ends = np.full((num_chunks + 1, pp), -1, dtype=np.int64)  # row of the launch of each chunk; last: last operation
    waits, transfer_s, gather_s = np.zeros(pp), np.zeros(pp), np.zeros(pp)
    for index in range(rows.shape[0]):
        instruction, stage, value = rows[index, 0], rows[index, 1], rows[index, 2]
        if instruction == COMPUTE:
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
        elif instruction == WAIT:
            if when[value] > clock[stage]:
                waits[stage] += min(when[value] - clock[stage], hop_s[value // m])  # before, the sender is not ready
                clock[stage] = when[value]
                cause[stage] = sender[value]
        elif instruction == MEET:
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
