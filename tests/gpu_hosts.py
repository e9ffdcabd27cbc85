"""Clusters whose links of single GPUs are known, for tests."""

import numpy as np
from factories import make_cluster

from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import GB
from pipette_opt.specs import ClusterSpec, LinkMatrix
from pipette_opt.specs.gpu_links import GpuLinks, best_pairs


def paired_host(pairs: list[tuple[int, int]], gpus: int, fast: float = 50.0, slow: float = 10.0) -> FloatArray:
    """A host with NVLink between some pairs of its GPUs and PCIe between the others, bytes per second."""
    inside = np.full((gpus, gpus), slow)
    for a, b in pairs:
        inside[a, b] = inside[b, a] = fast
    return inside * GB


def rails(num_hosts: int, gpus: int, same: float = 20.0, other: float = 5.0) -> FloatArray:
    """Links between hosts that are fast between equal slots."""
    pairs = np.where(np.eye(gpus, dtype=bool), same, other) * GB
    return np.tile(pairs[None, :, None, :], (num_hosts, 1, num_hosts, 1))


def gpu_cluster(
    inside: FloatArray,
    between: FloatArray | None = None,
    nics: tuple[int, ...] | None = None,
    link: float = 10.0,
    **options: object,
) -> ClusterSpec:
    """Hosts with ``inside``, shape ``(num_hosts, gpus, gpus)``, all in one kind of GPU."""
    num_hosts, gpus = inside.shape[:2]
    nic_of_slot = np.arange(gpus) if nics is None else np.array(nics)
    values = np.full((num_hosts, num_hosts), link * GB) if between is None else best_pairs(between)
    matrices = (LinkMatrix(concurrent_flows=1, bytes_per_s=values),) if num_hosts > 1 else ()
    return make_cluster(
        num_hosts,
        gpus=gpus,
        link_matrices=matrices,
        nics_per_node=int(nic_of_slot.max()) + 1,
        intra_node_bytes_per_s=float(inside[inside > 0].min()),
        gpu_links=GpuLinks(inside=inside, between=between, nic_of_slot=nic_of_slot),
        **options,
    )


def random_gpu_cluster(seed: int, num_hosts: int = 2, gpus: int = 4) -> ClusterSpec:
    """Every link differs, inside hosts and between them; two GPUs share a NIC in every other cluster."""
    rng = np.random.default_rng(seed)
    inside = rng.uniform(5.0, 50.0, (num_hosts, gpus, gpus)) * GB
    between = rng.uniform(1.0, 20.0, (num_hosts, gpus, num_hosts, gpus)) * GB
    return gpu_cluster(inside, between, tuple(range(gpus)) if seed % 2 else tuple(np.arange(gpus) // 2))
