"""Bounds that commands print, compared with simulated placements drawn at random: none is above what can be had."""

from dataclasses import replace

import numpy as np
import pytest
from benchmark_modules import loaded

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.certify.why import why
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import ParallelConfig, host_tiles, tile_placement
from pipette_opt.plans.plainness import kind_of
from pipette_opt.plans.plan import Plan
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.least_times import LeastTimes
from pipette_opt.specs import Instance

pytestmark = pytest.mark.search

ROUNDING = 2e-6
"""Relative excess of a bound that the solver's ticks may cause."""

SPACE = SearchSpace(micro_batch_size=(1, 2), recompute=(None,), max_virtual_pipeline=2)

PLACED = 16
"""Configurations placed at random for each job."""


def job_of(seed: int) -> Instance:
    """A small job with random links, hosts, layers and experts, and GPUs that hold everything."""
    job: Instance = loaded("soak", "hardening").made_instance(seed, small=True, regions=seed % 2 == 0)
    nodes = tuple(replace(node, gpu=replace(node.gpu, memory_bytes=1 << 50)) for node in job.cluster.nodes)
    return replace(job, cluster=replace(job.cluster, nodes=nodes))


def times_of(job: Instance, configs: list[ParallelConfig], rng: np.random.Generator) -> dict[ParallelConfig, float]:
    """Least simulated time of each of some configurations over a few random placements."""
    found: dict[ParallelConfig, float] = {}
    for index in rng.permutation(len(configs))[:PLACED].tolist():
        config = configs[index]
        for tile in host_tiles(config, job.cluster.gpus_per_node, job.launcher):
            grid = tile.node_grid(config)
            if np.prod(grid) > job.cluster.num_nodes:
                continue
            for _ in range(4):
                nodes = rng.permutation(job.cluster.num_nodes)[: np.prod(grid)].reshape(grid)
                try:
                    seconds = estimate(job, config, tile_placement(config, tile, nodes)).iteration_time_s
                except InputError:  # a link that was not measured
                    continue
                found[config] = min(seconds, found.get(config, np.inf))
    return found


def bounds_of_plan(plan: Plan, config: ParallelConfig) -> dict[str, float]:
    """Bounds that a plan states for a configuration that its search covers."""
    certificate = plan.certificate
    found = {"lower bound": certificate.lower_bound_s}
    found |= {
        f"bound of alternative {other.config.label()}": other.lower_bound_s
        for other in plan.alternatives
        if other.lower_bound_s is not None and kind_of(other.config) == kind_of(config)
    }
    least_s = min((part.bound_s for part in certificate.proof if part.bound_s is not None), default=0.0)
    return found | {"least bound of the proof": min(least_s, certificate.best_s)}


@pytest.mark.parametrize("seed", range(6))
def test_no_printed_bound_is_above_a_placement(seed: int) -> None:
    """Of ``solve`` and what reads its plan, of ``explain``, and of other numbers of GPUs, on random jobs."""
    job, rng, space = job_of(seed), np.random.default_rng(seed), SPACE
    try:
        configs = enumerate_candidates(job, space)
        plan = optimize(job, space, OptimizeParams(time_limit_s=0.3, workers=1, max_oom_risk=0.5))
    except InfeasibleError:
        pytest.skip("nothing can be placed")
    least, placed = LeastTimes(job, space), times_of(job, configs, rng)
    for number, (config, seconds) in enumerate(placed.items()):
        bounds = bounds_of_plan(plan, config)
        if config.world_size in least.numbers:
            bounds["other numbers of GPUs"] = least(config.world_size)
        if number < 3:
            told = why(job, space, config.label(), 0.5)
            bounds["explain"] = told.bound_s or 0.0
        for name, bound_s in bounds.items():
            assert bound_s <= seconds * (1 + ROUNDING), f"{name} is {bound_s} s; {config.label()} takes {seconds} s"
