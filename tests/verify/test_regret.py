"""Regret over worlds, against the simulated times of every placement in every world."""

import numpy as np
import pytest
from small_groups import a_job, fastest_times, groups_of, small_worlds

from pipette_opt.simulate.least_times import peak_gpu_seconds
from pipette_opt.verify.regret import group_of, high_regret, regret_of, weights_of
from pipette_opt.worlds.worlds import Observation

pytestmark = pytest.mark.search


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_is_below_the_bound_of_a_world(seed: int) -> None:
    """In each world, the fastest placement of each configuration takes at least the world's lower bound."""
    job, memory = a_job(seed)
    groups, worlds = groups_of(job, memory), small_worlds()
    log_factors = groups.log_factors(worlds)
    bounds_s = groups.world_bounds_s(log_factors)
    times = fastest_times(seed)
    in_worlds = np.array(
        [seconds * np.exp(log_factors[groups.numbers[group_of(config)]]) for config, seconds in times.items()]
    )
    assert (bounds_s > 0).all()
    assert (bounds_s <= in_worlds.min(axis=0) * (1 + 1e-12)).all()


def test_bounds_do_not_depend_on_the_order_of_questions() -> None:
    """Bounds of groups are simulated when a world needs them, and worlds asked later do not change a bound."""
    job, memory = a_job()
    some, wide = small_worlds(), small_worlds(0.3)
    groups = groups_of(job, memory)
    first = groups.world_bounds_s(groups.log_factors(some))
    groups.world_bounds_s(groups.log_factors(wide))
    assert groups.world_bounds_s(groups.log_factors(some)) == pytest.approx(first, rel=1e-12)


def test_without_doubt_the_fastest_plan_has_no_regret_but_looseness() -> None:
    """If all worlds are equal, regret is the gap to the least bound, and none over the plans found."""
    job, memory = a_job()
    times = fastest_times()
    config = min(times, key=times.__getitem__)
    groups = groups_of(job, memory)
    regret = regret_of(config, times[config], groups, small_worlds(1e-9), times)
    least_bound_s = min(regret.lower_bounds_s)
    assert regret.mean == pytest.approx(times[config] / least_bound_s - 1, rel=1e-6)
    assert regret.over_found_mean == pytest.approx(0, abs=1e-6)
    assert regret.high >= regret.over_found_high


def test_the_bound_of_the_search_tightens_every_world() -> None:
    """With the proven bound of the search, the regret of the fastest plan falls to the gap of the search."""
    job, memory = a_job()
    times = fastest_times()
    config = min(times, key=times.__getitem__)
    groups = groups_of(job, memory, times[config])
    assert regret_of(config, times[config], groups, small_worlds(1e-9), times).high == pytest.approx(0, abs=1e-6)


def test_a_measured_run_lowers_the_regret() -> None:
    """Worlds that agree with a run of the plan's own group disagree less about its neighbours."""
    job, memory = a_job()
    times = fastest_times()
    config = min(times, key=times.__getitem__)
    groups = groups_of(job, memory, times[config])
    before = small_worlds()
    runs = [Observation(factors=terms, log_ratio=0.2) for terms in groups.terms]
    after = regret_of(config, times[config], groups, before.given(runs), times)
    assert after.measured_runs == len(runs)
    assert after.high < regret_of(config, times[config], groups, before, times).high


def test_the_high_quantile_alone_needs_fewer_bounds() -> None:
    """It equals that of the whole regret, and simulates no more groups; bounds start again as they were."""
    job, memory = a_job()
    times, worlds = fastest_times(), small_worlds()
    config = max(times, key=times.__getitem__)
    groups, others = groups_of(job, memory, times[config]), groups_of(job, memory, times[config])
    at_first = groups.bounds_s
    high = high_regret(config, times[config], groups, worlds)
    assert high == pytest.approx(regret_of(config, times[config], others, worlds, {}).high, rel=1e-12)
    assert (groups.bounds_s <= others.bounds_s).all()
    groups.start_again()
    assert groups.bounds_s == pytest.approx(at_first, rel=0)
    assert high_regret(config, times[config], groups, worlds) == high


@pytest.mark.parametrize("quantile", [None, 0.9])
def test_weights_say_the_regret_of_a_plan(quantile: float | None) -> None:
    """Predicted time times the weight of its group is 1 plus the regret, mean or quantile."""
    job, memory = a_job()
    times = fastest_times()
    groups, worlds = groups_of(job, memory), small_worlds()
    weights = weights_of(groups, worlds, quantile)
    for config, seconds in list(times.items())[:5]:
        regret = regret_of(config, seconds, groups, worlds, times)
        right = regret.mean if quantile is None else regret.high
        assert seconds * weights[group_of(config)] == pytest.approx(1 + right, rel=1e-9)


def test_configurations_with_much_compute_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two choices of degrees are looked at; all others take at least the stated time by their compute."""
    job, memory = a_job()
    monkeypatch.setattr("pipette_opt.verify.regret.MAX_KINDS", 2)
    groups, times = groups_of(job, memory), fastest_times()
    assert len({group[:-1] for group in groups.numbers}) == 2
    assert groups.left_out_s is not None
    left_out = [seconds for config, seconds in times.items() if group_of(config) not in groups.numbers]
    assert left_out
    assert min(left_out) >= groups.left_out_s


def test_no_world_is_faster_than_the_peak() -> None:
    """In wild worlds the bound is the model's FLOPs at the peak of all GPUs of a group, and no less."""
    job, memory = a_job()
    groups = groups_of(job, memory)
    floor_s = peak_gpu_seconds(job) / max(fits.config.world_size for fits in memory.fitting)
    wild = small_worlds(3.0)
    assert (groups.bounds_s[:, None] * np.exp(wild.log_factors(groups.terms))).min() < floor_s / 10
    assert groups.world_bounds_s(groups.log_factors(wild)).min() >= floor_s * (1 - 1e-12)
