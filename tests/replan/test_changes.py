"""Changed jobs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, A100_80, TINY, make_cluster, make_job, make_random_cluster, small_instance
from levels import domain

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GB
from pipette_opt.replan import changes as made
from pipette_opt.replan.changes import Change
from pipette_opt.specs import Instance


def test_a_repaired_host_has_what_its_partners_usually_have() -> None:
    """Each direction by its own median; what was faster, and all other links, stay."""
    links = np.full((4, 4), 20.0)
    links[1], links[:, 1], links[2, 1] = 5.0, 8.0, 30.0
    links[0, 2] = links[2, 0] = 16.0
    job = make_job(make_cluster(4, links))
    found = made.repaired_host(job, "n1").instance.cluster.link_matrices[0].bytes_per_s / GB
    assert found[1, [0, 2, 3]].tolist() == [18.0, 18.0, 20.0]  # of column 0: 16 and 20
    assert found[[0, 2, 3], 1].tolist() == [18.0, 30.0, 20.0]
    assert found[0, 2] == 16.0


def test_a_repaired_host_runs_at_full_speed() -> None:
    """And is of its kind again."""
    job = make_job(make_cluster(3, kinds=(A100_80.at_speed(0.5), A100_80, A100_80)))
    assert {node.gpu.name for node in made.repaired_host(job, "n0").instance.cluster.nodes} == {"a100-80gb"}


def test_a_repaired_link_is_no_slower_than_the_median() -> None:
    """A pair without a measurement gets it, too; of two hosts the faster direction counts."""
    links = np.full((4, 4), 20.0)
    links[0, 1] = 2.0
    links[1, 0] = np.nan
    found = (
        made.repaired_link(make_job(make_cluster(4, links)), "n0", "n1").instance.cluster.link_matrices[0].bytes_per_s
    )
    assert found[0, 1] == found[1, 0] == 20.0 * GB
    pair = made.repaired_link(make_job(make_cluster(2, np.array([[0, 5.0], [9.0, 0]]))), "n0", "n1")
    assert pair.instance.cluster.link_matrices[0].bytes_per_s[0, 1] == 9.0 * GB


def test_faster_links_scale_with_the_cap() -> None:
    """All pairs, and what enters a host at most; the inside of hosts stays."""
    job = make_job(make_cluster(3, 20.0, node_bytes_per_s=100.0 * GB))
    found = made.faster_links(job, 1.5).instance.cluster
    assert found.pair_bytes_per_s(1)[0, 1] == 30.0 * GB
    assert found.node_bytes_per_s == 150.0 * GB
    assert found.intra_node_bytes_per_s == job.cluster.intra_node_bytes_per_s


def test_another_gpu_is_the_catalogue_s() -> None:
    """With the inside of its usual host; links between hosts stay."""
    found = made.other_gpu(small_instance(), "h100").instance.cluster
    assert {node.gpu.name for node in found.nodes} == {"h100-80gb"}
    assert found.intra_node_bytes_per_s > small_instance().cluster.intra_node_bytes_per_s
    assert np.array_equal(
        found.link_matrices[0].bytes_per_s, small_instance().cluster.link_matrices[0].bytes_per_s, equal_nan=True
    )


def test_more_hosts_are_usual_ones() -> None:
    """Of the most frequent kind, with the medians of each other host's links."""
    job = make_job(make_random_cluster(np.random.default_rng(1), 5, kinds=(A100_80, A100_80, A100_40)))
    old, found = job.cluster.link_matrices[0].bytes_per_s, made.more_hosts(job, 2).instance.cluster
    new = found.link_matrices[0].bytes_per_s
    assert found.hosts[-2:] == ("added1", "added2")
    assert found.nodes[-1].gpu == A100_80
    for node in range(5):
        assert new[5, node] == np.nanmedian(old[:, node])
        assert new[node, 6] == np.nanmedian(old[node])
    assert new[5, 6] == np.nanmedian(old)


@pytest.mark.parametrize("change", [made.repaired_host, lambda job, _: made.more_hosts(job, 1)])
def test_links_inside_a_domain_stay_those_of_the_domain(change: Callable[[Instance, str], Change]) -> None:
    """A median of slower links never takes the place of the rate of an NVLink domain; without any link none is made."""
    links = np.full((4, 4), 20.0)
    links[:2, :2] = links[2:, 2:] = np.nan
    for values, of_node in ((links, [0, 0, 1, 1]), (np.full((4, 4), np.nan), [0, 0, 0, 0])):
        spec = make_cluster(4, values, gpus=2, levels=(domain(of_node, 200.0),))
        found = change(make_job(spec), "n3").instance.cluster
        rates, groups = found.pair_bytes_per_s(1), found.domain_of_node
        inside = (groups[:, None] == groups) & ~np.eye(len(groups), dtype=bool)
        assert (rates[inside] == 200.0 * GB).all()
        assert (rates[groups[:, None] != groups] == 20.0 * GB).all()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda job: made.without_hosts(job, ["n9"]), "--without: host 'n9' is not among"),
        (lambda job: made.without_hosts(job, ["n0", "n1", "n2", "n3", "n4"]), "--without: names every host"),
        (lambda job: made.repaired_host(job, "n9"), "--repair: host 'n9'"),
        (lambda job: made.repaired_link(job, "n1", "n1"), "--repair: must name two hosts"),
        (lambda job: made.faster_links(job, 0.0), "--link-speed: must be > 0"),
        (lambda job: made.more_hosts(job, 0), "--add-hosts: must be a whole number >= 1"),
        (lambda job: made.other_gpu(job, "h1000"), "--gpu: "),
        (lambda job: made.other_training(job, "", {"global_batch_size": 0}), "--global-batch-size: "),
    ],
)
def test_wrong_questions(ask: object, message: str) -> None:
    """Each says what is wrong."""
    with pytest.raises(InputError, match=message):
        ask(small_instance())  # type: ignore[operator]


def test_a_lost_host_of_several_types_is_taken_out_of_the_job() -> None:
    """Stages would keep the layers that suit all hosts, and costs of the slowest type; else lost hosts are barred."""
    slow = replace(A100_80, name="slow", memory_bytes_per_s=A100_80.memory_bytes_per_s / 2)
    job = make_job(make_cluster(3, kinds=(A100_80, A100_80, slow)), TINY)
    for lost, left in (("n2", ("n0", "n1")), ("n1", ("n0", "n2"))):
        gone = made.without_hosts(job, [lost])
        assert (gone.instance.cluster.hosts, gone.barred) == (left, frozenset())
    alike = make_job(make_cluster(3), TINY)
    barred = made.without_hosts(alike, ["n1"])
    assert (barred.instance, barred.barred) == (alike, frozenset({"n1"}))
