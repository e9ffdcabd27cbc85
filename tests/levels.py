"""Clusters with NVLink domains, for tests of every part."""

import numpy as np
from factories import make_cluster

from pipette_opt.base.units import GB
from pipette_opt.specs import ClusterSpec
from pipette_opt.specs.levels import Level


def domain(of_node: list[int], gb_per_s: float = 200.0, latency_s: float = 2e-6) -> Level:
    """An NVLink domain of each host, with the links that hosts have inside by default."""
    return Level(
        name="nvlink-domain",
        group_of_node=np.array(of_node),
        bytes_per_s=gb_per_s * GB,
        latency_s=latency_s,
        scale_up=True,
    )


def in_domains(of_node: list[int], *, gpus: int = 2, **options: object) -> ClusterSpec:
    """Hosts in NVLink domains, with links of 20 GB/s between these."""
    return make_cluster(
        len(of_node),
        gpus=gpus,
        nics_per_node=gpus,
        intra_node_latency_s=2e-6,
        inter_node_latency_s=9e-6,
        links_measured=False,
        levels=(domain(of_node),),
        **options,  # type: ignore[arg-type]
    )


def as_large_hosts(num_domains: int, hosts: int, gpus: int) -> ClusterSpec:
    """The domains as one host each: what NCCL makes of them."""
    return make_cluster(
        num_domains,
        gpus=hosts * gpus,
        nics_per_node=hosts * gpus,
        intra_node_latency_s=2e-6,
        inter_node_latency_s=9e-6,
        links_measured=False,
    )
