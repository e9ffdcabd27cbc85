"""Rates of the best rings, against all rings."""

import itertools

import numpy as np
import pytest
from factories import make_cluster, make_links

from pipette_opt.costs.best_rings import best_ring_rates


def slowest_hop(rate: np.ndarray, ring: tuple[int, ...]) -> float:
    """What a ring carries, the better way of each hop."""
    hops = list(zip(ring, (*ring[1:], ring[0]), strict=True))
    return min(max(rate[one, other], rate[other, one]) for one, other in hops)


def rings_at_once(hosts: tuple[int, ...], size: int, rate: np.ndarray) -> list[list[float]]:
    """The rates of every choice of disjoint rings of some size that fills as many hosts as it can."""
    if len(hosts) < size:
        return [[]]
    found = []
    for chosen in itertools.combinations(hosts, size):
        best = max(slowest_hop(rate, (chosen[0], *rest)) for rest in itertools.permutations(chosen[1:]))
        left = tuple(one for one in hosts if one not in chosen)
        found += [[best, *others] for others in rings_at_once(left, size, rate)]
    return found


@pytest.mark.parametrize(("size", "rings"), [(2, 3), (3, 2), (4, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_no_rings_are_faster(size: int, rings: int, seed: int) -> None:
    """Of six hosts: the k-th fastest of any disjoint rings is no faster than the k-th rate."""
    rng = np.random.default_rng(seed)
    rate = rng.choice([1.0, 5.0, 10.0, 20.0], (6, 6))
    rates = best_ring_rates(make_cluster(6, link_matrices=(make_links(rate, 6),)), 1, size, rings) / 1e9
    for laid in rings_at_once(tuple(range(6)), size, rate):
        assert (np.sort(laid)[::-1][:rings] <= rates + 1e-6).all()


def test_two_racks_have_one_fast_ring_each() -> None:
    """Three hosts in each rack: two rings of three are fast, two rings of two are, and a third one is not."""
    rate = np.where(np.arange(6)[:, None] // 3 == np.arange(6) // 3, 20.0, 2.0)
    hosts = make_cluster(6, link_matrices=(make_links(rate, 6),))
    assert best_ring_rates(hosts, 1, 3, 2) / 1e9 == pytest.approx([20, 20])
    assert best_ring_rates(hosts, 1, 2, 3) / 1e9 == pytest.approx([20, 20, 2])
    assert best_ring_rates(hosts, 1, 6, 1) / 1e9 == pytest.approx([2])
    assert best_ring_rates(hosts, 1, 4, 2).tolist() == [2e9, 0.0]
