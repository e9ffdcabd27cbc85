"""Groups of configurations of tiny jobs, with the simulated times of every placement."""

from functools import cache

import numpy as np
from all_placements import least_s
from factories import TINY, make_job, make_random_cluster

from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.memory.filter import MemoryCheck, keep_fitting
from pipette_opt.memory.predictor import stack_predictor
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance
from pipette_opt.verify.regret import Groups
from pipette_opt.worlds.prior import Kind, Prior
from pipette_opt.worlds.terms import TERMS
from pipette_opt.worlds.worlds import Worlds

SPACE = SearchSpace(micro_batch_size=(1,), recompute=(None, "selective"), context_parallel=(1,))


def small_worlds(scale: float = 0.05) -> Worlds:
    """Worlds whose slopes have equal standard deviations."""
    num_terms = len(TERMS)
    prior = Prior(
        kinds=(Kind(1.0),),
        mean=np.zeros(num_terms),
        sd=np.full(num_terms, scale),
        job=scale,
        job_length=3.0,
        layout=scale,
        layout_length=2.0,
        both=scale,
        noise=0.03,
    )
    return Worlds(prior=prior)


@cache
def a_job(seed: int = 0) -> tuple[Instance, MemoryCheck]:
    """A tiny model on three hosts with random links, and every seventh legal configuration."""
    job = make_job(make_random_cluster(np.random.default_rng(seed), 3, gpus=4), TINY, 24, 2048)
    return job, keep_fitting(job, enumerate_candidates(job, SPACE)[::7], stack_predictor(job.stack))


def groups_of(job: Instance, memory: MemoryCheck, least_bound_s: float = 0.0) -> Groups:
    """Groups of the configurations that fit."""
    groups = Groups(job, memory.fitting, memory.capacity_bytes)
    groups.least_s = least_bound_s
    return groups


@cache
def fastest_times(seed: int = 0) -> dict[ParallelConfig, float]:
    """Time of the fastest placement of each configuration, by simulating them all."""
    job, memory = a_job(seed)
    return least_s(job, [fits.config for fits in memory.fitting])
