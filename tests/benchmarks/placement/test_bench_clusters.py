"""Named clusters: what each is like, and that a seed gives it again."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.placement.clusters import (
    CLUSTERS,
    GENERATED,
    MEASURED,
    UnavailableError,
    link_gb_per_s,
    num_flows,
    num_listed,
    shared_folder,
)

measured = pytest.mark.skipif(
    not all((shared_folder() / place).exists() for place, _ in MEASURED.values()),
    reason="the measured links are not here",
)


def off_diagonal(rates: np.ndarray) -> np.ndarray:
    """All links."""
    return rates[~np.eye(len(rates), dtype=bool)]


@pytest.mark.parametrize("cluster", GENERATED)
@pytest.mark.parametrize("hosts", [8, 16, 48])
def test_a_seed_gives_the_cluster_again(cluster: str, hosts: int) -> None:
    """Same seed, same symmetric links, all measured but the diagonal; another seed gives others."""
    first, again, other = (link_gb_per_s(cluster, hosts, seed) for seed in (3, 3, 4))
    assert first.shape == (num_listed(cluster, hosts),) * 2
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, first.T)
    assert np.isnan(np.diag(first)).all()
    assert (off_diagonal(first) > 0).all()
    assert not np.array_equal(first, other, equal_nan=True)


def test_unif_is_between_15_and_25() -> None:
    """25 (1 - 0.4 u)."""
    rates = off_diagonal(link_gb_per_s("unif", 64, 0))
    assert 15 <= rates.min() < 15.1
    assert 24.9 < rates.max() <= 25


def medians(cluster: str, hosts: int) -> np.ndarray:
    """Of each host's links, ascending."""
    return np.sort(np.nanmedian(link_gb_per_s(cluster, hosts, 1), axis=1))


def test_tree_has_four_racks_and_an_eighth_slow() -> None:
    """Of 32 hosts four are slow; a fast one has seven links, minus slow ones, above 23."""
    of_host = medians("tree", 32)
    assert (of_host < 0.7 * 20).sum() == 4
    rates = link_gb_per_s("tree", 32, 1)
    fast = rates[np.nanmedian(rates, axis=1) > 15]
    inside = np.nansum(fast > 0.96 * 24 - 1e-9, axis=1)
    assert inside.max() <= 7
    assert inside.min() >= 7 - 4


def test_two_racks_of_equal_size() -> None:
    """Every host has half of the others minus itself at 24, the other half at 12."""
    rates = link_gb_per_s("two-rack", 16, 0)
    assert ((rates > 20).sum(axis=1) == 7).all()
    assert ((rates < 12.1).sum(axis=1) == 8).all()


def test_one_slow_host() -> None:
    """One host at half of the rate of all others."""
    of_host = medians("slow-node", 16)
    assert (of_host < 12.1).sum() == 1
    assert of_host[1] > 0.95 * 24


def test_rail_is_limited_by_the_slower_nics() -> None:
    """No pair is faster than either host's eight NICs, units of 32 hosts have slower links between them."""
    rates = link_gb_per_s("rail", 64, 0)
    assert np.nanmax(rates) <= 24
    best = np.nanmax(rates, axis=1)
    degraded = best < 0.97 * 8 * 3 * 0.98
    assert degraded.sum() == 8
    healthy = rates[~degraded][:, ~degraded]
    levels = healthy[~np.isnan(healthy)]
    assert ((levels < 0.91 * 24) | (levels > 0.96 * 24)).all()


def test_spares_are_half_as_many_again() -> None:
    """16 of 24."""
    assert num_listed("spares", 16) == 24
    assert num_listed("tree", 16) == 16


@pytest.mark.search
@measured
def test_measured_clusters() -> None:
    """Seventeen hosts, eight flows, 18 pairs missing; sixteen hosts, one flow, directed."""
    seventeen = link_gb_per_s("measured-17", 16, 0)
    assert seventeen.shape == (17, 17)
    assert num_flows("measured-17") == 8
    assert np.isnan(off_diagonal(seventeen)).sum() == 2 * 18
    assert 50 < np.nanmedian(seventeen) < 110
    sixteen = link_gb_per_s("measured-16", 16, 0)
    assert sixteen.shape == (16, 16)
    assert not np.isnan(off_diagonal(sixteen)).any()
    assert np.nanmax(np.abs(sixteen - sixteen.T)) > 1
    sixteen[:] = 0
    assert np.nanmin(link_gb_per_s("measured-16", 16, 1)) > 16


@pytest.mark.parametrize("cluster", MEASURED)
def test_absent_data_is_said(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which data, and how to say where it is."""
    monkeypatch.setenv("PIPETTE_OPT_SHARED", str(tmp_path))
    with pytest.raises(UnavailableError, match=f"{cluster}: .* is not here; PIPETTE_OPT_SHARED"):
        link_gb_per_s(cluster, 16, 0)


def test_unknown_cluster() -> None:
    """The error lists those that there are."""
    with pytest.raises(ValueError, match=f"one of {', '.join(CLUSTERS)}, got 'trees'"):
        link_gb_per_s("trees", 16, 0)
