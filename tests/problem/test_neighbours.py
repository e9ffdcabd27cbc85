"""Who is near whom in the network."""

import numpy as np
import pytest

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.neighbours import APART, find_neighbours


def links_of(rack: IntArray, across: float, slow: IntArray, noise: float = 0.01) -> IntArray:
    """Ticks of links inside and between racks, by chance a little more; those of slow hosts twice as many."""
    random = np.random.default_rng(0)
    number = len(rack)
    cost = np.where(rack[:, None] == rack[None, :], 1.0, across) * (1 + noise * random.random((number, number)))
    is_slow = np.isin(np.arange(number), slow)
    cost *= np.where(is_slow[:, None] | is_slow[None, :], 2, 1)
    ticks = np.round(1e6 * cost).astype(np.int64)
    np.fill_diagonal(ticks, UNUSABLE_TICKS)
    return ticks


@pytest.mark.parametrize("across", [1.08, 1.5, 10.0])
@pytest.mark.parametrize("sizes", [[4, 4], [9, 5, 18], [6] * 5])
def test_racks_are_found(sizes: list[int], across: float) -> None:
    """In any order of the hosts, with the slow hosts in them; neighbours are side by side."""
    rack = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    slow = np.array([0, 3])
    found = find_neighbours(links_of(rack, across, slow))
    assert found is not None
    assert len({*zip(rack.tolist(), found.rack.tolist(), strict=True)}) == len(sizes) == found.rack.max() + 1
    assert np.count_nonzero(np.diff(rack[np.argsort(found.place)])) == len(sizes) - 1
    for host in slow.tolist():
        others = np.setdiff1d(np.flatnonzero(rack == rack[host]), slow)
        assert found.usual[host] > found.usual[others].max(initial=0)


def test_there_may_be_none() -> None:
    """Links that differ by less than racks would, or too few hosts to tell."""
    rack = np.arange(24) % 3
    for one in (links_of(rack, 1 + (APART - 1) / 4, np.array([5])), links_of(np.arange(6) % 3, 2.0, np.array([0]))):
        found = find_neighbours(one)
        assert found is not None
        assert not found.rack.any()
        assert sorted(found.place.tolist()) == list(range(len(one)))


def test_links_that_are_missing_are_the_slowest() -> None:
    """Not usable in one direction is as slow as the slowest link; a host without any link tells nothing."""
    rack = np.arange(24) % 3
    ticks = links_of(rack, 1.5, np.array([5]))
    ticks[0, 3] = ticks[3, 0] = ticks[1, 2] = UNUSABLE_TICKS
    found = find_neighbours(ticks)
    assert found is not None
    assert len({*zip(rack.tolist(), found.rack.tolist(), strict=True)}) == 3
    ticks[7] = UNUSABLE_TICKS
    assert find_neighbours(ticks) is None
    assert find_neighbours(np.full((1, 1), UNUSABLE_TICKS)) is None
