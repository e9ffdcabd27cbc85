"""What jobs take wherever they are placed, simulated many at once: ``simulate/test_many.py`` has it as one by one."""

import math
from collections.abc import Iterable
from itertools import permutations

import numpy as np

from pipette_opt.parallel import ParallelConfig, Placement, host_tiles, tile_placement
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance


def all_placements(job: Instance, chosen: ParallelConfig) -> list[Placement]:
    """Every way to put a configuration on hosts."""
    return [
        tile_placement(chosen, block, np.array(hosts).reshape(block.node_grid(chosen)))
        for block in host_tiles(chosen, job.cluster.gpus_per_node, job.launcher)
        for hosts in permutations(range(job.cluster.num_nodes), math.prod(block.node_grid(chosen)))
    ]


def least_s(job: Instance, configs: Iterable[ParallelConfig]) -> dict[ParallelConfig, float]:
    """The simulator's least time of each configuration over all its placements; none that has no placement."""
    placed = [(one, placement) for one in configs for placement in all_placements(job, one)]
    found: dict[ParallelConfig, float] = {}
    for (one, _), seconds in zip(placed, estimate_many(job, placed).tolist(), strict=True):
        found[one] = min(seconds, found.get(one, math.inf))
    return found
