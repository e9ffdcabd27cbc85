"""
Partition families for grids that are larger than any group of near hosts, such as a region.

Hosts merge along the fastest links until a group would have room for the whole grid. Then communication must cross
groups in one of two ways. If each grid row is inside a group, a row sends to the next row across groups, in every
column. If a row has hosts of several groups, its rings cross groups. The group sizes bound the number of such rows from
below. Each way is a family of its own, with the fastest link between groups at the crossing. Together the families
cover all placements.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.costs.best_rings import far_bytes_per_s, near_groups
from pipette_opt.costs.messages import p2p_bytes
from pipette_opt.parallel import gpus_of_a_host
from pipette_opt.problem.families import LayerFamily
from pipette_opt.specs import ClusterSpec, Instance

FAR = 2.0
"""A link between groups is far if its transfer time exceeds this multiple of the best link's. Chosen."""

MAX_ROWS = 9
"""Grids with more rows than this get no far partition families; otherwise each row boundary gets one. Chosen."""


def has_far_groups(cluster: ClusterSpec) -> bool:
    """Return whether a placement on all hosts must use a far link, judged by bandwidth alone."""
    if cluster.num_nodes < 2 or cluster.most_in_domain > 1:
        return False
    rate = far_bytes_per_s(cluster, near_groups(cluster, 1, cluster.num_nodes), 1)
    return bool(0 < FAR * rate < cluster.fastest_pair_bytes_per_s(1))


def far_families(
    instance: Instance, family: LayerFamily, slots_cross: Callable[[BoolArray], LayerFamily]
) -> list[LayerFamily]:
    """
    Return a partition family for each way in which the grid can cross groups of near hosts; ``[family]`` if it need not
    cross.

    Only dense models on hosts of one GPU type are split up. Their rows can cross in one way only: replicas on several
    hosts, or a single replica whose slots span hosts.

    Parameters
    ----------
    slots_cross
        Function from the mask of host pairs in different groups to the family whose slots span groups.
    """
    cluster, config, tile, rows = instance.cluster, family.config, family.tile, family.grid[0]
    known = len(cluster.gpu_kinds) == 1 and cluster.most_in_domain == 1 and instance.model.num_experts is None
    one_way = 1 in family.grid[1:]
    if not known or not one_way or not config.reduces_in_one_ring or not 1 < rows <= MAX_ROWS:
        return [family]
    groups, flows = groups_of(instance, family), gpus_of_a_host(config, tile) // tile.stages
    rate = far_bytes_per_s(cluster, groups, flows)
    if not rate > 0:
        return [family]
    latency_s = float(np.min(cluster.pair_latency_s + np.where(groups[:, None] != groups, 0.0, np.inf)))
    far_s = latency_s + p2p_bytes(instance.model, instance.training, config) * flows / rate
    near_s = float(family.link_s[0, 0])
    if not far_s > FAR * near_s:
        return [family]
    sizes, found = tuple(np.bincount(groups).tolist()), list[LayerFamily]()
    if sum(size // family.hosts_per_row for size in sizes) >= rows:
        found += [replace(family, far_after=row, far_s=far_s - near_s) for row in range(rows - 1)]
    if family.hosts_per_row > 1:
        if not all_rows_cross(sizes, rows, family.hosts_per_row):
            return [family]
        spans = tile.nodes_per_slot > 1
        found.append(slots_cross(groups[:, None] != groups) if spans else replace(family, has_far_rings=True))
    return [replace(crossing, is_far=True) for crossing in found]


def groups_of(instance: Instance, family: LayerFamily) -> IntArray:
    """Return each host's group of near hosts, shape ``(num_nodes,)``, for the flows between two stages."""
    flows = gpus_of_a_host(family.config, family.tile) // family.tile.stages
    return near_groups(instance.cluster, flows, family.grid[0] * family.hosts_per_row)


@lru_cache(maxsize=4096)
def all_rows_cross(sizes: tuple[int, ...], rows: int, width: int) -> bool:
    """
    Return whether all grid rows must span groups of hosts as soon as one row does.

    Parameters
    ----------
    sizes
        Number of hosts in each group.
    rows, width
        Number of grid rows, and number of hosts in each.
    """
    for crossing in range(1, rows):
        taken = crossing * width
        # Most rows left inside groups, by the number of hosts that crossing rows have taken so far.
        inside = np.full(taken + 1, -1)
        inside[0] = 0
        for size in sizes:
            after = np.full(taken + 1, -1)
            for taken_here in range(min(size, crossing * (width - 1), taken) + 1):
                before = inside[: taken + 1 - taken_here]
                left = np.where(before >= 0, before + (size - taken_here) // width, -1)
                after[taken_here:] = np.maximum(after[taken_here:], left)
            inside = after
        if inside[taken] >= rows - crossing:
            return False
    return True
