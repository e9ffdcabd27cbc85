"""Objectives that are a factor of each configuration times its time."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.candidates import SearchSpace
from pipette_opt.candidates.space import LIMITED, beyond_limits
from pipette_opt.certify.weights import Larger, Weights, choice_of, robust_weights
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.chosen import ChoiceStep
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.specs import GpuSpec, Instance
from pipette_opt.specs.objective import Objective
from pipette_opt.worlds.bands import ANY_JOB, DISTANCES, job_band, shipped_bands


def random_weights(rng: np.random.Generator) -> Weights:
    """Some limits with factors around the base, one of them infinite."""
    names = rng.permutation(LIMITED)[: rng.integers(1, 5)]
    larger = [Larger(name=str(name), most=int(rng.integers(1, 5)), factor=float(rng.uniform(0.8, 3))) for name in names]
    if rng.random() < 0.5:
        larger[0] = replace(larger[0], factor=float("inf"))
    return Weights(base=1.3, larger=tuple(larger))


def random_configs(rng: np.random.Generator, count: int = 30) -> list[ParallelConfig]:
    """Degrees up to eight."""
    return [make_config(*map(int, 2 ** rng.integers(0, 4, size=4)), num_layers=8) for _ in range(count)]


@pytest.mark.parametrize("seed", range(10))
def test_limits_are_those_of_smaller_factors(seed: int) -> None:
    """A configuration is within the limits below a factor if, and only if, its own is smaller."""
    rng = np.random.default_rng(seed)
    weights, configs = random_weights(rng), random_configs(rng)
    factors = {weights.factor(one) for one in configs} | {float("inf"), weights.base}
    for factor in factors:
        limits = weights.limits_below(factor)
        inside = [limits is not None and not beyond_limits(SearchSpace(limits=limits), one) for one in configs]
        assert inside == [weights.factor(one) < factor for one in configs]
    assert len({weights.factor(one) for one in configs} - {float("inf")}) <= weights.num_factors


@pytest.mark.parametrize("seed", range(20))
def test_steps_bound_the_objective(seed: int) -> None:
    """Random times, each step ends some way from the fastest: the bound is never above the least objective."""
    rng = np.random.default_rng(seed)
    weights, configs = random_weights(rng), random_configs(rng)
    seconds = dict(zip(configs, rng.uniform(1, 2, len(configs)).tolist(), strict=True))
    least = min(weights.factor(one) * time for one, time in seconds.items())
    if least == float("inf"):
        return
    steps, limits = list[ChoiceStep](), weights.limits_below(float("inf"))
    while limits is not None:
        space = SearchSpace(limits=limits)
        within = {one: time for one, time in seconds.items() if not beyond_limits(space, one)}
        if not within:
            break
        found = sorted(within, key=lambda one: within[one])[min(int(rng.integers(0, 3)), len(within) - 1)]
        factor = weights.factor(found)
        steps.append(
            ChoiceStep(
                limits=limits,
                plan=found.label(),
                factor=factor,
                iteration_time_s=within[found],
                lower_bound_s=min(within.values()) * float(rng.uniform(0.9, 1)),
            )
        )
        limits = weights.limits_below(factor)
        if rng.random() < 0.3:
            break
        limits = None if limits == steps[-1].limits else limits
    is_whole = limits is None or not [one for one in seconds if not beyond_limits(SearchSpace(limits=limits), one)]
    choice = choice_of(Objective.ROBUST, weights, steps, is_whole=is_whole)
    assert choice.lower_bound <= least * (1 + 1e-12)
    assert choice.lower_bound <= choice.value == min(one.factor * one.iteration_time_s for one in steps)
    assert choice.gap == pytest.approx(1 - choice.lower_bound / choice.value)


def job(gpu: str) -> Instance:
    """Llama 3 8B on two hosts of a GPU from the catalogue."""
    return make_job(make_cluster(2, kinds=(read_gpu_catalogue()[gpu].gpu,)), LLAMA_8B)


def test_robust_factors_are_upper_ends_of_bands() -> None:
    """Inside and beyond what runs had, also on more GPUs than any had: a wider band."""
    given = job("h100-80gb")
    weights = robust_weights(given)
    most = shipped_bands().kinds[ANY_JOB].seen
    tensor, context = (2 * most[f"{name}_model_parallel_size"] for name in ("tensor", "pipeline"))
    for one in (
        make_config(dp=8),
        make_config(tp=tensor),
        make_config(pp=2),
        make_config(tp=tensor, context_parallel_size=context),
    ):
        assert weights.factor(one) == pytest.approx(job_band(given, one, 10.0).high_s / 10.0)
    assert (
        weights.factor(make_config(tp=tensor)) > weights.factor(make_config(dp=8)) == weights.factor(make_config(pp=2))
    )
    assert set(LIMITED) == {"world_size", *DISTANCES}
    large = make_job(make_cluster(64, kinds=(read_gpu_catalogue()["h100-80gb"].gpu,)), LLAMA_8B)
    for gpus in (64, 128, 256):
        factor = robust_weights(large).factor(make_config(dp=gpus))
        assert factor == pytest.approx(job_band(large, make_config(dp=gpus), 10.0).high_s / 10.0)


def test_robust_works_on_gpus_that_nobody_measured() -> None:
    """By the band of any job."""
    other = GpuSpec(name="mi300x", memory_bytes=10**11, peak_flops={"bf16": 1e15}, memory_bytes_per_s=5e12)
    assert 1 < robust_weights(make_job(make_cluster(2, kinds=(other,)), LLAMA_8B)).base < float("inf")
