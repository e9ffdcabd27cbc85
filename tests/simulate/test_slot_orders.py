"""Orders of slots against every order on two hosts of four GPUs."""

import math
from dataclasses import replace
from itertools import permutations, product
from typing import NamedTuple, cast

import numpy as np
import pytest
from factories import make_config, make_job
from gpu_hosts import gpu_cluster, paired_host, rails, random_gpu_cluster

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.parallel import HostTile, ParallelConfig, Placement, host_tiles, tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.plan import IterationTime
from pipette_opt.problem.data import CandidateData
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.slots import assign_slots
from pipette_opt.simulate.solutions import SimulatedSolution
from pipette_opt.specs import ClusterSpec, Instance

pytestmark = pytest.mark.search

CONFIGS = [
    make_config(tp=2, pp=2, dp=2),
    make_config(tp=2, pp=4, dp=1),
    make_config(tp=4, pp=1, dp=2),
    make_config(tp=1, pp=4, dp=2),
    make_config(tp=2, pp=1, dp=4),
    make_config(tp=8, pp=1, dp=1),
    make_config(tp=2, pp=2, dp=1, context_parallel_size=2),
]


class Packing(NamedTuple):
    """What of a candidate the order of slots depends on."""

    config: ParallelConfig
    tile: HostTile

    @property
    def grid(self) -> tuple[int, int, int]:
        """Shape of the grid of hosts."""
        return self.tile.node_grid(self.config)

    @property
    def num_cells(self) -> int:
        """Hosts."""
        return math.prod(self.grid)

    @property
    def nodes(self) -> IntArray:
        """Both hosts as they are listed."""
        return np.arange(2).reshape(self.grid)

    def placement(self, slots: IntArray | None = None) -> Placement:
        """Ranks on GPUs."""
        return tile_placement(self.config, self.tile, self.nodes, slots)


def packings(chosen: ParallelConfig) -> list[Packing]:
    """Every packing of a configuration on two hosts of four GPUs."""
    return [Packing(chosen, tile) for tile in host_tiles(chosen, 4, "slurm")]


def relaxed_s(job: Instance, packing: Packing) -> IterationTime:
    """The simulated time on relaxed hosts."""
    return estimate(replace(job, cluster=job.cluster.relaxed()), packing.config, packing.placement())


def every_order_s(job: Instance, packing: Packing) -> FloatArray:
    """The simulated time of every order of the slots of each host."""
    orders = [np.array(both).reshape(*packing.grid, 4) for both in product(permutations(range(4)), repeat=2)]
    return estimate_many(job, [(packing.config, packing.placement(slots)) for slots in orders])


def assigned(job: Instance, packing: Packing) -> SimulatedSolution:
    """With the slots that are chosen."""
    one = SimulatedSolution(
        candidate=cast(CandidateData, packing),
        nodes=packing.nodes,
        estimate=relaxed_s(job, packing),
    )
    return assign_slots(job, one, Clock())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("chosen", CONFIGS, ids=lambda one: one.label())
def test_no_order_is_faster_than_relaxed_hosts(seed: int, chosen: ParallelConfig) -> None:
    """Every link differs; all 576 orders of each packing take at least as long as on relaxed hosts."""
    job = make_job(random_gpu_cluster(seed), global_batch_size=16)
    for packing in packings(chosen):
        times = every_order_s(job, packing)
        best = assigned(job, packing).estimate.iteration_time_s
        assert times.min() >= relaxed_s(job, packing).iteration_time_s * (1 - 1e-12)
        assert times.min() * (1 - 1e-12) <= best <= times[0]


SHAPED: list[ClusterSpec] = [
    gpu_cluster(np.stack([paired_host([(0, 2), (1, 3)], 4)] * 2)),
    gpu_cluster(np.stack([paired_host([(0, 3), (1, 2)], 4), paired_host([(0, 1), (2, 3)], 4)])),
    gpu_cluster(np.stack([paired_host([(0, 2), (1, 3)], 4)] * 2), rails(2, 4)),
    gpu_cluster(np.stack([paired_host([], 4)] * 2), rails(2, 4), nics=(0, 1, 0, 1)),
]
"""Pairs that are no neighbours, hosts that differ, rails, and NICs that neighbours do not share."""


@pytest.mark.parametrize("number", range(len(SHAPED)))
@pytest.mark.parametrize("chosen", CONFIGS[:4], ids=lambda one: one.label())
def test_the_best_order_of_machines_as_they_are(number: int, chosen: ParallelConfig) -> None:
    """With NVLink pairs and rails nothing is faster than the order that is chosen."""
    job = make_job(SHAPED[number], global_batch_size=16)
    for packing in packings(chosen):
        best = assigned(job, packing).estimate.iteration_time_s
        assert best == pytest.approx(every_order_s(job, packing).min(), rel=1e-9)


def test_stages_of_neighbouring_hosts_share_rails() -> None:
    """Two stages a host on rails: the second host has its stages the other way round."""
    job = make_job(gpu_cluster(np.stack([paired_host([], 4)] * 2), rails(2, 4)), global_batch_size=16)
    packing = next(one for one in packings(make_config(tp=2, pp=4, dp=1)) if one.tile.stages == 2)
    best = assigned(job, packing)
    assert best.slots is not None
    first, second = best.slots.reshape(2, 4)
    assert (first[2:] == second[:2]).all()  # the last stage of the first host, the first of the second
