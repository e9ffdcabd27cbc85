"""Worlds: draws of the prior, and how measured runs move them."""

from dataclasses import replace

import numpy as np
import pytest

from pipette_opt.base.types import FloatArray
from pipette_opt.worlds.prior import USUAL_HIDDEN, Kind, Prior, shipped_priors
from pipette_opt.worlds.terms import TERMS
from pipette_opt.worlds.worlds import NUM_WORLDS, Observation, Worlds


def make_prior(**changes: float) -> Prior:
    """A prior whose slopes are all known but for the constant and tensor parallelism."""
    sd = np.zeros(len(TERMS))
    sd[TERMS.index("constant")], sd[TERMS.index("tensor parallelism")] = 0.3, 0.1
    shape = {"job": 0.05, "job_length": 2.0, "layout": 0.05, "layout_length": 2.0, "both": 0.02, "noise": 0.03}
    return Prior(
        kinds=(Kind(1.0), Kind(0.0), Kind(0.0), Kind(0.0)), mean=np.zeros(len(TERMS)), sd=sd, **{**shape, **changes}
    )


def make_terms(num_configs: int = 6) -> FloatArray:
    """Terms of configurations that double tensor parallelism one after the other."""
    terms = np.zeros((num_configs, len(TERMS)))
    terms[:, TERMS.index("constant")] = 1.0
    terms[:, TERMS.index("tensor parallelism")] = np.arange(num_configs)
    return terms


def test_draws_have_the_moments_of_the_prior() -> None:
    """The mean over the worlds is exact, as every second draw mirrors another; the spread nearly so."""
    worlds, terms = Worlds(prior=make_prior()), make_terms()
    drawn = worlds.log_factors(terms)
    mean, sd = worlds.mean_and_sd(terms)
    assert drawn.shape == (6, NUM_WORLDS)
    assert drawn.mean(axis=1) == pytest.approx(mean, abs=1e-12)
    assert drawn.std(axis=1) == pytest.approx(sd, rel=0.3)


def test_a_world_is_a_function_of_the_terms() -> None:
    """A configuration has the same time in a world whichever configurations are asked for beside it."""
    worlds, terms = Worlds(prior=make_prior()), make_terms()
    assert worlds.log_factors(terms)[2:3] == pytest.approx(worlds.log_factors(terms[2:3]))


def test_one_run_moves_every_world() -> None:
    """After a run of twice the time, worlds give its configuration twice the time, and its neighbour nearly so."""
    terms = make_terms()
    known = Worlds(prior=make_prior()).given([Observation(factors=terms[0], log_ratio=float(np.log(2)))])
    mean, sd = known.mean_and_sd(terms)
    assert mean[0] == pytest.approx(np.log(2), abs=0.02)
    assert mean[1] == pytest.approx(np.log(2), abs=0.05)
    assert np.all(np.diff(sd) > 0)
    assert known.log_factors(terms).mean(axis=1) == pytest.approx(mean, abs=1e-12)
    low, middle, high = known.bands(terms)[0]
    assert low < middle < high
    assert high / low < 1.3


def test_runs_move_the_worlds_one_by_one_or_together() -> None:
    """Two runs given in turn, in either order, or at once leave the same worlds."""
    terms = make_terms()
    runs = [Observation(factors=terms[row], log_ratio=ratio) for row, ratio in ((0, 0.4), (3, 0.7))]
    prior = Worlds(prior=make_prior())
    together = prior.given(runs).mean_and_sd(terms)
    for order in (runs, runs[::-1]):
        in_turn = prior.given(order[:1]).given(order[1:]).mean_and_sd(terms)
        assert np.array(in_turn) == pytest.approx(np.array(together))


def test_fifty_runs_leave_the_worlds_apart() -> None:
    """Worlds do not fall together with many runs: away from them they still differ."""
    terms = make_terms()
    runs = [Observation(factors=terms[0], log_ratio=0.3)] * 50
    drawn = Worlds(prior=make_prior()).given(runs).log_factors(terms)
    assert len(np.unique(drawn[0].round(12))) == NUM_WORLDS
    assert drawn[0].std() < 0.01
    assert drawn[5].std() > 0.1


def test_what_two_plans_share_cancels_out_of_their_ratio() -> None:
    """A constant of any size leaves the ratio alone; a slope counts by the difference, and the noise twice."""
    prior = make_prior(job=0.3, layout=1e-9, both=1e-9)
    terms = make_terms()
    ends = np.log(Worlds(prior=prior).ratio_bands(terms[1:], terms[0]))
    steps = np.arange(1, 6)
    reach = 1.6449 * np.sqrt((0.1 * steps) ** 2 + 2 * 0.03**2)
    assert ends == pytest.approx(np.column_stack([-reach, np.zeros(5), reach]), abs=1e-3)
    constant = replace(prior, sd=np.where(np.array(TERMS) == "constant", 3.0, prior.sd))
    assert np.log(Worlds(prior=constant).ratio_bands(terms[1:], terms[0])) == pytest.approx(ends)


def test_runs_of_both_plans_tell_their_ratio() -> None:
    """A run of each moves the middle to the measured ratio; the range that is left is little but noise."""
    terms = make_terms()
    runs = [Observation(factors=terms[row], log_ratio=ratio) for row, ratio in ((0, 0.5), (4, 0.9))] * 20
    low, middle, high = np.log(Worlds(prior=make_prior()).given(runs).ratio_bands(terms[4:5], terms[0])[0])
    assert middle == pytest.approx(0.4, abs=0.02)
    noise = 2 * 1.6449 * np.sqrt(2) * 0.03
    assert noise < high - low < 1.2 * noise


def test_ranges_of_ratios_agree_with_the_draws() -> None:
    """The draws' differences have the mean and the standard deviation of the closed form, but for the noise."""
    worlds, terms = Worlds(prior=make_prior(noise=1e-6)), make_terms()
    worlds = worlds.given([Observation(factors=terms[2], log_ratio=0.2)])
    drawn = worlds.log_factors(terms)
    low, middle, high = np.log(worlds.ratio_bands(terms[1:], terms[0])).T
    assert (drawn[1:] - drawn[0]).mean(axis=1) == pytest.approx(middle, abs=1e-6)
    assert (drawn[1:] - drawn[0]).std(axis=1) == pytest.approx((high - low) / (2 * 1.6449), rel=0.3)


def test_kinds_mix_in_the_range_of_a_ratio() -> None:
    """With a kind of stack whose layouts are right and one whose slopes are wide, the range is wider than the first."""
    mixed = replace(make_prior(), kinds=(Kind(0.5), Kind(0.0), Kind(0.0), Kind(0.5, slopes=0.0, layout=0.0)))
    right = replace(mixed, kinds=(Kind(0.0), Kind(0.0), Kind(0.0), Kind(1.0, slopes=0.0, layout=0.0)))
    terms = make_terms()
    widths = [np.ptp(np.log(Worlds(prior=prior).ratio_bands(terms[3:4], terms[0]))) for prior in (right, mixed)]
    assert widths[0] == pytest.approx(2 * 1.6449 * np.sqrt(2) * 0.03, rel=1e-3)
    assert widths[1] > 2 * widths[0]


def test_slopes_drift_with_the_job() -> None:
    """Runs of a job tell most about the job itself, less about a larger model, and draws agree with that."""
    known, others = make_terms(), make_terms()
    others[:, TERMS.index("hidden size")] = 6.0
    worlds = Worlds(prior=make_prior()).given([Observation(factors=row, log_ratio=0.5) for row in known])
    (here, here_sd), (far, far_sd) = worlds.mean_and_sd(known), worlds.mean_and_sd(others)
    assert np.all((far > 0) & (far < 0.6 * here))
    assert np.all(far_sd > 2 * here_sd)
    drawn = Worlds(prior=make_prior()).log_factors(np.vstack([known[:1], others[:1]]))
    assert 0.1 < np.corrcoef(drawn)[0, 1] < 0.7


def test_a_stack_off_by_one_factor_keeps_the_predicted_ratios() -> None:
    """Runs that all take 1.5 times their prediction show a stack of the kind whose layouts are right."""
    prior = replace(
        make_prior(noise=0.02),
        kinds=(Kind(0.9), Kind(0.0), Kind(0.0), Kind(0.1, slopes=0.0, layout=0.0)),
    )
    terms = make_terms()
    runs = [Observation(factors=row, log_ratio=float(np.log(1.5))) for row in terms[:4]]
    before, after = Worlds(prior=prior), Worlds(prior=prior).given(runs)
    assert before.shares(terms)[3] == pytest.approx(0.1)
    assert after.shares(terms)[3].min() > 0.5
    assert after.mean_and_sd(terms)[0][5] == pytest.approx(np.log(1.5), abs=0.03)


def test_shares_depend_on_the_model() -> None:
    """Experts and each doubling of the hidden size multiply the odds of a kind; a world keeps to its kind."""
    kinds = (Kind(0.5), Kind(0.5, experts=np.log(3), doubling=np.log(2)), Kind(0.0), Kind(0.0))
    worlds = Worlds(prior=replace(make_prior(), kinds=kinds))
    terms = np.zeros((4, len(TERMS)))
    terms[:, TERMS.index("hidden size")] = np.log2(USUAL_HIDDEN) + np.array([0, 0, 1, -1])
    terms[1, TERMS.index("experts")] = 1.0
    assert worlds.shares(terms)[:2] == pytest.approx(
        np.array([[1 / 2, 1 / 4, 1 / 3, 2 / 3], [1 / 2, 3 / 4, 2 / 3, 1 / 3]])
    )
    alone = [worlds.log_factors(row[None]) for row in terms]
    assert worlds.log_factors(terms) == pytest.approx(np.concatenate(alone), rel=1e-12)


def test_a_source_is_left_out_by_table_or_by_its_rows() -> None:
    """The longest name counts; a publisher whose runs are not in the prior leaves it whole."""
    priors = shipped_priors()
    vtrain = priors.without["vTrain (MICRO 2024)"]
    assert priors.leaving_out("vtrain_a100") is vtrain
    assert priors.leaving_out("vTrain-MICRO24-single") is vtrain
    assert priors.leaving_out("MLPerf-Training-v5.1") is priors.without["MLPerf Training"]
    assert priors.leaving_out("my own runs") is priors.all_sources
    assert priors.leaving_out(None) is priors.all_sources
