"""
Rings of gradients and parameters over the ranks of a host tile, priced over any links.

The ring of dense parameters goes over all replicas of a stage. Routed experts have rings of their own, over the ranks
that hold equal experts.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import ceil_div
from pipette_opt.costs.collectives import RingTraffic
from pipette_opt.costs.links import BestLinks, Links, RingShape
from pipette_opt.costs.stage import expert_block
from pipette_opt.parallel import HostTile, ParallelConfig, gpus_of_a_host, ranks_of_a_host, ring_members
from pipette_opt.specs import Instance


def dense_shape(config: ParallelConfig, tile: HostTile) -> RingShape:
    """Return the shape of the ring over all replicas of a stage."""
    members, replicas = ring_members(config, tile), config.data_parallel_size * config.context_parallel_size
    return RingShape(members, ceil_div(replicas, members), gpus_of_a_host(config, tile))


def expert_shape(config: ParallelConfig, tile: HostTile) -> RingShape | None:
    """
    Return the shape of the ring over the ranks that hold equal experts.

    A block is the ranks that hold every expert once. If blocks span hosts, the ring has one rank on a host. ``None`` if
    hosts hold no whole blocks and blocks no whole hosts.
    """
    ranks, block = ranks_of_a_host(config, tile), expert_block(config)
    if ranks % block and block % ranks:
        return None
    members = max(ranks // block, 1)
    return RingShape(members, ceil_div(config.expert_data_parallel_size, members), gpus_of_a_host(config, tile))


class Reductions(NamedTuple):
    """
    Rings of gradients or parameters of a configuration on a host tile (part of the model on one host).

    ``num_rings``: number of such rings that run concurrently over disjoint hosts, as for :class:`RingShape`.
    """

    instance: Instance
    config: ParallelConfig
    tile: HostTile
    links: Links
    num_rings: int = 1

    def dense_s(self, traffic: RingTraffic) -> FloatArray:
        """Return the time of the ring over all replicas, seconds; its shape is that of the links."""
        shape = dense_shape(self.config, self.tile)._replace(num_rings=self.num_rings)
        return self.links.ring_s(shape, traffic, self.instance.allreduce)

    def experts_s(self, traffic: RingTraffic) -> FloatArray:
        """
        Return the time of the ring over ranks with equal experts, seconds.

        If hosts hold whole blocks (ranks that hold every expert once), it has the hosts of the dense ring, so its shape
        is that of the links. Otherwise the best links count.
        """
        shape = expert_shape(self.config, self.tile)
        if shape is None or self.config.expert_data_parallel_size == 1 or not traffic.num_steps:
            return np.zeros(1)
        if ranks_of_a_host(self.config, self.tile) % expert_block(self.config) == 0:
            num_hosts = dense_shape(self.config, self.tile).num_hosts
            shape = shape._replace(num_hosts=num_hosts, num_rings=self.num_rings)
            return self.links.ring_s(shape, traffic, self.instance.allreduce)
        best = BestLinks(self.instance.cluster, self.instance.stack)
        return best.ring_s(shape, traffic, self.instance.allreduce)
