"""Links as one interface: bounds over the best links, and over none, stay below what placed ranks take."""

from dataclasses import replace

import numpy as np
import pytest
from factories import TINY, make_cluster, make_job, make_random_cluster

from pipette_opt.base.types import Collective
from pipette_opt.base.units import GB
from pipette_opt.costs.collectives import RingTraffic, all_reduce_traffic, stacked
from pipette_opt.costs.links import BestLinks, EachLink, NoLinks, RingShape
from pipette_opt.costs.placed_links import PlacedLinks
from pipette_opt.specs import ClusterSpec
from pipette_opt.specs.cluster import Level

NUM_HOSTS, GPUS = 6, 4


def clusters(rng: np.random.Generator) -> list[ClusterSpec]:
    """Six hosts: links of random rates and latencies, racks, and two shapes of NVLink domains."""
    latency_s = rng.uniform(1e-6, 1e-4, (NUM_HOSTS, NUM_HOSTS))
    level = Level(name="level", group_of_node=np.arange(6) // 3, bytes_per_s=20 * GB, latency_s=3e-6)
    domain = replace(level, bytes_per_s=200 * GB, latency_s=2e-6, scale_up=True)
    uneven = replace(domain, group_of_node=np.array([0, 0, 0, 0, 1, 1]))
    network = {"gpus": GPUS, "links_measured": False, "inter_node_latency_s": 9e-6, "nics_per_node": GPUS}
    return [
        make_random_cluster(rng, NUM_HOSTS, gpus=GPUS),
        make_random_cluster(rng, NUM_HOSTS, gpus=GPUS, known_latency_s=latency_s, intra_node_bytes_per_s=20 * GB),
        *(make_cluster(NUM_HOSTS, 5.0, levels=(each,), **network) for each in (level, domain, uneven)),  # type: ignore[arg-type]
    ]


def placed_s(
    spec: ClusterSpec, hosts: np.ndarray, members: int, traffic: RingTraffic, algorithm: Collective
) -> np.ndarray:
    """Times of the rings that fill hosts, each with ``members`` ranks on every one of ``hosts``; one row for each."""
    nodes = np.repeat(np.repeat(hosts, members, axis=1), spec.gpus_per_node // members, axis=0)
    rings = PlacedLinks(make_job(spec, TINY)).rings(nodes[None], "a ring", algorithm)
    return rings.time_s(stacked([traffic])).reshape(len(hosts), -1).max(axis=1)


@pytest.mark.parametrize("seed", range(4))
def test_best_links_and_none_are_below_placed_ranks(seed: int) -> None:
    """Whatever the hosts, rings that run at once are no faster, in order, than the bounds of as many rings."""
    rng = np.random.default_rng(seed)
    for spec in clusters(rng):
        algorithms: list[Collective] = ["ring"] if spec.most_in_domain > 1 else ["ring", "hierarchical"]
        for algorithm in algorithms:
            for members, num_hosts, num_rings in ((1, 2, 3), (2, 3, 2), (4, 3, 1), (4, 6, 1), (2, 2, 2), (4, 1, 1)):
                traffic = all_reduce_traffic(10.0 ** rng.uniform(3, 10), members * num_hosts)
                shape = RingShape(members, num_hosts, GPUS, num_rings)
                hosts = rng.permutation(NUM_HOSTS)[: num_hosts * num_rings].reshape(num_rings, num_hosts)
                placed = np.sort(placed_s(spec, hosts, members, traffic, algorithm))
                best = BestLinks(spec).ring_s(shape, traffic, algorithm)
                free = NoLinks(spec).ring_s(shape, traffic, algorithm)
                scenarios = best.reshape(-1, num_rings if len(best) > 1 else 1)
                assert (scenarios <= placed * (1 + 1e-12)).all(axis=1).any()
                assert (free <= best).all()
                if num_hosts > 1:
                    each = EachLink(spec).ring_s(shape, traffic, algorithm)
                    hops = [
                        each[hosts[0], np.roll(hosts[0], -1)].max(),
                        *each[hosts, np.roll(hosts, -1, axis=1)].max(axis=1),
                    ]
                    assert max(hops) <= placed.max() * (1 + 1e-12)


def test_a_fast_network_does_not_make_a_hierarchy_a_ring() -> None:
    """
    Two hosts of two GPUs on PCIe: phases inside send half of the message, a ring three quarters.

    The part of a ring inside hosts is then no bound on a hierarchy.
    """
    spec = make_cluster(2, 200.0, gpus=2, nics_per_node=2, intra_node_bytes_per_s=20 * GB)
    traffic, shape = all_reduce_traffic(1e9, 4), RingShape(2, 2, 2)
    phases = placed_s(spec, np.array([[0, 1]]), 2, traffic, "hierarchical")
    assert phases < NoLinks(spec).ring_s(RingShape(2), traffic)
    assert BestLinks(spec).ring_s(shape, traffic, "hierarchical") == pytest.approx(phases)
    assert NoLinks(spec).ring_s(shape, traffic, "hierarchical") == 0


def test_rings_without_room_take_their_part_inside() -> None:
    """Three hosts in one direction: no second ring, and no ring of three pairs, so nothing but the hosts is known."""
    values = np.full((4, 4), np.nan)
    values[0, 1] = 10.0
    spec, traffic = make_cluster(4, values), all_reduce_traffic(1e9, 4)
    first, second = BestLinks(spec).ring_s(RingShape(2, 2, 2, num_rings=2), traffic)
    assert first > second == NoLinks(spec).ring_s(RingShape(2, 2), traffic)
