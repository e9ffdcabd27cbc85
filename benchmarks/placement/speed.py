"""Speed of the annealers: moves per second on one core."""

import time
from dataclasses import dataclass
from itertools import product
from typing import get_args

import numpy as np

from benchmarks.placement.clusters import link_gb_per_s
from benchmarks.placement.problems import Shape, balanced_problem
from pipette_opt.annealing import kernels, swaps
from pipette_opt.annealing.compiled import tables
from pipette_opt.annealing.plain_grid import grid_of
from pipette_opt.base.types import P2PMode
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData

SPEED_SHAPES: tuple[Shape, ...] = ((4, 4), (8, 4), (8, 8), (16, 8), (32, 40))
SPEED_CLUSTERS = ("unif", "tree")
FIRST_MOVES = 1000
"""Number of moves that are timed first, to estimate the number for the wanted seconds. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """Moves per second of this thread's CPU time: tuned kernel, general kernel, and Pipette's kernel."""

    cluster: str
    shape: str
    p2p: str
    tuned_per_s: float
    general_per_s: float
    pipette_per_s: float


def speeds(seconds: float) -> list[SpeedRow]:
    """Return the speed of each kernel on each instance, over about ``seconds`` each, after compilation."""
    rows = []
    for cluster, shape, p2p in product(SPEED_CLUSTERS, SPEED_SHAPES, get_args(P2PMode)):
        data = balanced_problem(link_gb_per_s(cluster, shape[0] * shape[1], 0), shape, p2p)
        tuned, general, pipette = (_per_s(_Kernels(data), name, seconds) for name in ("tuned", "general", "pipette"))
        rows.append(
            SpeedRow(
                cluster=cluster,
                shape=f"{shape[0]}x{shape[1]}",
                p2p=p2p,
                tuned_per_s=tuned,
                general_per_s=general,
                pipette_per_s=pipette,
            )
        )
    return rows


class _Kernels:
    """Kernels on one instance, at temperatures as in the middle of a restart."""

    def __init__(self, data: ProblemData) -> None:
        candidate = data.candidates[0]
        self.tables = tables(data, candidate)
        self.grid = grid_of(self.tables)
        self.random = np.ones(1, dtype=np.uint64)
        self.nodes = np.empty(data.num_nodes, dtype=np.int64)
        kernels.random_start(self.tables, self.nodes, self.random)
        self.archive = np.full((swaps.NUM_ARCHIVED, 2), -1, dtype=np.int64)
        self.archived = np.zeros((swaps.NUM_ARCHIVED, candidate.num_cells), dtype=np.int64)
        self.hot = 0.001 * candidate.num_microbatches * float(np.median(candidate.p2p_ticks))

    def tuned(self, moves: int) -> None:
        """Run the kernel for plain grids."""
        best = self.nodes.copy()
        hot, kept = self.hot, (self.archive, self.archived)
        swaps.anneal_grid(
            self.grid, self.nodes, UNUSABLE_TICKS, best, self.random, 0, moves, moves, hot, hot / 10, 10.0, *kept
        )  # fmt: skip

    def general(self, moves: int) -> None:
        """Run the general kernel, for all grids and schedules."""
        kernels.anneal_tuned(
            self.tables, self.nodes, self.nodes.copy(), self.random, moves, self.hot, self.hot / 10, 3.0
        )

    def pipette(self, moves: int) -> None:
        """Run Pipette's kernel."""
        kernels.anneal_pipette(
            self.tables, self.nodes, self.nodes.copy(), self.random, moves, 1.0, UNUSABLE_TICKS, UNUSABLE_TICKS
        )


def _per_s(instance: _Kernels, name: str, seconds: float) -> float:
    run = getattr(instance, name)
    run(100)
    moves = FIRST_MOVES
    while True:
        started = time.thread_time()
        run(moves)
        passed = max(time.thread_time() - started, 1e-9)
        if passed >= 0.5 * seconds:
            return float(moves / passed)
        moves = int(moves * min(10.0, seconds / passed))
