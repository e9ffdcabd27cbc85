"""
Baseline Varuna: pipelines without tensor parallelism, chosen by simulating its schedule with two link speeds.

S. Athlur, N. Saran, M. Sivathanu, R. Ramjee, N. Kwatra, "Varuna: Scalable, Low-cost Training of Massive Deep Learning
Models", EuroSys 2022. Rules as in ``varuna/auto_config.py``, ``varuna/launcher.py`` and ``tools/simulator`` of its
release (github.com/microsoft/varuna), without the simulator's random jitter.
"""

import heapq
import time
from collections import deque
from collections.abc import Sequence
from itertools import count

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.solution import Result, Solution, checked_solution, result_of


def varuna(data: ProblemData) -> Result:
    """
    Return the pipeline depth with the least time in Varuna's simulator, each with the largest micro-batch that fits.

    The result's objective is that of our relaxation. Varuna has no tensor or context parallelism and equal
    stages. It recomputes where a candidate does, and shards the optimizer only where every candidate does. Consecutive
    ranks form a pipeline. Hosts are used in listed order if they have the memory and links; no other hosts are tried.
    """
    started = time.perf_counter()
    best: dict[int, tuple[tuple[int, ...], Solution]] = {}
    for index, candidate in enumerate(data.candidates):
        if not _is_known(data, candidate):
            continue
        solution = checked_solution(data, index, varuna_nodes(candidate))
        depth, rank = candidate.num_stages, _preference(candidate)
        if solution is not None and (depth not in best or rank < best[depth][0]):
            best[depth] = rank, solution
    solutions = [solution for _, solution in best.values()]
    chosen = min(solutions, key=lambda found: varuna_ticks(data, data.candidates[found.candidate]), default=None)
    bounds = [optimistic_ticks(data, candidate) for candidate in data.candidates]
    return result_of([] if chosen is None else [chosen], bounds, started)


def varuna_nodes(candidate: CandidateData) -> IntArray:
    """Return hosts 0, 1, 2, ... along one pipeline after the other, in the shape of the candidate's grid."""
    P, D, K = candidate.grid
    return np.arange(candidate.num_cells, dtype=np.int64).reshape(D, P, K).transpose(1, 0, 2)


def varuna_ticks(data: ProblemData, candidate: CandidateData) -> int:
    """
    Return Varuna's estimate of an iteration in ticks: its simulated schedule, plus one all-reduce.

    Compute times are those of the first host's GPU type. Sends have two speeds, inside a host and between hosts, and
    the all-reduce has one: the medians of the measured links.
    """
    kind = int(data.kind_of_node[0])
    row = np.arange(candidate.num_stages) // candidate.tile.stages
    send = np.where(row[:-1] == row[1:], candidate.intra_p2p_ticks, _median_link(candidate.p2p_ticks))
    forward, backward = candidate.forward_ticks[kind], candidate.backward_ticks[kind]
    recomputes = candidate.config.recomputation == "full"
    ring = candidate.ring_floor_ticks
    if candidate.ring_length > 1:
        medians = np.array([_median_link(ticks) for ticks in candidate.ring_ticks], dtype=np.int64)
        ring = np.maximum(ring, medians[candidate.ring_class])
    pipeline = simulate(
        forward.tolist(),
        (np.maximum(backward - forward, 0) if recomputes else backward).tolist(),
        send.tolist(),
        candidate.num_microbatches,
        recomputes=recomputes,
    )
    return pipeline + int(ring.max())


def simulate(
    forward: Sequence[int],
    backward: Sequence[int],
    send: Sequence[int],
    num_microbatches: int,
    *,
    recomputes: bool,
) -> int:
    """
    Return the time at which the last backward pass of Varuna's schedule ends, in the unit of the arguments.

    A free stage starts the first task that is ready: a backward pass (recomputed before, except on the last stage), a
    recomputation, a forward pass. A micro-batch may be recomputed when the next stage is halfway through its backward
    pass. From then until the micro-batch's own backward pass ends, the stage starts no other task. A stage sends one
    message at a time, activations before gradients, while it computes.

    Parameters
    ----------
    forward, backward
        Time of each stage. With ``recomputes``, backward excludes the recomputation, which takes as long as a forward.
    send
        Time of a message between adjacent stages, one fewer than stages.
    """
    return _Simulation(forward, backward, send, num_microbatches, recomputes=recomputes).run()


class _Stage:
    """Task queues of one stage, by micro-batch, and its running tasks."""

    def __init__(self) -> None:
        self.forwards: deque[int] = deque()
        self.backwards: deque[int] = deque()
        self.recomputations: deque[int] = deque()
        self.activations: deque[int] = deque()
        self.gradients: deque[int] = deque()
        self.computing = self.sending = False
        self.recomputed: int | None = None


class _Simulation:
    """Discrete-event simulation of the schedule; events at equal times run in the order of their creation."""

    def __init__(
        self, forward: Sequence[int], backward: Sequence[int], send: Sequence[int], m: int, *, recomputes: bool
    ) -> None:
        self.forward, self.backward, self.send, self.recomputes = forward, backward, send, recomputes
        self.last = len(forward) - 1
        self.stages = [_Stage() for _ in forward]
        self.stages[0].forwards.extend(range(m))
        self.events: list[tuple[int, int, str, int, int]] = []
        self.number = count()

    def run(self) -> int:
        """Run the simulation and return the time of its last event."""
        now = 0
        self._serve(0, 0)
        while self.events:
            now, _, event, stage, batch = heapq.heappop(self.events)
            getattr(self, f"_{event}")(now, stage, batch)
            self._serve(now, stage)
        return now

    def _add(self, time_: int, event: str, stage: int, batch: int) -> None:
        heapq.heappush(self.events, (time_, next(self.number), event, stage, batch))

    def _serve(self, now: int, stage: int) -> None:
        """Start the computation and the sends of a stage that can start now."""
        state = self.stages[stage]
        if not state.computing:
            self._compute(now, stage, state)
        if not state.sending and state.activations:
            state.sending = True
            self._add(now + self.send[stage], "activation_sent", stage, state.activations.popleft())
        if not state.sending and state.gradients:
            state.sending = True
            self._add(now + self.send[stage - 1], "gradient_sent", stage, state.gradients.popleft())

    def _compute(self, now: int, stage: int, state: _Stage) -> None:
        ready = not self.recomputes or stage == self.last
        if state.backwards and (ready or state.backwards[0] == state.recomputed):
            batch, state.computing = state.backwards.popleft(), True
            self._add(now + self.backward[stage], "backward_done", stage, batch)
            if self.recomputes and stage > 0:
                self._add(now + self.backward[stage] // 2, "recomputation_due", stage - 1, batch)
        elif state.recomputed is None and state.recomputations:
            state.computing = True
            self._add(now + self.forward[stage], "recomputation_done", stage, state.recomputations.popleft())
        elif state.recomputed is None and state.forwards:
            state.computing = True
            self._add(now + self.forward[stage], "forward_done", stage, state.forwards.popleft())

    def _forward_done(self, now: int, stage: int, batch: int) -> None:
        state = self.stages[stage]
        state.computing = False
        (state.activations if stage < self.last else state.backwards).append(batch)

    def _backward_done(self, now: int, stage: int, batch: int) -> None:
        state = self.stages[stage]
        state.computing, state.recomputed = False, None
        if stage > 0:
            state.gradients.append(batch)

    def _recomputation_due(self, now: int, stage: int, batch: int) -> None:
        self.stages[stage].recomputations.append(batch)

    def _recomputation_done(self, now: int, stage: int, batch: int) -> None:
        self.stages[stage].computing, self.stages[stage].recomputed = False, batch

    def _activation_sent(self, now: int, stage: int, batch: int) -> None:
        self.stages[stage].sending = False
        self.stages[stage + 1].forwards.append(batch)
        self._serve(now, stage + 1)

    def _gradient_sent(self, now: int, stage: int, batch: int) -> None:
        self.stages[stage].sending = False
        self.stages[stage - 1].backwards.append(batch)
        self._serve(now, stage - 1)


def _is_known(data: ProblemData, candidate: CandidateData) -> bool:
    """Return whether Varuna can express the candidate: no tensor parallelism, hosts of consecutive stages."""
    config, tile = candidate.config, candidate.tile
    plain = config.tensor_model_parallel_size == config.context_parallel_size == config.num_chunks == 1
    plain &= config.reduces_in_one_ring  # neither ZeRO 2 nor 3
    along = tile.replicas == 1 or tile.stages == candidate.num_stages
    return plain and along and candidate.num_cells <= data.num_nodes


def _preference(candidate: CandidateData) -> tuple[int, ...]:
    """
    Return the sort key of Varuna's choice, least first.

    It prefers recomputation, then the largest micro-batch, no sharded optimizer, and equal stages.
    """
    config = candidate.config
    return (
        int(config.recomputation != "full"),
        -config.micro_batch_size,
        int(config.use_distributed_optimizer),
        max(config.layers_per_stage) - min(config.layers_per_stage),
    )


def _median_link(ticks: IntArray) -> int:
    usable = ticks[ticks < UNUSABLE_TICKS]
    return int(np.median(usable)) if usable.size else UNUSABLE_TICKS
