"""Annealing near a placement: one that a proof promises to be good, and the incumbent at the end."""

from concurrent.futures import ThreadPoolExecutor

from pipette_opt.annealing.anneal import REFINED_FACTOR, refine
from pipette_opt.annealing.threads import SEED_STEP
from pipette_opt.base.types import IntArray
from pipette_opt.problem.solution import Solution
from pipette_opt.solver.incumbent import Incumbent

REFINED_S = 1.0
"""Largest number of seconds in which a placement that a proof promises is refined. Chosen."""

REFINED_SHARE = 0.02
"""Share of the time left, for the same. Chosen."""

POLISHED_FACTORS = (0.01, 0.1)
"""
Temperature factors of the incumbent's annealing at the end, of the threads in turn. They are small, as mostly what is
left is which of like hosts is where. Chosen.
"""

MOVES_PER_S = 2e6
"""Moves that annealing makes in a second on grids of up to 128 hosts, about."""

FULL_SPEED_CELLS = 128
"""Cells above which annealing makes fewer moves in a second, in proportion."""


def offer_refined(incumbent: Incumbent, index: int, nodes: IntArray) -> None:
    """Offer hosts of a candidate's cells, in the order of its grid: as they are, and as annealing improves them."""
    solution = Solution(candidate=index, nodes=nodes.reshape(incumbent.data.candidates[index].grid), objective_ticks=0)
    incumbent.offer(solution)
    if incumbent.params.anneals:
        _refine(incumbent, solution, min(REFINED_S, REFINED_SHARE * incumbent.seconds_left))


def polish(incumbent: Incumbent) -> None:
    """Anneal the incumbent for a moment on every thread, whatever ended the run."""
    best, seconds = incumbent.best, incumbent.params.polishing_s(incumbent.passed_s)
    if best is None:
        return
    threads = incumbent.params.num_workers
    with ThreadPoolExecutor(threads) as pool:
        for running in [pool.submit(_polish, incumbent, best, seconds, number) for number in range(threads)]:
            running.result()


def _polish(incumbent: Incumbent, best: Solution, seconds: float, number: int) -> None:
    factor = POLISHED_FACTORS[number % len(POLISHED_FACTORS)]
    _refine(incumbent, best, seconds, SEED_STEP * number, factor, stoppable=False)


def _refine(
    incumbent: Incumbent,
    solution: Solution,
    seconds: float,
    seed: int = 0,
    factor: float = REFINED_FACTOR,
    *,
    stoppable: bool = True,
) -> None:
    """Offer what annealing makes of a solution in so many seconds, about; ``seed`` counts from that of the run."""
    data = incumbent.given
    speed = MOVES_PER_S * min(1.0, FULL_SPEED_CELLS / data.candidates[solution.candidate].num_cells)
    moves, stop = int(speed * seconds), incumbent.stop if stoppable else None
    if moves > 0:
        better = refine(data, solution, moves=moves, seed=incumbent.params.seed + seed, factor=factor, stop=stop)
        if better is not None:
            incumbent.offer(better)
