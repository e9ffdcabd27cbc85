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


def racks_with_slow_hosts(rng: np.random.Generator, num_hosts: int) -> np.ndarray:
    """Two racks at random, and slow hosts whose links to each other are slower still."""
    rack, slow = rng.integers(0, 2, num_hosts), rng.random(num_hosts) < 0.4
    rate = np.where(rack[:, None] == rack, 20.0, 15.0) * (1 - 0.04 * rng.random((num_hosts, num_hosts)))
    return rate * 0.6 ** (1.0 * slow[:, None] + slow)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(("size", "rings"), [(2, 3), (3, 2), (4, 1), (6, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_no_rings_are_faster(size: int, rings: int, seed: int, slow: bool) -> None:
    """Of six hosts: in a scenario, the k-th fastest of any disjoint rings is no faster than the k-th rate."""
    rng = np.random.default_rng(seed)
    rate = racks_with_slow_hosts(rng, 6) if slow else rng.choice([1.0, 5.0, 10.0, 20.0], (6, 6))
    rates = best_ring_rates(make_cluster(6, link_matrices=(make_links(rate, 6),)), 1, size, rings) / 1e9
    for laid in rings_at_once(tuple(range(6)), size, rate):
        assert (np.sort(laid)[::-1][:rings] <= rates + 1e-6).all(axis=1).any()


@pytest.mark.parametrize("seed", range(6))
def test_no_rings_are_faster_with_slow_hosts(seed: int) -> None:
    """Of eight hosts, one of which may be unused: slow hosts of two racks share their fast neighbours."""
    rng = np.random.default_rng(seed)
    rate, size = racks_with_slow_hosts(rng, 8), 4 - seed % 2
    rates = best_ring_rates(make_cluster(8, link_matrices=(make_links(rate, 8),)), 1, size, 2) / 1e9
    for laid in rings_at_once(tuple(range(8)), size, rate):
        assert (np.sort(laid)[::-1][:2] <= rates + 1e-6).all(axis=1).any()


@pytest.mark.parametrize(
    ("fast", "slow", "size", "expected"),
    [
        # Four fast hosts leave a ring in which every second host is slow: some hops leave a rack. Or each ring has one.
        (3, 1, 4, [[15.0, 9.0], [12.0, 12.0]]),
        # All slow hosts are in one ring, or every second host of both rings is slow.
        (2, 2, 4, [[15.0, 7.2], [12.0, 12.0]]),
        # Each slow host is between the fast hosts of its rack.
        (2, 1, 6, [[12.0]]),
    ],
)
def test_slow_hosts_are_together_or_apart(fast: int, slow: int, size: int, expected: list[list[float]]) -> None:
    """Two racks: 20 inside, 15 across; links of slow hosts at 0.6, between two of them at 0.36."""
    is_slow, rack = np.array(2 * [*[0] * fast, *[1] * slow]), np.repeat([0, 1], fast + slow)
    rate = np.where(rack[:, None] == rack, 20.0, 15.0) * 0.6 ** (is_slow[:, None] + is_slow)
    num_hosts = len(rack)
    rates = best_ring_rates(
        make_cluster(num_hosts, link_matrices=(make_links(rate, num_hosts),)), 1, size, len(expected[0])
    )
    assert rates / 1e9 == pytest.approx(np.array(expected))


def test_two_racks_have_one_fast_ring_each() -> None:
    """Three hosts in each rack: two rings of three are fast, two rings of two are, and a third one is not."""
    rate = np.where(np.arange(6)[:, None] // 3 == np.arange(6) // 3, 20.0, 2.0)
    hosts = make_cluster(6, link_matrices=(make_links(rate, 6),))
    assert best_ring_rates(hosts, 1, 3, 2) / 1e9 == pytest.approx(np.array([[20, 20]]))
    assert best_ring_rates(hosts, 1, 2, 3) / 1e9 == pytest.approx(np.array([[20, 20, 2]]))
    assert best_ring_rates(hosts, 1, 6, 1) / 1e9 == pytest.approx(np.array([[2]]))
    assert best_ring_rates(hosts, 1, 4, 2).tolist() == [[2e9, 0.0]]
