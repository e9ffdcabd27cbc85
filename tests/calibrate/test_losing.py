"""Which groups lose near full memory, and what that says of larger jobs."""

from itertools import product

import numpy as np
import pytest

from pipette_opt.calibrate.losing import SPREAD, STEPS, group_chances, likely_half
from pipette_opt.costs.edge import losing_chance


def test_runs_decide_for_their_group() -> None:
    """Together, whatever single runs say; a group without full runs stays at what its size makes likely."""
    groups = ["loses", "loses", "does not", "does not", "empty"]
    chances, half = group_chances(groups, [64] * 5, np.array([9.0, -1.0, -9.0, 1.0, 0.0]))
    assert (chances[:2] > 0.999).all()
    assert (chances[2:4] < 0.001).all()
    assert chances[4] == pytest.approx(losing_chance(half, 64))
    assert chances[4] == pytest.approx(0.5, abs=0.01)


def test_half_by_brute_force() -> None:
    """The most likely of all tried, with certain groups of several sizes."""
    sizes, loses = np.array([32.0, 64.0, 64.0, 128.0]), np.array([0.0, 1.0, 0.0, 1.0])
    centre = np.exp(np.log(sizes).mean())

    def likelihood(half: float) -> float:
        chances = [losing_chance(half, int(size)) for size in sizes]
        told = [chance if lost else 1 - chance for chance, lost in zip(chances, loses, strict=True)]
        return float(np.log(told).sum() - 0.5 * (np.log(half / centre) / SPREAD) ** 2)

    best = max((centre * np.exp(step) for step in STEPS if step > -2), key=likelihood)
    assert likely_half(loses, sizes) == pytest.approx(best)


def test_many_groups_tell_the_half() -> None:
    """Drawn with a half of 100 GPUs and with one of 1,000, and found in that order, within a third."""
    rng = np.random.default_rng(0)
    found = []
    for half in (100.0, 1000.0):
        runs = [(f"{size} {index}", size) for size, index in product((32, 64, 128, 256, 512), range(40))]
        lost = np.array([rng.random() < losing_chance(half, size) for _, size in runs])
        _, learned = group_chances([name for name, _ in runs], [size for _, size in runs], np.where(lost, 20.0, -20.0))
        assert learned == pytest.approx(half, rel=1 / 3)
        found.append(learned)
    assert found[0] < found[1]


@pytest.mark.parametrize("evidence", [-50.0, 50.0])
def test_one_group_leaves_much_open(evidence: float) -> None:
    """One that surely loses, or surely not, moves what others may do, and settles nothing."""
    chances, half = group_chances(["only"], [64], np.array([evidence]))
    assert chances[0] == pytest.approx(float(evidence > 0), abs=1e-6)
    assert 0.1 < losing_chance(half, 64) < 0.9
