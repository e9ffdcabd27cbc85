"""Annealing on several threads, each with its own seed."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution

SEED_STEP = 1000
"""Difference between the seeds of two threads or processes. Chosen."""


def anneal_on_threads(
    data: ProblemData,
    params: AnnealingParams,
    threads: int,
    stop: threading.Event | None = None,
    start: Sequence[Solution] = (),
) -> list[Result]:
    """Anneal on each thread from known placements; return results by thread. The first has the seed of ``params``."""
    settings = [replace(params, seed=params.seed + SEED_STEP * number) for number in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda setting: anneal(data, setting, stop=stop, start=start), settings))
