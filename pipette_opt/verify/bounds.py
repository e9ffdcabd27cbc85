"""
Lower bounds on the time of every placement of a configuration: its compute alone, or the simulation with the fastest
links.

Compute alone costs microseconds and mostly suffices (:mod:`pipette_opt.costs.work`). The simulation gives every link
the speed of the fastest link. The simulated time never falls when a transfer takes longer, so the result bounds all
placements with the same rectangles of stages and replicas per host. Neither bound needs the solver.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.costs.unplaced import costs_of
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.filter import CheckedConfig
from pipette_opt.parallel import HostTile, ParallelConfig, Placement, host_tiles, tile_placement
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import ClusterSpec, Instance, LinkMatrix

AT_ONCE = 1000
"""Number of placements simulated together; they take some hundred MiB for a thousand GPUs. Chosen."""

FLOWS_PER_GPU = 2
"""Most concurrent flows between two hosts, per GPU of a host; all-to-alls of experts go both ways at once."""


def cheap_bounds_s(
    instance: Instance,
    checked: Sequence[CheckedConfig],
    capacity_bytes: IntArray,
    enough_s: float = math.inf,
    *,
    both_ways: bool = False,
) -> FloatArray:
    """
    Return a lower bound on the simulated time of all placements of each configuration, seconds, shape
    ``(len(checked),)``.

    Infinite if too few hosts have enough memory. The bound is compute alone if that suffices, and if no GPU type is the
    fastest in every stage.

    Parameters
    ----------
    capacity_bytes
        Memory that a stage may take on one GPU of each host, shape ``(num_nodes,)``.
    enough_s
        Time from which a bound need not be tighter, seconds.
    both_ways
        Give all links the speed of the host pair whose slower direction is fastest; pairs with one measured direction
        do not count. This bounds stages that wait for each other, but not rings, which use one direction.
    """
    work = WorkBounds(instance)
    bounds = np.array([work(fitting.config) for fitting in checked])
    of_kind: dict[int, list[tuple[int, HostTile]]] = {}
    for number in np.flatnonzero(bounds < enough_s).tolist():
        configuration = checked[number]
        kind = _fastest_kind(instance, configuration.config)
        if kind is None:
            continue
        bounds[number] = np.inf
        of_kind.setdefault(kind, []).extend(
            (number, tile) for tile in _with_room(instance, configuration, capacity_bytes)
        )
    for kind, packings in of_kind.items():
        ideal = replace(instance, cluster=ideal_cluster(instance.cluster, kind, both_ways=both_ways))
        for start in range(0, len(packings), AT_ONCE):
            batch = packings[start : start + AT_ONCE]
            times = estimate_many(ideal, [_on_first_hosts(checked[number].config, tile) for number, tile in batch])
            np.minimum.at(bounds, [number for number, _ in batch], times)
    return bounds


def num_without_room(instance: Instance, checked: Sequence[CheckedConfig], capacity_bytes: IntArray) -> int:
    """Return the number of configurations for which too few hosts have enough memory."""
    return sum(next(_with_room(instance, fitting, capacity_bytes), None) is None for fitting in checked)


def fastest_placement_s(
    instance: Instance, fitting: CheckedConfig, capacity_bytes: IntArray, most: int
) -> tuple[float, int] | None:
    """
    Return the simulated time of the fastest of all placements (infinite without any), and the number of placements.

    ``None`` if the number is above ``most``.
    """
    tiles = list(_with_room(instance, fitting, capacity_bytes))
    cells = [math.prod(tile.node_grid(fitting.config)) for tile in tiles]
    count = sum(math.perm(instance.cluster.num_nodes, size) for size in cells)
    if count > most:
        return None
    placed = [
        (fitting.config, placement)
        for tile in tiles
        for placement in _placements(instance, fitting, tile, capacity_bytes)
    ]
    parts = (placed[start : start + AT_ONCE] for start in range(0, len(placed), AT_ONCE))
    return min((float(estimate_many(instance, part).min()) for part in parts), default=math.inf), count


def _placements(
    instance: Instance, fitting: CheckedConfig, tile: HostTile, capacity_bytes: IntArray
) -> Iterator[Placement]:
    """Yield every placement on hosts with enough memory, for one rectangle of stages and replicas per host."""
    grid = tile.node_grid(fitting.config)
    need = np.repeat(fitting.need_bytes.reshape(grid[0], -1).max(axis=1), math.prod(grid[1:]))
    for hosts in permutations(range(instance.cluster.num_nodes), len(need)):
        nodes = np.array(hosts)
        if (capacity_bytes[nodes] >= need).all():
            yield tile_placement(fitting.config, tile, nodes.reshape(grid))


def ideal_cluster(cluster: ClusterSpec, kind: int, *, both_ways: bool) -> ClusterSpec:
    """Return the cluster with all GPUs of one type, and all links as fast as the fastest for each number of flows."""
    gpu, size = cluster.gpu_kinds[kind], (cluster.num_nodes, cluster.num_nodes)
    nodes = tuple(replace(node, gpu=gpu) for node in cluster.nodes)
    if cluster.num_nodes == 1:
        return replace(cluster, nodes=nodes)
    matrices = []
    for num_flows in range(1, FLOWS_PER_GPU * cluster.gpus_per_node + 1):
        rates = cluster.pair_bytes_per_s(num_flows)
        fastest = float(np.nanmax(np.minimum(rates, rates.T) if both_ways else rates, initial=0.0))
        if fastest > 0.0:
            matrices.append(LinkMatrix(concurrent_flows=num_flows, bytes_per_s=np.full(size, fastest)))
    # The fastest links already include the cap of a host.
    return replace(cluster.with_best_links(tuple(matrices) or cluster.link_matrices), nodes=nodes)


def on_fastest_hosts(
    instance: Instance, fitting: CheckedConfig, capacity_bytes: IntArray
) -> tuple[int, tuple[ParallelConfig, Placement]]:
    """
    Return the GPU type that is fastest in every stage, and the configuration on the first hosts.

    The first type if none is the fastest. The rectangle of stages and replicas per host is the first that has room.
    """
    tiles = host_tiles(fitting.config, instance.cluster.gpus_per_node, instance.launcher)
    tile = next(_with_room(instance, fitting, capacity_bytes), None) or next(iter(tiles))
    return _fastest_kind(instance, fitting.config) or 0, _on_first_hosts(fitting.config, tile)


def _fastest_kind(instance: Instance, config: ParallelConfig) -> int | None:
    """Return the index of the GPU type that is fastest in every stage and chunk; ``None`` if there is none."""
    if len(instance.cluster.gpu_kinds) == 1:
        return 0
    compute = costs_of(instance, config).compute
    work = np.stack([compute.forward_s, compute.backward_s])  # (2, kinds, ...)
    least = (work == work.min(axis=1, keepdims=True)).all(axis=tuple(axis for axis in range(work.ndim) if axis != 1))
    return int(least.argmax()) if least.any() else None


def _with_room(instance: Instance, fitting: CheckedConfig, capacity_bytes: IntArray) -> Iterator[HostTile]:
    """
    Yield the rectangles of stages and replicas per host for which enough hosts have enough memory.

    Stages that need the most memory take hosts first.
    """
    for tile in host_tiles(fitting.config, instance.cluster.gpus_per_node, instance.launcher):
        rows, *columns = tile.node_grid(fitting.config)
        need = np.sort(fitting.need_bytes.reshape(rows, -1).max(axis=1))[::-1]
        hosts = (capacity_bytes[None] >= need[:, None]).sum(axis=1)
        if (hosts >= math.prod(columns) * np.arange(1, rows + 1)).all():
            yield tile


def _on_first_hosts(config: ParallelConfig, tile: HostTile) -> tuple[ParallelConfig, Placement]:
    """Return a configuration with its placement on the first hosts; any hosts will do, as all are equal."""
    grid = tile.node_grid(config)
    return config, tile_placement(config, tile, np.arange(math.prod(grid)).reshape(grid))
