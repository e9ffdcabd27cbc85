"""Critical paths of random layer partitions, and the hosts on which layer partitions are simulated."""

from typing import cast

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, P2PMode
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.path_counts import PathCounts
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.solver.listed_hosts import hosts_together, next_hosts
from pipette_opt.specs import Instance

LIKELY_PATHS = 10
"""
Number of random layer partitions whose critical paths are the first paths of a schedule. Chosen.

Without them, the bounds of interleaved schedules stay at half of the simulated times for many solves.
"""


def likely_paths(family: LayerFamily, hosts_of_kind: IntArray, p2p: P2PMode) -> PathCounts:
    """
    Return the critical paths of random layer partitions of a family over the best links, without duplicates.

    Rows get random GPU types that the hosts allow. Stages get units (layers in each chunk) by the speed of their type,
    times a random factor.
    """
    rng, rows = np.random.default_rng(0), family.grid[0]
    pool = np.repeat(np.arange(len(hosts_of_kind)), np.maximum(hosts_of_kind // family.hosts_per_row, 0))
    found = []
    for trial in range(LIKELY_PATHS):
        kinds = rng.permutation(pool)[:rows]
        kinds = np.concatenate([kinds, np.full(rows - len(kinds), int(hosts_of_kind.argmax()))])
        shares = 1.0 / family.layer_s.sum(axis=0)[np.repeat(kinds, family.tile.stages)]
        shares *= rng.uniform(1.0, 2.0, len(shares)) ** (trial > 0)
        times = family.times(family.num_units * shares / shares.sum(), kinds)
        counts = critical_counts(times, family.num_microbatches, p2p)
        found.append(longest_path(family, counts, family.num_units * shares / shares.sum(), kinds))
    return PathCounts.joined(found)


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
