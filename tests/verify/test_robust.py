"""Upper ends of bands and their lower bound, against the simulated times of every placement."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_job
from small_groups import SPACE, a_job, fastest_times, groups_of, small_worlds

from pipette_opt.candidates import enumerate_candidates
from pipette_opt.memory.filter import keep_fitting
from pipette_opt.memory.predictor import stack_predictor
from pipette_opt.simulate.least_times import peak_gpu_seconds
from pipette_opt.tune.listing import listed_placement
from pipette_opt.verify.regret import group_of
from pipette_opt.verify.robust import log_upper_ends, robust_of, upper_ends_of
from pipette_opt.worlds.bands import SHARE
from pipette_opt.worlds.terms import describe
from pipette_opt.worlds.worlds import Observation, Worlds

pytestmark = pytest.mark.search


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("worlds", [small_worlds(0.02), small_worlds(0.3), Worlds.load()], ids=["near", "wide", "all"])
def test_no_plan_is_below_the_bound(seed: int, worlds: Worlds) -> None:
    """The fastest placement of each configuration has at least the bound as its upper end, for any plan."""
    job, memory = a_job(seed)
    times, groups = fastest_times(seed), groups_of(job, memory)
    factors = upper_ends_of(groups, worlds)
    least = min(factors[group_of(config)] * seconds for config, seconds in times.items())
    for config, seconds in list(times.items())[:3]:
        robust = robust_of(config, seconds, groups, worlds, times)
        assert robust.value_s == pytest.approx(factors[group_of(config)] * seconds)
        assert 0 < robust.lower_bound_s <= least * (1 + 1e-12)
        assert robust.best_s == pytest.approx(least)
        assert robust.gap == pytest.approx(1 - robust.lower_bound_s / least)
        assert robust.shown_gap >= robust.gap - 1e-12


def test_the_bound_of_the_search_closes_the_gap() -> None:
    """If all bands are alike, the proven fastest plan is proven to have the least upper end."""
    job, memory = a_job()
    times = fastest_times()
    config = min(times, key=times.__getitem__)
    alike = replace(small_worlds(1e-9).prior, noise=0.03)
    loose, tight = (
        robust_of(config, times[config], groups_of(job, memory, bound_s), Worlds(prior=alike), times)
        for bound_s in (0.0, times[config])
    )
    assert tight.gap == pytest.approx(0, abs=1e-6)
    assert loose.gap > tight.gap


def test_a_measured_run_lowers_the_upper_end() -> None:
    """Runs as fast as predicted narrow the bands of all groups."""
    job, memory = a_job()
    groups, worlds = groups_of(job, memory), small_worlds()
    runs = [Observation(factors=terms, log_ratio=0.0) for terms in groups.terms]
    before, after = upper_ends_of(groups, worlds), upper_ends_of(groups, worlds.given(runs))
    assert all(after[group] < before[group] for group in groups.numbers)


def test_no_upper_end_is_faster_than_the_peak() -> None:
    """Where all jobs are said to be far faster than predicted, the bound is that of the GPUs' peak."""
    job, memory = a_job()
    groups = groups_of(job, memory)
    fast = replace(small_worlds(), job_mean=-5.0)
    floor_s = peak_gpu_seconds(job) / max(fits.config.world_size for fits in memory.fitting)
    assert (groups.bounds_s * fast.bands(groups.terms, SHARE)[:, 2]).min() < floor_s / 10
    assert groups.world_bounds_s(log_upper_ends(groups, fast)).min() >= floor_s * (1 - 1e-12)


def test_upper_ends_are_those_of_shown_bands() -> None:
    """On equal links the terms of a group are nearly those of a placement: within 1 %."""
    job = make_job(make_cluster(4, gpus=8), LLAMA_8B, 64, 4096)
    memory = keep_fitting(job, enumerate_candidates(job, SPACE)[::11], stack_predictor(job.stack))
    worlds, configs = Worlds.load(), [fits.config for fits in memory.fitting]
    _, terms = describe(job, [(config, listed_placement(job, config)) for config in configs])
    shown, factors = worlds.bands(terms, SHARE)[:, 2], upper_ends_of(groups_of(job, memory), worlds)
    assert len(factors) > 5
    ratios = shown / np.array([factors[group_of(config)] for config in configs])
    assert np.abs(ratios - 1).max() < 0.01
