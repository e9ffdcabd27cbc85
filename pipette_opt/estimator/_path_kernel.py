"""The compiled loop behind :mod:`pipette_opt.estimator.longest_paths`."""

from typing import Any

import numpy as np

from pipette_opt.estimator._kernel import COMPUTE, MEET, WAIT
from pipette_opt.jit import njit


@njit(cache=True)
def count_critical(rows: Any, piece: Any, work_s: Any, hop_s: Any, hop_link: Any, m: int) -> Any:
    """
    What one replica's critical path to each stage's last operation consists of.

    Executes a program as ``_kernel.run`` does, remembers what each event waited for last, and walks back.

    Parameters
    ----------
    work_s
        Seconds by kind and chunk, shape ``(kinds, pp)``.
    hop_s, hop_link
        Transfer times of each border and direction, and their rows in the link table, shape ``(hops,)``.

    Returns
    -------
    array
        Operations by kind and chunk, shape ``(pp, kinds, pp)``, and transfers by row of the link table, shape ``(pp, 2
        * pp + 1)``; the first axis is the stage where the path ends.
    """
    kinds, pp = work_s.shape
    clock, cause = np.zeros(pp), np.full(pp, -1, dtype=np.int64)
    num_messages = hop_s.shape[0] * m
    when, sender = np.zeros(num_messages), np.full(num_messages, -1, dtype=np.int64)
    parent = np.full(rows.shape[0], -1, dtype=np.int64)
    for index in range(rows.shape[0]):
        what, stage, value = rows[index, 0], rows[index, 1], rows[index, 2]
        if what == COMPUTE:
            parent[index] = cause[stage]
            clock[stage] += work_s[piece[stage, value], stage]
            cause[stage] = index
        elif what == WAIT:
            if when[value] > clock[stage]:
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
    last = np.full(pp, -1, dtype=np.int64)
    for index in range(rows.shape[0]):
        if rows[index, 0] == COMPUTE:
            last[rows[index, 1]] = index
    operations = np.zeros((pp, kinds, pp), dtype=np.int64)
    transfers = np.zeros((pp, 2 * pp + 1), dtype=np.int64)
    for target in range(pp):
        index = last[target]
        while index >= 0:
            stage, value = rows[index, 1], rows[index, 2]
            if rows[index, 0] == COMPUTE:
                operations[target, piece[stage, value], stage] += 1
            else:
                transfers[target, hop_link[value // m]] += 1
            index = parent[index]
    return operations, transfers
