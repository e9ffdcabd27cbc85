"""
Placement of plans on hosts in their listed order, before any search.

On clusters with NVLink domains, a stage is placed in a single domain that has room for it. If none has, each group of
ranks that exchange tokens is. Taking hosts strictly in order would cut every second group if a domain's size is no
multiple of a stage's.
"""

from math import gcd

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.parallel import HostTile, ParallelConfig
from pipette_opt.parallel.placement import ranks_of_a_host
from pipette_opt.specs import ClusterSpec


def hosts_together(config: ParallelConfig, tile: HostTile) -> int:
    """Return the hosts of the largest expert, tensor or context group, which should share an NVLink domain."""
    ranks = config.expert_model_parallel_size * config.expert_tensor_size
    return max(-(-ranks // ranks_of_a_host(config, tile)), tile.nodes_per_slot)


def next_hosts(cluster: ClusterSpec, free: BoolArray, count: int, together: int) -> IntArray | None:
    """
    Return the indices of the next hosts for a grid row; ``None`` if too few are free.

    Parameters
    ----------
    free
        Mask of hosts that may be used, shape ``(num_nodes,)``.
    together
        Number of neighbours in the row that share an NVLink domain if no domain has room for the row.
    """
    able = np.flatnonzero(free)
    if len(able) < count:
        return None
    if cluster.most_in_domain == 1:
        return able[:count]
    domain, taken = cluster.domain_of_node[able], np.zeros(len(able), dtype=np.bool_)
    chosen: list[int] = []
    wanted = count
    while len(chosen) < count:
        room = np.bincount(domain[~taken])
        enough = np.flatnonzero(room >= wanted)
        if not enough.size and wanted > together:
            wanted = gcd(count, together)
            continue
        of_domain = enough[0] if enough.size else room.argmax()
        picked = np.flatnonzero((domain == of_domain) & ~taken)[: min(wanted, count - len(chosen))]
        taken[picked] = True
        chosen += able[picked].tolist()
    return np.array(chosen, dtype=np.int64)
