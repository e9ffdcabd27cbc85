"""Critical path of a likely layer partition, and the hosts on which layer partitions are simulated."""

from typing import cast

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, P2PMode
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.path_counts import PathCounts
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.solver.listed_hosts import hosts_together, next_hosts
from pipette_opt.specs import Instance


def likely_path(family: LayerFamily, hosts_of_kind: IntArray, p2p: P2PMode) -> PathCounts:
    """
    Return the critical path of a likely layer partition of a family over the best links.

    Rows get GPU types that the hosts allow. Stages get units (layers in each chunk) by the speed of their type.
    """
    rows = family.grid[0]
    kinds = np.repeat(np.arange(len(hosts_of_kind)), np.maximum(hosts_of_kind // family.hosts_per_row, 0))[:rows]
    kinds = np.concatenate([kinds, np.full(rows - len(kinds), int(hosts_of_kind.argmax()))])
    shares = 1.0 / family.layer_s.sum(axis=0)[np.repeat(kinds, family.tile.stages)]
    units = family.num_units * shares / shares.sum()
    counts = critical_counts(family.times(units, kinds), family.num_microbatches, p2p)
    return longest_path(family, counts, units, kinds)


def longest_path(family: LayerFamily, counts: PathCounts, units: FloatArray, kinds: IntArray) -> PathCounts:
    """Return the longest path in ``counts`` for the given units of each stage and GPU type of each row."""
    fixed, unit = family.reduced_path_s(counts)
    stages = np.arange(len(units))
    length = (fixed + unit * units)[:, np.repeat(kinds, family.tile.stages), stages].sum(axis=1)
    length += (counts.up + counts.down) @ family.times(units, kinds).send_forward_s[:, 0]
    if not family.config.overlap_grad_reduce:
        length[counts.parts > 1] = 0.0
    return counts.take(np.array([int(length.argmax())]))


def listed_hosts_of_kinds(instance: Instance, family: LayerFamily, kinds: IntArray) -> IntArray:
    """
    Return hosts in listed order with the given number of each GPU type in each row; shape of the partition family's
    grid.

    Each row has its types in one order, so that slow hosts share columns.

    Parameters
    ----------
    kinds
        Number of hosts of each GPU type in each row, shape ``(rows, num_kinds)``.
    """
    cluster, together = instance.cluster, hosts_together(family.config, family.tile)
    free, nodes = np.ones(cluster.num_nodes, dtype=np.bool_), []
    for row in kinds.tolist():
        for kind, count in enumerate(row):
            taken = next_hosts(cluster, free & (cluster.kind_of_node == kind), count, together)
            nodes.append(cast(IntArray, taken))
            free[nodes[-1]] = False
    return np.concatenate(nodes).reshape(family.grid)
