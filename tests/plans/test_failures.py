"""Expected progress under losses: Young's and Daly's intervals, a simulation, and what more hosts cost."""

import math

import numpy as np
import pytest

from pipette_opt.plans.failures import DAY_S, FailureRate, best_progress, share_of_progress

RATE = FailureRate(host_mean_days=30.0, save_s=60.0, recovery_s=600.0)


@pytest.mark.parametrize("num_hosts", [1, 16, 128, 1280])
def test_best_interval_is_dalys(num_hosts: int) -> None:
    """Near his closed form where a save takes less than half of the mean: sqrt(2 d M) (1 + ...) - d."""
    mean_s, save = RATE.host_mean_days * DAY_S / num_hosts, RATE.save_s
    ratio = math.sqrt(save / (2 * mean_s))
    daly = math.sqrt(2 * save * mean_s) * (1 + ratio / 3 + ratio**2 / 9) - save
    found = best_progress(RATE, num_hosts)
    assert found.interval_s == pytest.approx(daly, rel=2e-3)
    assert found.interval_s == pytest.approx(math.sqrt(2 * save * mean_s), rel=0.25)
    for other in (0.8, 1.25):
        assert share_of_progress(RATE, num_hosts, other * found.interval_s) < found.share


def test_progress_is_that_of_a_simulation() -> None:
    """Stretches of work that are begun again after a loss, with losses in recovery, too."""
    random, mean_s, work = np.random.default_rng(0), 2000.0, 300.0
    rate = FailureRate(host_mean_days=mean_s / DAY_S, save_s=20.0, recovery_s=100.0)
    spent = 0.0
    for _ in range(20_000):
        while (lost := random.exponential(mean_s)) < work + 20.0:
            spent += lost
            while (again := random.exponential(mean_s)) < 100.0:
                spent += again
            spent += 100.0
        spent += work + 20.0
    assert share_of_progress(rate, 1, work) == pytest.approx(20_000 * work / spent, rel=0.02)


def test_more_hosts_make_less_progress_each() -> None:
    """Losses grow with hosts; with none to speak of only nothing is lost."""
    shares = [best_progress(RATE, hosts).share for hosts in (1, 4, 16, 64, 256, 1024)]
    assert shares == sorted(shares, reverse=True)
    assert best_progress(FailureRate(host_mean_days=1e9, save_s=1e-3, recovery_s=0.0), 1).share > 0.99999


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"host_mean_days": 0}, "host_mean_days"), ({"save_s": 0}, "save_s"), ({"recovery_s": -1}, "recov")],
)
def test_wrong_rates_are_refused(wrong: dict[str, float], said: str) -> None:
    """The name and the value."""
    with pytest.raises(ValueError, match=said):
        FailureRate(**{"host_mean_days": 1.0, "save_s": 1.0, "recovery_s": 1.0, **wrong})
