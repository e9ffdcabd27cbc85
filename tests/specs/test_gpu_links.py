"""Links of single GPUs: the best ring of each set, what is relaxed, and what is refused."""

from itertools import permutations

import numpy as np
import pytest
from gpu_hosts import gpu_cluster, paired_host, rails

from pipette_opt.base.units import GB
from pipette_opt.specs.gpu_links import GpuLinks, best_pairs


def test_best_rings_against_every_order() -> None:
    """Of every set of five GPUs with directed links, the order of the ring with the fastest slowest hop."""
    inside = np.random.default_rng(3).uniform(1.0, 9.0, (1, 5, 5))
    links = GpuLinks(inside=inside, nic_of_slot=np.zeros(5, dtype=np.int64))
    for chosen in range(2**5):
        slots = [slot for slot in range(5) if chosen >> slot & 1]
        if len(slots) < 2:
            assert links.ring_bytes_per_s[0, chosen] == np.inf
            continue
        best = max(inside[0][list(ring), np.roll(ring, -1)].min() for ring in permutations(slots))
        assert links.ring_bytes_per_s[0, chosen] == best


def test_relaxed_hosts_have_the_best_ring_of_each_size() -> None:
    """Two NVLink pairs: rings of two at 50 GB/s, larger ones at PCIe's 10; one message at most at 50."""
    spec = gpu_cluster(np.stack([paired_host([(0, 2), (1, 3)], 4)] * 2))
    relaxed = spec.relaxed()
    assert relaxed is spec.relaxed()
    assert relaxed.gpu_links is None
    assert (relaxed.inside_bytes_per_s(np.array([1, 2, 3, 4])) == np.array([50, 50, 10, 10]) * GB).all()


def test_a_cluster_without_single_links_is_its_own_relaxation() -> None:
    """Nothing changes where links of single GPUs are not known."""
    spec = gpu_cluster(np.stack([paired_host([], 2)] * 2)).relaxed()
    assert spec.relaxed() is spec


def test_the_best_pair_of_two_hosts() -> None:
    """Rails of 20 GB/s make 20 of the pair of hosts."""
    assert (best_pairs(rails(2, 4)) == 20 * GB).all()


def test_some_hosts() -> None:
    """Kinds of hosts and links between them follow the hosts that are kept."""
    inside = np.stack([paired_host([(0, 1)], 2), paired_host([], 2), paired_host([(0, 1)], 2, fast=30)])
    between = np.arange(36.0).reshape(3, 2, 3, 2) + 1
    kept = GpuLinks(inside=inside, between=between, nic_of_slot=np.arange(2)).of_hosts([0, 2])
    assert kept.between is not None
    assert kept.between[0, 1, 1, 0] == between[0, 1, 2, 0]
    assert kept.inside[1, 0, 1] == 30 * GB
    assert kept.inside_only().between is None


@pytest.mark.parametrize(
    ("inside", "between", "nics", "said"),
    [
        (np.ones((2, 2)), None, 2, "shape"),
        (np.ones((1, 13, 13)), None, 13, "up to 12 GPUs"),
        (np.zeros((1, 2, 2)), None, 2, "> 0 and finite"),
        (np.full((1, 2, 2), np.nan), None, 2, "> 0 and finite"),
        (np.ones((2, 2, 2)), np.ones((2, 2)), 2, "between must have shape"),
        (np.ones((1, 2, 2)), None, 3, "nic_of_slot"),
    ],
)
def test_what_is_refused(inside: np.ndarray, between: np.ndarray | None, nics: int, said: str) -> None:
    """Wrong shapes, too many GPUs, and links without a bandwidth."""
    with pytest.raises(ValueError, match=said):
        GpuLinks(inside=inside, between=between, nic_of_slot=np.zeros(nics, dtype=np.int64))
