"""Network levels of a cluster: numbers of groups."""

import numpy as np
from factories import TINY, make_cluster, make_job

from pipette_opt.costs.placed_links import PlacedLinks
from pipette_opt.specs.levels import Level


def test_left_out_hosts_leave_no_gap() -> None:
    """Kernels count hosts by group number, so without the first group the others begin at 0 again."""
    level = Level(name="nvlink-domain", group_of_node=np.array([0, 0, 1, 2]), bytes_per_s=1e11, latency_s=0.0)
    assert level.of_hosts([2, 3]).group_of_node.tolist() == [0, 1]
    assert level.of_hosts([3, 1]).group_of_node.tolist() == [1, 0]


def test_exchanges_of_left_over_domains() -> None:
    """All-to-alls are timed inside the domains that are left, as in a cluster that never had others."""
    given = Level(name="nvlink-domain", group_of_node=np.array([0, 1]), bytes_per_s=1e11, latency_s=0.0, scale_up=True)
    kept = Level(
        name="nvlink-domain", group_of_node=np.array([0, 1, 2]), bytes_per_s=1e11, latency_s=0.0, scale_up=True
    ).of_hosts([1, 2])
    groups, shares = np.array([[[0, 0], [1, 1], [0, 1]]]), np.ones(3)
    times = []
    for level in (given, kept):
        job = make_job(make_cluster(2, gpus=2, levels=(level,)), TINY)
        times.append(PlacedLinks(job).exchange(groups, "a group", shares))
    assert times[0].load_s_per_byte.tolist() == times[1].load_s_per_byte.tolist()
    assert times[0].load_s_per_byte.max() > 0
