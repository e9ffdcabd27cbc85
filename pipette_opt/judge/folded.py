"""
The event graph of interleaved 1F1B with its steady state written once, whatever the number of micro-batches.

Notation as in ``interleaved.py``. Give the ``n``-th backward of stage ``s`` the *wave* ``n - s``, the ``n``-th forward
``n - w_s - s``, a message that of the operation that makes it. No edge of the event graph goes to an earlier wave, or
more than two on. Along a stage forward ``n + w_s`` stands right before backward ``n``, which stands right before the
next wave's forward. From stage to stage, round the ring too, a result is used one wave later, as ``w_s - w_{s+1} = 2``.
And with blocking sends a receive is posted in the wave of its message, while a send is waited for before operations of
the two waves behind its own.

From wave 2 on, and until the last forward of the first stage, in wave ``m v - (v + 1) pp + 1``, all stages are in their
steady state: what follows what is the same every ``pp v`` waves, in which every stage does one group of ``pp``
micro-batches. So from wave ``pp v + 2`` on whole groups can be cut out, all but three; the first ``pp v`` waves of the
steady state stay, which keeps the way into it.

The *folded* graph has the waves before, one group, and the waves behind. An edge that enters the next group, or leaves
the last one, *wraps*. As no edge goes back, a path of ``m`` micro-batches is a walk that wraps ``m / pp - 3`` times,
and such a walk a path.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray, P2PMode
from pipette_opt.costs.times import PlacedBatch, PlacedTimes
from pipette_opt.judge.program import FIRST, LAST, Program, megatron_program
from pipette_opt.judge.schedule import BACKWARD, FORWARD
from pipette_opt.judge.time_tables import link_table, piece_rows, work_table

GROUPS_OUTSIDE = 3
"""Groups of micro-batches before and behind the folded one, together; fewer have no steady state."""

_FIRST_STEADY_WAVE = 2
_FOLDED = 2  # two groups of the middle show all edges: inside one, to the next, from before and to what is behind
_KINDS = (FORWARD, FIRST, BACKWARD, LAST)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoldedGraph:
    """
    Operations and messages, and what follows what.

    Parameters
    ----------
    begin, source, wraps
        Edges by target: those into node ``n`` are ``begin[n]`` to ``begin[n + 1]``; whether they wrap. Edges that do
        not wrap come from smaller nodes.
    row
        Row of :func:`durations` that each node takes, shape ``(num_nodes,)``.
    stage
        Stage of the operations of the folded group, -1 for all else, shape ``(num_nodes,)``.
    before
        Whether a node is before the folded group.
    first
        First forward of each chunk, shape ``(num_chunks, pp)``.
    launch, finish
        Where the reduction of each chunk may start, shape ``(num_chunks, pp)``; last backward, shape ``(pp,)``.
    """

    begin: IntArray
    source: IntArray
    wraps: IntArray
    row: IntArray
    stage: IntArray
    before: BoolArray
    first: IntArray
    launch: IntArray
    finish: IntArray


def durations(times: PlacedTimes) -> FloatArray:
    """Seconds of operations by kind, chunk and stage, and of transfers, shape ``(rows, dp)``."""
    batch = PlacedBatch.of([times])
    work = work_table(batch, _KINDS)[0]
    return np.concatenate([work.reshape(-1, work.shape[2]), link_table(batch)[0]])


@lru_cache(maxsize=64)
def fold(pp: int, num_chunks: int, p2p: P2PMode, overlap_p2p: bool, folded: int = _FOLDED) -> FoldedGraph:
    """Interleaved 1F1B; from the program of ``GROUPS_OUTSIDE + folded`` groups, any number of at least two."""
    from pipette_opt.judge._fold_kernel import event_edges

    m = (GROUPS_OUTSIDE + folded) * pp
    program = megatron_program(pp, m, num_chunks, p2p, overlap_p2p)
    num_ops = program.kind.shape[1]
    operations, messages = pp * num_ops, 2 * pp * num_chunks * m
    (source, target), order = event_edges(program.rows, pp, num_ops, messages)
    group = (_waves(program, messages) - _FIRST_STEADY_WAVE) // (pp * num_chunks) - 1
    group = np.clip(group, -1, folded)
    turn = np.clip(group, 0, folded)
    # The same node of the first of the folded groups.
    back = np.where(group < folded, turn, 0)
    same = np.arange(operations + messages)
    same[:operations] -= 2 * pp * num_chunks * back[:operations]
    same[operations:] -= pp * back[operations:]
    kept = order[same[order] == order]
    number = np.full(operations + messages, -1)
    number[kept] = np.arange(len(kept))
    edges = np.stack([number[same[target]], number[same[source]], turn[target] - turn[source]])
    edges = np.ascontiguousarray(np.unique(edges, axis=1))
    middle = (group == 0)[kept] & (kept < operations)
    place = np.arange(operations).reshape(pp, num_ops)
    return FoldedGraph(
        begin=np.searchsorted(edges[0], np.arange(len(kept) + 1)),
        source=edges[1],
        wraps=edges[2],
        row=_rows(program, num_chunks, m)[kept],
        stage=np.where(middle, kept // num_ops, -1),
        before=(group < 0)[kept],
        first=number[_by_chunk(place, np.where(program.kind == FIRST, program.chunk, -1), num_chunks)],
        launch=number[_by_chunk(place, program.launch, num_chunks)],
        finish=number[place[:, -1]],
    )


def _waves(program: Program, num_messages: int) -> IntArray:
    """Wave of each operation, stage after stage, and each message, shape ``(num_nodes,)``."""
    backward = (program.kind == BACKWARD) | (program.kind == LAST)
    pp, num_ops = backward.shape
    stage = np.arange(pp)[:, None]
    ahead = (num_ops // 2 - _steady(backward))[:, None]
    number = np.where(backward, np.cumsum(backward, axis=1), np.cumsum(~backward, axis=1) - ahead) - 1
    wave = number - stage
    of_message = np.zeros(num_messages, dtype=np.int64)
    sent = program.outgoing >= 0
    of_message[program.outgoing[sent]] = wave[sent]
    return np.concatenate([wave.reshape(-1), of_message])


def _steady(backward: BoolArray) -> IntArray:
    """Backwards of each stage that have a forward right before them, shape ``(pp,)``."""
    steady: IntArray = (backward[:, 1:] & ~backward[:, :-1]).sum(axis=1)
    return steady


def _rows(program: Program, num_chunks: int, m: int) -> IntArray:
    """Row of :func:`durations` of each operation and message, shape ``(num_nodes,)``."""
    pp = len(program.kind)
    operations = piece_rows(program, _KINDS, num_chunks) * pp + np.arange(pp)[:, None]
    links = len(_KINDS) * num_chunks * pp + np.repeat(program.hop_link, m)
    return np.concatenate([operations.reshape(-1), links])


def _by_chunk(place: IntArray, chunk: IntArray, num_chunks: int) -> IntArray:
    """The place of the operation that is marked with each chunk, shape ``(num_chunks, pp)``."""
    found = [[int(row[marks == one][0]) for row, marks in zip(place, chunk, strict=True)] for one in range(num_chunks)]
    return np.array(found)
