"""Annealing on several threads, with a seed of its own on each."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution

SEED_STEP = 1000
"""Difference between the seeds of two threads, or of two pieces of work in processes. Chosen."""


def anneal_on_threads(
    data: ProblemData,
    params: AnnealingParams,
    threads: int,
    stop: threading.Event | None = None,
    start: Sequence[Solution] = (),
) -> list[Result]:
    """What annealing finds on each thread, from placements known already; the first has the seed of the parameters."""
    settings = [replace(params, seed=params.seed + SEED_STEP * number) for number in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda one: anneal(data, one, stop=stop, start=start), settings))
