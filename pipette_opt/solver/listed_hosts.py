"""
Hosts in listed order, for plans that no search has placed yet.

On machines with NVLink domains, a stage is in one domain where one has room. Otherwise each group of ranks that
exchange tokens is. Simply taking hosts in turn would cut every second group if domains are no multiples of a stage.
"""

from math import gcd

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.parallel import NodeBlock, ParallelConfig
from pipette_opt.parallel.placement import ranks_of_a_host
from pipette_opt.specs import ClusterSpec


def hosts_together(config: ParallelConfig, block: NodeBlock) -> int:
    """
    Return the number of hosts, at least 1, of an expert-parallel group of a stage, or of a tensor or context
    group.
    """
    ranks = config.expert_model_parallel_size * config.expert_tensor_size
    return max(-(-ranks // ranks_of_a_host(config, block)), block.nodes_per_slot)


def next_hosts(cluster: ClusterSpec, free: BoolArray, count: int, together: int) -> IntArray | None:
    """
    Return the next hosts for a row of the grid of stages and replicas, by index; ``None`` if too few are free.

    Parameters
    ----------
    free
        Hosts that may be taken, shape ``(num_nodes,)``.
    together
        Neighbours in the row that share an NVLink domain if the row does not fit into one.
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
