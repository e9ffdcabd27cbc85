"""Faults planted into random clusters are found, and none where there is none."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, A100_80, make_cluster, make_links

from pipette_opt.base.errors import InputError
from pipette_opt.read.link_changes import changes_in_words, link_changes
from pipette_opt.read.link_health import find_faults, health
from pipette_opt.specs.gpu_links import GpuLinks


def random_rates(
    rng: np.random.Generator, num_hosts: int, *, noise: float = 0.08, racks: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Rates that vary from pair to pair and a little from host to host, near hosts faster; and what is near."""
    of_host = rng.normal(0.0, 0.02, num_hosts)
    logs = np.log(20.0) + of_host[:, None] + of_host + rng.normal(0.0, noise, (num_hosts, num_hosts))
    rack = np.sort(rng.integers(0, 3, num_hosts)) if racks else np.zeros(num_hosts)
    near = rack[:, None] == rack
    logs += np.log(1.6) * near
    rates = np.exp(logs)
    np.fill_diagonal(rates, np.nan)
    return rates, near.astype(int)


def names(count: int) -> list[str]:
    """n0, n1, ..."""
    return [f"n{node}" for node in range(count)]


@pytest.mark.search
@pytest.mark.parametrize(("racks", "known"), [(False, False), (True, True), (True, False)])
@pytest.mark.parametrize("share", [0.5, 0.7])
def test_planted_hosts_are_found(share: float, racks: bool, known: bool) -> None:
    """Of 12 random clusters nearly all faults are found; fewer where nobody says which hosts share a switch."""
    found = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(8, 33))
        (rates, near), bad = random_rates(rng, count, racks=racks), int(rng.integers(count))
        rates[bad] *= share
        rates[:, bad] *= share
        hosts = [one.name for one in find_faults(rates, names(count), near if known else None).hosts]
        found += hosts == [f"n{bad}"]
    assert found >= (7 if racks and not known else 11)


@pytest.mark.search
@pytest.mark.parametrize(("racks", "known", "most"), [(False, False, 1), (True, True, 1), (True, False, 6)])
def test_sound_clusters_raise_no_alarm(racks: bool, known: bool, most: int) -> None:
    """Of 40 random clusters without a fault; a host alone in its rack is blamed where nobody says that it is."""
    blamed = 0
    for seed in range(40):
        rng = np.random.default_rng(1000 + seed)
        count = int(rng.integers(4, 33))
        rates, near = random_rates(rng, count, racks=racks)
        blamed += len(find_faults(rates, names(count), near if known else None).hosts)
    assert blamed <= most


@pytest.mark.search
def test_planted_pairs_are_found_and_no_host_is_blamed() -> None:
    """A single slow link, one direction."""
    found = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(6, 25))
        rates, _ = random_rates(rng, count)
        i, j = rng.choice(count, 2, replace=False)
        rates[i, j] *= 0.4
        faults = find_faults(rates, names(count))
        assert not faults.hosts
        found += [(one.sender, one.receiver) for one in faults.pairs] == [(f"n{i}", f"n{j}")]
    assert found >= 28


def test_a_host_that_only_sends_slowly() -> None:
    """The direction is told."""
    rates, _ = random_rates(np.random.default_rng(0), 8, noise=0.02)
    rates[3] *= 0.5
    (fault,) = find_faults(rates, names(8)).hosts
    assert fault.name == "n3"
    assert fault.send == pytest.approx(0.5, rel=0.1)
    assert fault.receive == pytest.approx(1.0, rel=0.1)
    told = health(make_cluster(8, rates)).sentences
    assert told[0].startswith("n3 sends 5")
    assert "one direction only" in told[0]


def test_a_host_with_two_nics_down() -> None:
    """A single flow is as fast as usual, all together lack a quarter."""
    one, eight = np.full((6, 6), 10.0), np.full((6, 6), 80.0)
    eight[2], eight[:, 2] = 60.0, 60.0
    found = health(make_cluster(6, link_matrices=(make_links(one, 6), make_links(eight, 6, 8))))
    assert found.slow_hosts == ("n2",)
    assert "as if 2 of its 8 NICs were down" in found.sentences[0]


def test_a_gpu_behind_slow_links() -> None:
    """Where links of single GPUs are known; its host is not blamed."""
    rng = np.random.default_rng(5)
    between = 10e9 * np.exp(rng.normal(0, 0.03, (4, 4, 4, 4)))
    between[np.arange(4), :, np.arange(4)] = np.nan
    between[1, 2] *= 0.4
    between[:, :, 1, 2] *= 0.4
    links = GpuLinks(inside=np.full((4, 4, 4), 2e11), between=between, nic_of_slot=np.arange(4))
    best = np.nanmax(np.nan_to_num(between, nan=-1.0), axis=(1, 3))
    spec = make_cluster(4, best / 1e9, gpus=4, gpu_links=links)
    found = health(spec)
    assert found.slow_hosts == ()
    assert [one.name for one in found.gpus] == ["n1:2"]
    assert found.sentences[0].startswith("GPU 2 of n1 or its NIC 2 has 4")


def test_few_hosts_and_no_links() -> None:
    """Three hosts have pairs only, nothing measured has nothing."""
    rates = np.full((3, 3), 10.0)
    rates[0, 1] = 2.0
    faults = find_faults(rates, names(3))
    assert (faults.hosts, [one.sender for one in faults.pairs]) == ((), ["n0"])
    assert np.isnan(find_faults(np.full((3, 3), np.nan), names(3)).usual)
    assert health(make_cluster(1)).sentences == ()
    assert health(make_cluster(5)).sentences == ("No host, GPU or link stands out from the others.",)


def test_two_snapshots_are_compared() -> None:
    """A host that became slower and a pair that is gone stand out from a change of all."""
    old, _ = random_rates(np.random.default_rng(2), 10)
    new = old * 0.9
    new[4] *= 0.6
    new[:, 4] *= 0.6
    new[0, 1] = np.nan
    (change,) = link_changes([make_cluster(10, old), make_cluster(10, new)])
    assert change.slower.usual == pytest.approx(0.9)
    assert [one.name for one in change.slower.hosts] == ["n4"]
    assert change.slower.hosts[0].send == pytest.approx(0.6)
    assert not change.faster.hosts
    assert change.lost == (("n0", "n1"),)
    (back,) = link_changes([make_cluster(10, new), make_cluster(10, old)])
    assert [one.name for one in back.faster.hosts] == ["n4"]
    assert back.new == (("n0", "n1"),)


def test_drift_is_not_moved_by_one_bad_day() -> None:
    """A host that loses a tenth a week, and one that had a bad second week."""
    rng = np.random.default_rng(3)
    first, _ = random_rates(rng, 8, noise=0.03)
    weeks = []
    for week in range(5):
        rates = first * np.exp(rng.normal(0, 0.01, first.shape))
        rates[2] *= 0.9**week
        rates[:, 2] *= 0.9**week
        if week == 1:
            rates[5] *= 0.3
        weeks.append(make_cluster(8, rates))
    (change,) = link_changes(weeks)
    assert [one.name for one in change.slower.hosts] == ["n2"]
    assert change.slower.hosts[0].send == pytest.approx(0.9**4, rel=0.05)


def test_all_that_changed_in_words() -> None:
    """Hosts, GPUs, constants and links."""
    old = make_cluster(6)
    nodes = (*old.nodes[:4], replace(old.nodes[4], gpu=A100_40), replace(old.nodes[5], host="n9"))
    new = replace(old, nodes=nodes, nics_per_node=4, intra_node_bytes_per_s=1e11)
    said = changes_in_words([old, new])
    assert said == [
        "Only in the first: n5.",
        "Only in the last: n9.",
        f"GPUs: n4 ({A100_80.name} to {A100_40.name}).",
        "NICs a host: 8 to 4.",
        "GB/s inside a host: 200 to 100.",
    ]
    assert changes_in_words([old, old]) == ["Nothing changed."]


def test_snapshots_that_have_nothing_in_common() -> None:
    """Other hosts, other numbers of flows."""
    old = make_cluster(4)
    renamed = replace(old, nodes=tuple(replace(node, host=f"m{node.host}") for node in old.nodes))
    with pytest.raises(InputError, match="fewer than two hosts in common"):
        link_changes([old, renamed])
    with pytest.raises(InputError, match="no number of flows in common"):
        link_changes([old, make_cluster(4, link_matrices=(make_links(10.0, 4, 2),))])
