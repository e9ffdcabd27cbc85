"""What the slots of ranks make of their rings, messages and all-to-alls, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from factories import make_config, make_job
from gpu_hosts import gpu_cluster, paired_host, rails

from pipette_opt.base.units import GB
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.placed_links import PlacedLinks, fabric_of, gpu_numbers, slot_rates
from pipette_opt.parallel import host_tiles, tile_placement
from pipette_opt.specs import ClusterSpec

PAIRS = [(0, 2), (1, 3)]
"""NVLink between every other GPU of hosts of four."""


def ring(spec: ClusterSpec, *gpus: tuple[int, int]) -> tuple[float, float]:
    """Slowest hop between hosts and inside of one ring, GB/s; GPUs as (host, slot)."""
    nodes, slots = np.array(gpus).T
    rings = PlacedLinks(make_job(spec)).rings(gpu_numbers(spec, nodes, slots)[None, None], "a group")
    return float(rings.hops[0].pace[0, 0]) / GB, float(np.broadcast_to(rings.inside_bytes_per_s, (1, 1))[0, 0]) / GB


def test_a_ring_inside_a_host_is_as_fast_as_its_slots_allow() -> None:
    """Two GPUs with NVLink, two without, and all four."""
    spec = gpu_cluster(np.stack([paired_host(PAIRS, 4)] * 2))
    assert ring(spec, (0, 0), (0, 2))[1] == 50
    assert ring(spec, (0, 0), (0, 1))[1] == 10
    assert ring(spec, *((1, slot) for slot in range(4)))[1] == 10


def test_the_slowest_host_of_a_ring_decides() -> None:
    """A pair with NVLink on one host and without on the other."""
    spec = gpu_cluster(np.stack([paired_host(PAIRS, 4)] * 2))
    assert ring(spec, (0, 0), (0, 2), (1, 0), (1, 2))[1] == 50
    assert ring(spec, (0, 0), (0, 2), (1, 0), (1, 1))[1] == 10


def test_rings_keep_to_rails_where_they_can() -> None:
    """Equal slots of two hosts, in whatever order; one slot that differs leaves its rail."""
    spec = gpu_cluster(np.stack([paired_host(PAIRS, 4)] * 2), rails(2, 4))
    assert ring(spec, (0, 1), (1, 1))[0] == 20
    assert ring(spec, (0, 1), (1, 2))[0] == 5
    assert ring(spec, (0, 0), (0, 2), (1, 2), (1, 0))[0] == 20
    assert ring(spec, (0, 0), (0, 2), (1, 2), (1, 3))[0] == 5


def test_flows_that_share_a_nic_share_its_rate() -> None:
    """Four rails, and GPUs 0 and 1 behind one NIC: two flows of one pair of hosts get half each."""
    spec = gpu_cluster(np.stack([paired_host(PAIRS, 4)] * 2), rails(2, 4), nics=(0, 0, 1, 1))
    assert ring(spec, (0, 0), (0, 2), (1, 0), (1, 2))[0] == 20
    assert ring(spec, (0, 0), (0, 1), (1, 0), (1, 1))[0] == 10


def test_messages() -> None:
    """Inside a host by its link, on the rail, beside it, and two through one NIC."""
    spec = gpu_cluster(np.stack([paired_host(PAIRS, 4)] * 2), rails(2, 4), nics=(0, 0, 1, 1))

    def rates(*ends: tuple[int, int]) -> list[float]:
        here, there = np.array(ends).T
        return (slot_rates(spec, here[None], there[None])[0] / GB).tolist()

    assert rates((0, 2), (0, 1)) == [50, 10]
    assert rates((0, 4)) == [20]
    assert rates((0, 5)) == [5]
    assert rates((0, 4), (1, 5), (2, 6)) == [10, 10, 20]
    assert rates((0, 4), (4, 0)) == [20, 20]


@pytest.mark.search
def test_all_to_alls_inside_a_host() -> None:
    """Of four GPUs each sends to one over NVLink and to two over PCIe."""
    spec = gpu_cluster(np.stack([paired_host(PAIRS, 4)] * 2))
    found = fabric_of(spec, np.arange(4)[None, None])
    assert found is not None
    assert found[0, 0] * GB == pytest.approx(1 / 50 + 2 / 10)


def test_hosts_alike_inside_are_timed_as_without_single_links() -> None:
    """Where every link is the same, slots change nothing."""
    spec = gpu_cluster(np.stack([np.full((4, 4), 40.0) * GB] * 2))
    plain = replace(spec, gpu_links=None)
    for chosen in (
        make_config(tp=2, pp=2, dp=2),
        make_config(tp=4, dp=2),
        make_config(tp=1, pp=8),
        make_config(tp=2, pp=1, dp=4),
    ):
        for block in host_tiles(chosen, 4, "slurm"):
            placement = tile_placement(chosen, block, np.arange(2).reshape(block.node_grid(chosen)))
            times = [placed_times(make_job(one), chosen, placement) for one in (spec, plain)]
            for name in ("forward_s", "backward_s", "send_forward_s", "reduction_s"):
                assert getattr(times[0], name) == pytest.approx(getattr(times[1], name), rel=1e-12)
