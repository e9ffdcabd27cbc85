"""Experts on ranks: as good as brute force, never worse than as listed, and bounded from below."""

from itertools import combinations, product

import numpy as np
import pytest

from benchmarks.systems.expert_placement import ExpertPlacement, place_experts, place_layers
from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.specs.expert_loads import listed_imbalance

pytestmark = pytest.mark.search


def least_imbalance(loads: FloatArray, ranks: int, slots: int) -> float:
    """The best of every way to fill the ranks' slots in which each expert has one at least, its load dealt evenly."""
    best = np.inf
    for held in product(combinations(range(len(loads)), slots), repeat=ranks):
        copies = np.bincount([expert for one in held for expert in one], minlength=len(loads))
        if (copies > 0).all():
            best = min(best, max(sum(loads[expert] / copies[expert] for expert in one) for one in held))
    return float(best / (loads.sum() / ranks))


@pytest.mark.parametrize(
    ("num_experts", "ranks", "spare"), [(6, 2, 0), (6, 3, 0), (8, 2, 0), (4, 2, 1), (6, 3, 1), (3, 3, 1)]
)
def test_as_good_as_brute_force(num_experts: int, ranks: int, spare: int) -> None:
    """Random loads, with and without replicas: nothing is better, and it is proven."""
    for seed in range(4):
        loads = np.random.default_rng(seed).pareto(1.0, num_experts) + 0.01
        found = place_experts(loads, ranks, spare)
        least = least_imbalance(loads, ranks, num_experts // ranks + spare)
        assert found.imbalance == pytest.approx(least, rel=2e-4)
        assert found.bound <= least * (1 + 1e-9)
        assert found.bound >= least * (1 - 1e-3)
        check(found, loads, num_experts // ranks + spare)


def check(found: ExpertPlacement, loads: FloatArray, slots: int) -> None:
    """Every rank has its slots full of different experts, every expert is somewhere, and the imbalance adds up."""
    held = found.experts_of_rank
    assert all(len(set(one)) == len(one) == slots for one in held)
    copies = np.bincount([expert for one in held for expert in one], minlength=len(loads))
    assert (copies > 0).all()
    busiest = max(sum(loads[expert] / copies[expert] for expert in one) for one in held)
    assert found.imbalance == pytest.approx(busiest / (loads.sum() / len(held)))


def test_hand_count() -> None:
    """Loads 4, 3, 2, 1 on two ranks: 4 and 1 together; one copy more on each halves the 4 and the 3."""
    loads = np.array([4.0, 3.0, 2.0, 1.0])
    assert listed_imbalance(loads[None], 2) == pytest.approx(7 / 5)
    assert place_experts(loads, 2).imbalance == 1.0
    assert place_experts(loads, 4).imbalance == pytest.approx(4 / 2.5)
    assert place_experts(loads, 4, 1).imbalance < 4 / 2.5


def test_balanced_is_never_worse_than_listed() -> None:
    """Over several layers, and at most the loads of one rank for all."""
    loads = np.random.default_rng(3).pareto(1.0, (3, 16)) + 0.01
    for ranks in (2, 4, 8, 16):
        placed = place_layers(loads, ranks)
        imbalance, bound = (
            float(np.mean([getattr(layer, name) for layer in placed])) for name in ("imbalance", "bound")
        )
        assert 1.0 <= bound <= imbalance <= listed_imbalance(loads, ranks) * (1 + 1e-9)
        assert imbalance <= ranks
    assert imbalance == pytest.approx(listed_imbalance(loads, 16))


def test_ranks_must_divide() -> None:
    """Experts are dealt equally."""
    with pytest.raises(InputError, match="must divide the 4 experts"):
        place_experts(np.ones(4), 3)
