"""
Compiled execution of a schedule; imported only for a simulation, as numba takes a while to load.

Each stage's operations are first written as instructions. These are brought into one order for all stages, which
depends only on the schedule and is cached. Then they are executed for many replicas together.
"""

from typing import Any

import numpy as np

from pipette_opt.base.jit import njit

COMPUTE, POST, WAIT, MEET = 0, 1, 2, 3
IDEAL, MEGATRON, MEGATRON_INTERLEAVED, MEGATRON_INTERLEAVED_WAITING = 0, 1, 2, 3

BLOCK = 32
"""Number of replicas timed together, so that their clocks and messages stay in the cache. Chosen."""

_MAX_INSTRUCTIONS_PER_OPERATION = 8


@njit(cache=True)
def _emit(code: Any, argument: Any, length: Any, stage: int, instruction: int, value: int) -> None:
    """Append an instruction to a stage's list; a message number of -1 (no message) is skipped."""
    if value >= 0:
        code[stage, length[stage]] = instruction
        argument[stage, length[stage]] = value
        length[stage] += 1


@njit(cache=True)
def _emit_waiting(
    code: Any, argument: Any, length: Any, stage: int, incoming: Any, arriving: Any, outgoing: Any, t: int, warm: int
) -> None:
    """
    Append the instructions of one operation in the interleaved schedule that waits for all its sends.

    Warm-up and flush: each send goes together with the receive of the next operation. Steady state: a forward and a
    backward run one after the other. Then both are sent and the inputs of the next two received, together. The last
    operation of the warm-up receives the first two inputs, the last of the steady state the first input of the flush.
    """
    num_ops = incoming.shape[1]
    steady_end = num_ops - warm
    if t == 0 or (t == warm and warm == steady_end):
        _emit(code, argument, length, stage, POST, arriving[stage, t])
        _emit(code, argument, length, stage, WAIT, arriving[stage, t])
    _emit(code, argument, length, stage, WAIT, incoming[stage, t])
    _emit(code, argument, length, stage, COMPUTE, t)
    steady = warm <= t < steady_end
    if steady and (t - warm) % 2 == 0:
        return  # sent together with the next backward
    first = t - 1 if steady else t
    last = t + 2 if t == warm - 1 or t + 1 < steady_end else t + 1
    if not steady and t < warm - 1:
        last = t + 1
    if t == warm - 1 and warm == steady_end:
        last = t  # the first backward's input is received alone
    last = min(last, num_ops - 1)
    for sent in range(first, t + 1):
        _emit(code, argument, length, stage, POST, outgoing[stage, sent])
    for received in range(t + 1, last + 1):
        _emit(code, argument, length, stage, POST, arriving[stage, received])
    for sent in range(first, t + 1):
        _emit(code, argument, length, stage, WAIT, outgoing[stage, sent])
    for received in range(t + 1, last + 1):
        _emit(code, argument, length, stage, WAIT, arriving[stage, received])


@njit(cache=True)
def instructions(incoming: Any, arriving: Any, outgoing: Any, num_warmup: Any, mode: int) -> Any:
    """
    Return the instructions of each stage: compute an operation, post a message (as sender or receiver), wait for it.

    ``incoming`` and ``outgoing`` are the messages of each operation or -1, shape ``(pp, num_ops)``. ``arriving`` are
    the messages received during the operation before. Interleaving with groups larger than the number of stages needs
    them later (``recv_tensor_from_previous_stage``). Returns codes and arguments, shape ``(pp, at least the longest)``,
    and lengths, shape ``(pp,)``.
    """
    pp, num_ops = incoming.shape
    size = _MAX_INSTRUCTIONS_PER_OPERATION * num_ops + _MAX_INSTRUCTIONS_PER_OPERATION
    code = np.empty((pp, size), dtype=np.int8)
    argument = np.empty((pp, size), dtype=np.int64)
    length = np.zeros(pp, dtype=np.int64)
    for stage in range(pp):
        warm = num_warmup[stage]
        steady_end = num_ops - warm
        for t in range(num_ops):
            into, out = incoming[stage, t], outgoing[stage, t]
            steady = warm <= t < steady_end
            if mode == IDEAL:
                _emit(code, argument, length, stage, WAIT, into)
                _emit(code, argument, length, stage, COMPUTE, t)
                _emit(code, argument, length, stage, POST, out)
            elif mode == MEGATRON:
                if not steady or t == warm:
                    _emit(code, argument, length, stage, POST, into)
                    _emit(code, argument, length, stage, WAIT, into)
                _emit(code, argument, length, stage, COMPUTE, t)
                following = incoming[stage, t + 1] if steady and t + 1 < steady_end else -1
                _emit(code, argument, length, stage, POST, out)
                _emit(code, argument, length, stage, POST, following)
                _emit(code, argument, length, stage, WAIT, out)
                _emit(code, argument, length, stage, WAIT, following)
            elif mode == MEGATRON_INTERLEAVED_WAITING:
                _emit_waiting(code, argument, length, stage, incoming, arriving, outgoing, t, warm)
            else:
                first_backward = warm + 1 if warm < steady_end else warm
                if t == 0 or (t == first_backward and warm == steady_end):
                    _emit(code, argument, length, stage, POST, arriving[stage, t])
                _emit(code, argument, length, stage, WAIT, into)
                _emit(code, argument, length, stage, COMPUTE, t)
                _emit(code, argument, length, stage, POST, out)
                if not steady:  # warm-up and flush wait for both
                    same_kind = t + 1 < steady_end if t < warm else t + 1 < num_ops
                    following = arriving[stage, t + 1] if same_kind else -1
                    _emit(code, argument, length, stage, POST, following)
                    _emit(code, argument, length, stage, WAIT, out)
                    _emit(code, argument, length, stage, WAIT, following)
                    if t == warm - 1 and warm < steady_end:
                        _emit(code, argument, length, stage, POST, arriving[stage, first_backward])
                else:
                    after = t + 2
                    if after >= steady_end:  # the last forward has no next one, the last backward is followed at once
                        after = steady_end if t == steady_end - 1 and steady_end < num_ops else -1
                    if after >= 0:
                        _emit(code, argument, length, stage, POST, arriving[stage, after])
                    if t - 2 >= warm:
                        _emit(code, argument, length, stage, WAIT, outgoing[stage, t - 2])
    return code, argument, length


@njit(cache=True)
def order(code: Any, argument: Any, length: Any, num_messages: int, receives_posted: bool) -> Any:
    """
    Return an order in which one thread can execute the instructions of all stages.

    Returns stages and positions, shape ``(total,)`` each, the number of executable instructions (below the total on
    deadlock), and the number of deadlocked stages.
    """
    pp = code.shape[0]
    posts = np.zeros(num_messages, dtype=np.int8)
    if receives_posted:
        posts += 1
    total = length.sum()
    stages, positions = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    position = np.zeros(pp, dtype=np.int64)
    count, progress = 0, True
    while progress:
        progress = False
        for stage in range(pp):
            while position[stage] < length[stage]:
                at = position[stage]
                if code[stage, at] == POST:
                    posts[argument[stage, at]] += 1
                elif code[stage, at] == WAIT and posts[argument[stage, at]] < 2:
                    break
                stages[count], positions[count] = stage, at
                count += 1
                position[stage] += 1
                progress = True
    return stages, positions, count, (position < length).sum()


@njit(cache=True)
def program(code: Any, argument: Any, stages: Any, positions: Any, count: int, num_messages: int, posted: bool) -> Any:
    """
    Return the instructions in the given order as rows ``(instruction, stage, value)``, shape ``(at most count, 3)``.

    The second post of a message becomes ``MEET``. A wait for a message that the stage has already passed is kept, as it
    costs little.
    """
    rows = np.empty((count, 3), dtype=np.int32)
    posts = np.zeros(num_messages, dtype=np.int8)
    if posted:
        posts += 1
    for index in range(count):
        stage = stages[index]
        instruction, value = code[stage, positions[index]], argument[stage, positions[index]]
        if instruction == POST:
            posts[value] += 1
            if posts[value] == 2:
                instruction = MEET
        rows[index, 0], rows[index, 1], rows[index, 2] = instruction, stage, value
    return rows


@njit(cache=True, inline="always")
def _execute(
    rows: Any,
    piece: Any,
    launch: Any,
    work_s: Any,
    ready_s: Any,
    hop_s: Any,
    m: int,
    num_forward_rows: int,
    first: int,
    last: int,
    launched: Any,
    finish: Any,
    ends: Any,
    arrivals: Any,
) -> None:
    """
    Execute a program for the replicas from ``first`` up to ``last``; all clocks start at zero.

    Arguments as in :func:`run`; results go to ``launched``, ``finish``, ``ends`` and ``arrivals``.
    """
    pp = work_s.shape[1]
    width = last - first
    num_messages = hop_s.shape[0] * m
    when = np.zeros((num_messages, width))
    clock = np.zeros((pp, width))
    record = ends.shape[0] > 0
    num_chunks = ready_s.shape[0]
    for index in range(rows.shape[0]):
        instruction, stage, value = rows[index, 0], rows[index, 1], rows[index, 2]
        if instruction == COMPUTE:
            row = piece[stage, value]  # (kind * num_chunks + chunk)
            if row < num_forward_rows:
                chunk = row % num_chunks
                for d in range(width):
                    clock[stage, d] = max(
                        clock[stage, d] + work_s[row, stage, first + d], ready_s[chunk, stage, first + d]
                    )
            else:
                for d in range(width):
                    clock[stage, d] += work_s[row, stage, first + d]
                    finish[stage, first + d] = clock[stage, d]
            chunk = launch[stage, value]
            if chunk >= 0:
                for d in range(width):
                    launched[chunk, stage, first + d] = clock[stage, d]
            if record:
                for d in range(width):
                    ends[stage, value, first + d] = clock[stage, d]
        elif instruction == WAIT:
            for d in range(width):
                clock[stage, d] = max(clock[stage, d], when[value, d])
        elif instruction == MEET:
            hop = value // m
            for d in range(width):
                when[value, d] = max(when[value, d], clock[stage, d]) + hop_s[hop, first + d]
        else:
            for d in range(width):
                when[value, d] = clock[stage, d]
    if record:
        for stage in range(when.shape[0]):
            for d in range(last - first):
                arrivals[stage, first + d] = when[stage, d]


@njit(cache=True)
def run(
    rows: Any,
    piece: Any,
    launch: Any,
    work_s: Any,
    ready_s: Any,
    hop_s: Any,
    m: int,
    num_forward_rows: int,
    record: bool,
) -> Any:
    """
    Execute a program for all replicas.

    Parameters
    ----------
    rows
        Instructions from ``program``.
    piece
        Row of ``work_s`` for each operation, shape ``(pp, num_ops)``.
    launch
        Chunk whose reduction may start after an operation, or -1, shape ``(pp, num_ops)``.
    work_s
        Seconds by operation type and chunk, shape ``(types * num_chunks, pp, num_replicas)``; forwards first.
    ready_s
        Earliest end of a chunk's forwards, seconds, shape ``(num_chunks, pp, num_replicas)``.
    hop_s
        Transfer times, seconds, shape ``(messages // m, num_replicas)``.
    m
        Number of micro-batches.
    num_forward_rows
        Number of rows of ``work_s`` that are forwards.

    Returns
    -------
    tuple
        Earliest start of each chunk's reduction, shape ``(num_chunks, pp, num_replicas)``; end of each stage's last
        operation; if ``record``, the end of each operation, shape ``(pp, num_ops, num_replicas)``, and of each message,
        ``(messages, num_replicas)``. All in seconds.
    """
    replicas = work_s.shape[2]
    launched = np.zeros((ready_s.shape[0], work_s.shape[1], replicas))
    finish = np.zeros((work_s.shape[1], replicas))
    kept = replicas if record else 0
    ends = np.zeros((piece.shape[0] if record else 0, piece.shape[1], kept))
    arrivals = np.zeros((hop_s.shape[0] * m if record else 0, kept))
    for first in range(0, replicas, BLOCK):
        last = min(first + BLOCK, replicas)
        _execute(
            rows,
            piece,
            launch,
            work_s,
            ready_s,
            hop_s,
            m,
            num_forward_rows,
            first,
            last,
            launched,
            finish,
            ends,
            arrivals,
        )
    return launched, finish, ends, arrivals
