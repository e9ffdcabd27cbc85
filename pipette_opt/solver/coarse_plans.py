"""Fastest coarse placement of a candidate configuration: racks and slow hosts in whole rows or columns, simulated."""

from functools import lru_cache
from math import prod

import numpy as np

from pipette_opt.annealing.coarse import DISTANCES, starts_among
from pipette_opt.base.types import IntArray
from pipette_opt.parallel import tile_placement
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.neighbours import Neighbours, find_neighbours
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.swap_search import has_room
from pipette_opt.specs import ClusterSpec, Instance

TICKS_OF_FASTEST = 1_000_000
"""Ticks of the fastest link between hosts, in units that only compare links. Chosen."""


def coarse_placement(instance: Instance, data: ProblemData, candidate: CandidateData) -> tuple[IntArray, float] | None:
    """
    Return the fastest coarse placement and its simulated seconds; ``None`` if none fits.

    The hosts have the shape of the candidate's grid.
    """
    neighbours = neighbours_of(instance.cluster)
    if neighbours is None:
        return None
    rows, columns = candidate.grid[0], prod(candidate.grid[1:])
    starts = starts_among(neighbours, (rows, columns), DISTANCES)
    grids = [nodes[: rows * columns].reshape(candidate.grid) for nodes in starts]
    grids = [nodes for nodes in grids if has_room(data, candidate, nodes)]
    config, tile = candidate.config, candidate.tile
    seconds = estimate_many(instance, [(config, tile_placement(config, tile, nodes)) for nodes in grids])
    if not np.isfinite(seconds).any():
        return None
    return grids[int(seconds.argmin())], float(seconds.min())


@lru_cache(maxsize=16)
def neighbours_of(cluster: ClusterSpec) -> Neighbours | None:
    """Return the racks and slow hosts of a cluster by its links between whole hosts; ``None`` without links."""
    rates = cluster.pair_bytes_per_s(cluster.gpus_per_node)
    is_link = rates > 0
    if not is_link.any():
        return None
    ticks = np.full(rates.shape, UNUSABLE_TICKS, dtype=np.int64)
    ticks[is_link] = TICKS_OF_FASTEST * rates[is_link].max() / rates[is_link]
    np.fill_diagonal(ticks, UNUSABLE_TICKS)
    return find_neighbours(ticks)
