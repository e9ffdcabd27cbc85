"""Placement: the GPU of each rank."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import IntArray, Launcher, RankOrder, read_only
from pipette_opt.parallel.config import ParallelConfig
from pipette_opt.parallel.ranks import RankGrid


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """
    GPU of every rank.

    Parameters
    ----------
    order
        Rank order of the launched job.
    node
        Host index of each rank, shape ``(world_size,)``.
    local_rank
        Index of the rank's GPU in its host, shape ``(world_size,)``.
    """

    order: RankOrder
    node: IntArray
    local_rank: IntArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "node", read_only(self.node, np.int64))
        object.__setattr__(self, "local_rank", read_only(self.local_rank, np.int64))
        if self.node.shape != self.local_rank.shape or self.node.ndim != 1:
            raise ValueError(
                f"node and local_rank must be equally long, got shapes {self.node.shape} and {self.local_rank.shape}."
            )

    @property
    def nodes_used(self) -> IntArray:
        """Indices of hosts with at least one rank, ascending."""
        return np.unique(self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTile:
    """
    Part of the model on each host: a rectangle of the (stage, replica) grid, or a part of one stage of one replica.

    The tensor- and context-parallel ranks of one stage of one replica form a *slot*.

    Parameters
    ----------
    stages
        Number of consecutive pipeline stages on the host.
    replicas
        Number of consecutive data-parallel replicas on the host.
    nodes_per_slot
        Hosts that one slot spans; above 1 only if ``stages == replicas == 1``.
    contiguous
        Whether each host's ranks are consecutive in that order, as torchrun needs.
    context_nodes
        Equal parts into which the hosts of a slot divide its context-parallel groups; divides ``nodes_per_slot``.
    """

    stages: int
    replicas: int
    nodes_per_slot: int
    order: RankOrder
    contiguous: bool
    context_nodes: int = 1

    @property
    def tensor_nodes(self) -> int:
        """Number of hosts that one tensor-parallel group spans."""
        return self.nodes_per_slot // self.context_nodes

    def node_grid(self, config: ParallelConfig) -> tuple[int, int, int]:
        """Return the shape of the grid of hosts: (pipeline, data, hosts per slot)."""
        return (
            config.pipeline_model_parallel_size // self.stages,
            config.data_parallel_size // self.replicas,
            self.nodes_per_slot,
        )


def gpus_of_a_host(config: ParallelConfig, tile: HostTile) -> int:
    """Return the number of GPUs used on each host."""
    slot = config.tensor_model_parallel_size * config.context_parallel_size // tile.nodes_per_slot
    return slot * tile.stages * tile.replicas


def ranks_of_a_host(config: ParallelConfig, tile: HostTile) -> int:
    """Return the ranks of one stage on each host that holds a part of that stage."""
    return gpus_of_a_host(config, tile) // tile.stages


def ring_members(config: ParallelConfig, tile: HostTile) -> int:
    """Return the ranks of one data-parallel group (context included) on each host that holds any of them."""
    return tile.replicas * config.context_parallel_size // tile.context_nodes


def host_tiles(config: ParallelConfig, gpus_per_node: int, launcher: Launcher) -> Iterator[HostTile]:
    """
    Yield every way to fill hosts with equal rectangles of the (stage, replica) grid, or to spread slots over whole
    hosts.

    A slot larger than a host takes whole hosts, each with whole tensor-parallel groups or a part of one. Nothing is
    yielded if the ranks do not fill whole hosts (except if they fit on one host), or if the launcher cannot express any
    of the ways. Whole hosts can always be filled if the tensor-parallel size divides the GPUs of a host: each prime
    factor of the number of slots divides ``pp * dp``.
    """
    slot = config.tensor_model_parallel_size * config.context_parallel_size
    pp, dp = config.pipeline_model_parallel_size, config.data_parallel_size
    order: RankOrder
    if slot > gpus_per_node:
        tp = config.tensor_model_parallel_size
        if slot % gpus_per_node == 0 and 0 in (tp % gpus_per_node, gpus_per_node % tp):
            nodes = slot // gpus_per_node
            yield HostTile(
                stages=1,
                replicas=1,
                nodes_per_slot=nodes,
                order="tp-cp-ep-dp-pp",
                contiguous=True,
                context_nodes=nodes // max(tp // gpus_per_node, 1),
            )
        return
    if gpus_per_node % slot and config.world_size > gpus_per_node:
        return
    slots = min(gpus_per_node // slot, pp * dp)
    # With data parallelism last, megatron-core numbers the ranks of experts alike only if these fill the slots.
    has_experts = config.expert_model_parallel_size > 1 or config.expert_tensor_parallel_size is not None
    orders_agree = not has_experts or pp == 1 or config.expert_tensor_size * config.expert_model_parallel_size == slot
    for stages in range(1, slots + 1):
        if slots % stages or pp % stages or dp % (slots // stages):
            continue
        replicas = slots // stages
        dp_first = stages == 1 or replicas == dp
        pp_first = (replicas == 1 or stages == pp) and orders_agree
        order = "tp-cp-ep-dp-pp" if dp_first or not pp_first else "tp-cp-ep-pp-dp"
        contiguous = dp_first or pp_first
        if launcher in ("slurm", "mpi") or (dp_first if launcher == "replicas-first" else contiguous):
            yield HostTile(
                stages=stages,
                replicas=replicas,
                nodes_per_slot=1,
                order=order,
                contiguous=contiguous,
            )


def tile_placement(config: ParallelConfig, tile: HostTile, nodes: IntArray, slots: IntArray | None = None) -> Placement:
    """
    Return the placement of all ranks for a grid of hosts.

    Parameters
    ----------
    nodes
        Host index of each cell of the grid, shape ``tile.node_grid(config)``.
    slots
        GPUs of each cell's host in rank order, shape ``(*nodes.shape, gpus_of_a_host(config, tile))``; 0, 1, ... by
        default.
    """
    if nodes.shape != tile.node_grid(config):
        raise ValueError(f"nodes must have shape {tile.node_grid(config)}, got {nodes.shape}.")
    grid = RankGrid.of(config, tile.order)
    ranks = grid.ranks()
    pp, dp, cp, tp = np.indices(ranks.shape)
    within_slot = cp * grid.tp + tp
    node_of = np.empty(grid.world_size, dtype=np.int64)
    per_node = grid.tp * grid.cp // tile.nodes_per_slot
    node_of[ranks.ravel()] = nodes[pp // tile.stages, dp // tile.replicas, within_slot // per_node].ravel()
    local = _number_within_node(node_of)
    if slots is not None:
        order = np.empty((int(nodes.max()) + 1, slots.shape[-1]), dtype=np.int64)
        order[nodes.ravel()] = slots.reshape(nodes.size, -1)
        local = order[node_of, local]
    return Placement(order=tile.order, node=node_of, local_rank=local)


def hosts_by_rank(tile: HostTile, nodes: IntArray) -> IntArray:
    """Return the hosts of a grid in the order of their first ranks, shape ``(nodes.size,)``."""
    return (nodes.transpose(1, 0, 2) if tile.order == "tp-cp-ep-pp-dp" else nodes).ravel()


def grid_by_rank(config: ParallelConfig, tile: HostTile, hosts: IntArray) -> IntArray:
    """Return the grid whose hosts are ``hosts`` in the order of their first ranks: inverse of :func:`hosts_by_rank`."""
    rows, columns, per_slot = tile.node_grid(config)
    if tile.order == "tp-cp-ep-pp-dp":
        return hosts.reshape(columns, rows, per_slot).transpose(1, 0, 2)
    return hosts.reshape(rows, columns, per_slot)


def identity_placement(config: ParallelConfig, gpus_per_node: int, nodes: IntArray, order: RankOrder) -> Placement:
    """Return the placement of a launch without a rank map: ranks in order fill the given hosts one after the other."""
    needed = -(-config.world_size // gpus_per_node)
    if len(nodes) < needed:
        raise ValueError(f"{config.world_size} ranks need {needed} hosts of {gpus_per_node} GPUs, got {len(nodes)}.")
    node_of = np.asarray(nodes, dtype=np.int64)[np.arange(config.world_size) // gpus_per_node]
    return Placement(order=order, node=node_of, local_rank=_number_within_node(node_of))


def _number_within_node(node_of: IntArray) -> IntArray:
    """Return the position of each rank among the ranks of its host, in rank order, shape ``(world_size,)``."""
    local = np.empty_like(node_of)
    for node in np.unique(node_of):
        members = np.flatnonzero(node_of == node)
        local[members] = np.arange(len(members))
    return local
