"""
Hosts with unequal numbers of GPUs, split into equal blocks of GPUs that are planned like hosts.

A host of 8 GPUs beside hosts of 4 becomes two blocks of 4. Messages between blocks of a host have the bandwidth inside
that host. The blocks of a host share its NICs evenly.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import counted
from pipette_opt.specs import ClusterSpec, LinkMatrix
from pipette_opt.specs.host_names import block_name, compress_hosts


def usual_block(counts: Sequence[int]) -> int:
    """
    Return the default number of GPUs in a block: the greatest common divisor of the GPU counts.

    If the divisor is 1, return the largest power of two up to the smallest count, as tensor-parallel sizes are powers
    of two. A host of 7 GPUs beside hosts of 8 has a block of 4.
    """
    common, fewest = gcd(*counts), min(counts)
    return common if common > 1 else 1 << (fewest.bit_length() - 1)


def split_hosts(cluster: ClusterSpec, counts: Sequence[int], block: int, where: str) -> ClusterSpec:
    """
    Return the cluster with each host split into blocks of ``block`` GPUs, named by their first GPU: ``gpu01:4``.

    A block gets its share of its host's bandwidth to another host, whether other blocks send or not. The latency
    between blocks of a host is the latency between hosts. GPUs left over in a host are unused, with a note.

    Parameters
    ----------
    cluster
        Hosts, each with the largest count as its number of GPUs.
    counts
        Number of GPUs of each host; the first GPUs are used.

    Raises
    ------
    InputError
        If no host has ``block`` GPUs, or if the cluster has links of single GPUs.
    """
    most = max(counts)
    if block > most:
        raise InputError(where, f"gpus_per_block must be at most the {most} GPUs of the largest host, got {block}.")
    if cluster.gpu_links is not None:
        raise InputError(where, "links of single GPUs need hosts with equally many GPUs, and no gpus_per_block.")
    parts = [(host, first) for host, count in enumerate(counts) for first in range(0, count - block + 1, block)]
    host_of = np.array([host for host, _ in parts])
    nodes = tuple(
        replace(cluster.nodes[host], host=block_name(cluster.hosts[host], first), num_gpus=block)
        for host, first in parts
    )
    flows = sorted({block, *(1 << power for power in range(block.bit_length()))})
    matrices = tuple(
        LinkMatrix(concurrent_flows=count, bytes_per_s=_between(cluster, host_of, count, block)) for count in flows
    )
    left = {host: count % block for host, count in zip(cluster.hosts, counts, strict=True) if count % block}
    return replace(
        cluster,
        nodes=nodes,
        link_matrices=matrices if len(nodes) > 1 else (),
        nics_per_node=max(1, cluster.nics_per_node * block // most),
        node_bytes_per_s=None,
        known_latency_s=None if cluster.known_latency_s is None else cluster.known_latency_s[np.ix_(host_of, host_of)],
        assumed=(*cluster.assumed, *_notes(cluster, block, len(nodes), left)),
    )


def _between(cluster: ClusterSpec, host_of: np.ndarray, num_flows: int, block: int) -> FloatArray:
    """
    Return the aggregate bandwidth between blocks, bytes/s, shape ``(num_blocks, num_blocks)``.

    ``host_of`` holds the host index of each block.
    """
    most = cluster.gpus_per_node
    shared = np.minimum(cluster.pair_bytes_per_s(num_flows), cluster.pair_bytes_per_s(most) * block / most)
    found: FloatArray = shared[np.ix_(host_of, host_of)]
    found[host_of[:, None] == host_of[None, :]] = num_flows * cluster.intra_node_bytes_per_s
    return found


def _notes(cluster: ClusterSpec, block: int, num_blocks: int, left: dict[str, int]) -> list[str]:
    notes = [
        f"Hosts are planned as {counted(num_blocks, 'block')} of "
        f"{counted(block, 'GPU')}, each with its share of the NICs; gpus_per_block changes that."
    ]
    if left:
        hosts = compress_hosts(tuple(left))
        notes.append(f"Not used, as they fill no block: {counted(sum(left.values()), 'GPU')} of {hosts}.")
    return notes
