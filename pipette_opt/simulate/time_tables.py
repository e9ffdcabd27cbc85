"""Times of placements as tables for the kernel; each column is a replica."""

from collections.abc import Sequence

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.costs.times import PlacedBatch
from pipette_opt.parallel.schedule import BACKWARD, FORWARD, INPUT, WEIGHT
from pipette_opt.simulate.program import FIRST, LAST, LAST_WEIGHT, Program


def table_kinds(program: Program, batches: Sequence[PlacedBatch]) -> tuple[int, ...]:
    """Return the operation types that the work table must distinguish, forwards first."""
    ends = any(batch.first_extra_s is not None or batch.last_extra_s is not None for batch in batches)
    split = bool((program.kind == INPUT).any())
    kinds = (FORWARD, FIRST, BACKWARD, LAST) if ends else (FORWARD, BACKWARD)
    halves = (INPUT, WEIGHT, LAST_WEIGHT) if ends else (INPUT, WEIGHT)
    return (*kinds, *halves) if split else kinds


def piece_rows(program: Program, kinds: tuple[int, ...], num_chunks: int) -> IntArray:
    """Return the row of the work table for each operation, shape ``(pp, num_ops)``."""
    place = np.zeros(LAST_WEIGHT + 1, dtype=np.int64)
    place[list(kinds)] = np.arange(len(kinds))
    for kind, plain in ((FIRST, FORWARD), (LAST, BACKWARD), (LAST_WEIGHT, WEIGHT)):
        if kind not in kinds:
            place[kind] = place[plain]
    rows: IntArray = place[program.kind] * num_chunks + program.chunk
    return rows


def work_table(times: PlacedBatch, kinds: tuple[int, ...]) -> FloatArray:
    """Return the seconds of each operation type on each chunk, shape ``(n, kinds * num_chunks, pp, dp)``."""

    def seconds(kind: int) -> FloatArray:
        if kind in (FORWARD, FIRST):
            extra = times.first_extra_s if kind == FIRST else None
            return times.forward_s if extra is None else times.forward_s + extra
        extra = times.last_extra_s if kind in (LAST, LAST_WEIGHT) else None
        work = times.backward_s
        if kind in (INPUT, WEIGHT, LAST_WEIGHT):
            weight = weight_part(times)
            work = times.backward_s - weight if kind == INPUT else weight
        return work if extra is None else work + extra

    table: FloatArray = np.concatenate([seconds(kind) for kind in kinds], axis=1)
    return table


def weight_part(times: PlacedBatch) -> FloatArray:
    """Return the seconds of a backward pass that compute gradients of weights, shape ``(n, num_chunks, pp, dp)``."""
    if times.weight_s is not None:
        return times.weight_s
    half: FloatArray = (times.backward_s - times.tensor_backward_s) / 2
    return half


def link_table(times: PlacedBatch) -> FloatArray:
    """Return transfer seconds from each stage to the next, back, and of none: shape ``(n, 2 * pp + 1, dp)``."""
    nothing = np.zeros((times.size, 1, times.send_forward_s.shape[2]))
    return np.concatenate([times.send_forward_s, times.send_backward_s, nothing], axis=1)


def ready_table(times: PlacedBatch) -> FloatArray:
    """Return the earliest end of each chunk's forwards after its parameters, seconds, ``(n, num_chunks, pp, dp)``."""
    return np.zeros_like(times.forward_s) if times.ready_s is None else times.ready_s


def distinct_columns(*tables: FloatArray) -> tuple[IntArray, IntArray]:
    """Return the indices of columns that differ in any table, and for each column its index among them."""
    stacked = np.ascontiguousarray(np.concatenate(tables).T)
    if len(stacked) == 1:
        return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    rows = stacked.view(np.dtype((np.void, stacked.dtype.itemsize * stacked.shape[1])))
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.reshape(-1).astype(np.int64)


def replica_columns(table: FloatArray) -> FloatArray:
    """Return tables of placements, ``(n, ..., dp)``, as one table of all their replicas, ``(..., n * dp)``."""
    if len(table) == 1:
        only: FloatArray = table[0]
        return only
    moved = np.moveaxis(table, 0, -2)
    return moved.reshape(*moved.shape[:-2], -1)
