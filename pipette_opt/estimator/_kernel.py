"""Compiled loops of the critical path; imported only when something is judged, as numba takes a while to load."""

from typing import Any

import numpy as np
from numba import njit

COMPUTE, POST, WAIT = 0, 1, 2
IDEAL, MEGATRON, MEGATRON_INTERLEAVED = 0, 1, 2

_MAX_INSTRUCTIONS_PER_OPERATION = 8


@njit(cache=True)
def _emit(code: Any, argument: Any, length: Any, stage: int, what: int, value: int) -> None:
    """Append an instruction; a message that does not exist (-1) is skipped."""
    if value >= 0:
        code[stage, length[stage]] = what
        argument[stage, length[stage]] = value
        length[stage] += 1


@njit(cache=True)
def instructions(incoming: Any, outgoing: Any, num_warmup: Any, mode: int) -> Any:
    """
    What each stage does: compute an operation, post a message (as sender or receiver), wait for a message.

    ``incoming`` and ``outgoing`` are the messages of each operation or -1, shape ``(pp, num_ops)``. Returns codes and
    arguments, shape ``(pp, at least the longest)``, and lengths, shape ``(pp,)``.
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
            else:
                first_backward = warm + 1 if warm < steady_end else warm
                if t == 0 or (t == first_backward and warm == steady_end):
                    _emit(code, argument, length, stage, POST, into)
                _emit(code, argument, length, stage, WAIT, into)
                _emit(code, argument, length, stage, COMPUTE, t)
                _emit(code, argument, length, stage, POST, out)
                if not steady:  # warm-up and flush wait for both
                    same_kind = t + 1 < steady_end if t < warm else t + 1 < num_ops
                    following = incoming[stage, t + 1] if same_kind else -1
                    _emit(code, argument, length, stage, POST, following)
                    _emit(code, argument, length, stage, WAIT, out)
                    _emit(code, argument, length, stage, WAIT, following)
                    if t == warm - 1 and warm < steady_end:
                        _emit(code, argument, length, stage, POST, incoming[stage, first_backward])
                else:
                    after = t + 2
                    if after >= steady_end:  # the last forward has no next one, the last backward is followed at once
                        after = steady_end if t == steady_end - 1 and steady_end < num_ops else -1
                    if after >= 0:
                        _emit(code, argument, length, stage, POST, incoming[stage, after])
                    if t - 2 >= warm:
                        _emit(code, argument, length, stage, WAIT, outgoing[stage, t - 2])
    return code, argument, length


@njit(cache=True)
def run(
    code: Any,
    argument: Any,
    length: Any,
    is_backward: Any,
    chunk: Any,
    forward_s: Any,
    backward_s: Any,
    hop_s: Any,
    num_microbatches: int,
    receives_posted: bool,
) -> Any:
    """
    Execute the instructions of all replicas at once.

    ``forward_s`` and ``backward_s`` have shape ``(num_chunks, pp, num_replicas)``, ``hop_s`` the transfer times
    ``(messages // num_microbatches, num_replicas)``. Returns the end of each stage's last backward, shape
    ``(pp, num_replicas)``, and the number of stages that are stuck.
    """
    pp, replicas = code.shape[0], forward_s.shape[2]
    num_messages = hop_s.shape[0] * num_microbatches
    posts = np.zeros(num_messages, dtype=np.int8)
    if receives_posted:
        posts += 1
    when = np.zeros((num_messages, replicas))
    clock = np.zeros((pp, replicas))
    finish = np.zeros((pp, replicas))
    position = np.zeros(pp, dtype=np.int64)
    progress = True
    while progress:
        progress = False
        for stage in range(pp):
            at = position[stage]
            while at < length[stage]:
                what, value = code[stage, at], argument[stage, at]
                if what == COMPUTE:
                    piece = chunk[stage, value]
                    if is_backward[stage, value]:
                        for d in range(replicas):
                            clock[stage, d] += backward_s[piece, stage, d]
                            finish[stage, d] = clock[stage, d]
                    else:
                        for d in range(replicas):
                            clock[stage, d] += forward_s[piece, stage, d]
                elif what == POST:
                    posts[value] += 1
                    if posts[value] == 1:
                        for d in range(replicas):
                            when[value, d] = clock[stage, d]
                    else:
                        hop = value // num_microbatches
                        for d in range(replicas):
                            when[value, d] = max(when[value, d], clock[stage, d]) + hop_s[hop, d]
                else:
                    if posts[value] < 2:
                        break
                    for d in range(replicas):
                        clock[stage, d] = max(clock[stage, d], when[value, d])
                at += 1
            if at > position[stage]:
                position[stage] = at
                progress = True
    return finish, (position < length).sum()
