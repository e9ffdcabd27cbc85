"""
Named clusters: the bandwidth of each link between two hosts.

Generated clusters are symmetric, with hosts in random order, so that the listed order has no information. The two
measured clusters are directed as measured, and lack the links that were not measured.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import GB, US
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.links import import_links
from pipette_opt.specs import ClusterSpec, LinkMatrix, NodeSpec

SHARED_VARIABLE = "PIPETTE_OPT_SHARED"

UNIT_HOSTS = 32
"""Number of hosts under one group of leaf switches in ``rail``."""


class UnavailableError(Exception):
    """Raised if the measured data of an instance is not on this machine."""


def _symmetric(random: np.random.Generator, num_hosts: int) -> FloatArray:
    """Return a random symmetric matrix, uniform in [0, 1)."""
    upper = np.triu(random.random((num_hosts, num_hosts)), 1)
    return upper + upper.T


def _shuffled(random: np.random.Generator, rate: FloatArray) -> FloatArray:
    order = random.permutation(len(rate))
    return rate[np.ix_(order, order)]


def _racks(random: np.random.Generator, num_hosts: int, racks: int, inside: float, across: float) -> FloatArray:
    """Return the bandwidths of equal racks in the order of the hosts, each pair up to 4 % below its rate."""
    rack = np.arange(num_hosts) * racks // num_hosts
    rate = np.where(rack[:, None] == rack[None, :], inside, across)
    return rate * (1 - 0.04 * _symmetric(random, num_hosts))


def _slow_down(random: np.random.Generator, rate: FloatArray, count: int, factor: float) -> FloatArray:
    """Multiply all links of ``count`` random hosts by ``factor``, and twice between two of them."""
    slow = random.permutation(len(rate))[:count]
    rate[slow] *= factor
    rate[:, slow] *= factor
    return rate


def _unif(random: np.random.Generator, num_hosts: int) -> FloatArray:
    return 25.0 * (1 - 0.4 * _symmetric(random, num_hosts))


def _tree(random: np.random.Generator, num_hosts: int) -> FloatArray:
    rate = _racks(random, num_hosts, 4, 24.0, 20.0)
    return _shuffled(random, _slow_down(random, rate, max(1, num_hosts // 8), 0.6))


def _rail(random: np.random.Generator, num_hosts: int) -> FloatArray:
    """Return the bandwidths of pairs that are limited on each rail by the slower of their two NICs."""
    nic = 3.0 * (1 - 0.02 * random.random((num_hosts, 8)))
    for host in random.permutation(num_hosts)[: max(1, num_hosts // 8)]:
        nic[host, random.permutation(8)[: int(random.integers(1, 5))]] *= 0.5
    rate = np.minimum(nic[:, None, :], nic[None, :, :]).sum(axis=2)
    unit = np.arange(num_hosts) // min(UNIT_HOSTS, max(1, num_hosts // 2))
    rate *= np.where(unit[:, None] == unit[None, :], 1.0, 0.9)
    return _shuffled(random, rate)


def _two_rack(random: np.random.Generator, num_hosts: int) -> FloatArray:
    return _shuffled(random, _racks(random, num_hosts, 2, 24.0, 12.0))


def _slow_node(random: np.random.Generator, num_hosts: int) -> FloatArray:
    return _slow_down(random, _racks(random, num_hosts, 1, 24.0, 24.0), 1, 0.5)


GENERATED: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "unif": _unif,
    "tree": _tree,
    "rail": _rail,
    "two-rack": _two_rack,
    "slow-node": _slow_node,
    "spares": _tree,
}
"""
Functions that return bandwidths in GB/s, from a random generator and the number of listed hosts.

``unif``: 25 (1 - 0.4 u), no structure. ``tree``: four racks, 24 inside and 20 across, an eighth of the hosts at 0.6.
``rail``: eight rails of 3, an eighth of the hosts with one to four NICs at half rate, 0.9 between the units of (at
most) 32 hosts. ``two-rack``: 24 inside and 12 across. ``slow-node``: all 24, one host at 0.5. ``spares``: a ``tree``
with half as many hosts again as are used. In racks each pair is up to 4 % below its rate.
"""

MEASURED: dict[str, tuple[str, int]] = {
    "measured-17": ("links/h100_17_nodes", 17),
    "measured-16": ("measured/bandwidth/pipette_mpigraph_16nodes_t0.json", 16),
}
"""
Path of the data and number of hosts of each measured cluster.

``measured-17``: nccl-tests logs of 17 hosts with eight H100, total of eight flows per pair; the 18 pairs with a failed
test are missing.
``measured-16``: mpiGraph between 16 hosts, as in Pipette's repository (yimjinkyu1/date2024_pipette), one flow.
"""

CLUSTERS = (*GENERATED, *MEASURED)


def num_listed(cluster: str, num_used: int) -> int:
    """Return the number of listed hosts if ``num_used`` are used."""
    if cluster in MEASURED:
        return MEASURED[cluster][1]
    return num_used + num_used // 2 if cluster == "spares" else num_used


def num_flows(cluster: str) -> int:
    """Return the number of concurrent flows of a pair that reach its bandwidth together."""
    return 8 if cluster == "measured-17" else 1


def link_gb_per_s(cluster: str, num_used: int, seed: int) -> FloatArray:
    """
    Return the bandwidths from host to host in GB/s; NaN on the diagonal and for unmeasured links.

    Raises ``UnavailableError`` if the data of a measured cluster is missing.
    """
    if cluster in MEASURED:
        return _measured(cluster)
    if cluster not in GENERATED:
        raise ValueError(f"cluster must be one of {', '.join(CLUSTERS)}, got {cluster!r}.")
    number = list(GENERATED).index(cluster)
    rate = GENERATED[cluster](np.random.default_rng((number, seed)), num_listed(cluster, num_used))
    np.fill_diagonal(rate, np.nan)
    return rate


def cluster_of(gb_per_s: FloatArray, flows: int, gpu: str) -> ClusterSpec:
    """Return hosts of eight GPUs with a NIC each; ``flows`` flows of a pair share the given bandwidth."""
    entry = read_gpu_entry(gpu)
    return ClusterSpec(
        name="benchmark",
        nodes=tuple(NodeSpec(host=f"n{number}", gpu=entry.gpu, num_gpus=8) for number in range(len(gb_per_s))),
        intra_node_bytes_per_s=entry.intra_node_bytes_per_s,
        intra_node_latency_s=entry.intra_node_latency_s,
        inter_node_latency_s=12 * US,
        nics_per_node=8,
        link_matrices=(LinkMatrix(concurrent_flows=flows, bytes_per_s=gb_per_s * GB),),
    )


def shared_folder() -> Path:
    """Return the folder of shared data: from an environment variable, or beside the working folder."""
    return Path(os.environ.get(SHARED_VARIABLE) or Path.cwd().parent / "shared")


def _measured(cluster: str) -> FloatArray:
    place = MEASURED[cluster][0]
    path = shared_folder() / place
    if not path.exists():
        raise UnavailableError(f"{cluster}: {place} is not here; {SHARED_VARIABLE} names the folder that has it")
    return _read(path).copy()


@cache
def _read(path: Path) -> FloatArray:
    """Return the bandwidths in GB/s for the largest number of flows, from a folder of logs or from one matrix."""
    given: dict[str, Any] = {} if path.is_dir() else {"gpu": "a100-80gb", "gpus_per_node": 8}
    return import_links(path, **given).cluster.link_matrices[-1].bytes_per_s / GB
