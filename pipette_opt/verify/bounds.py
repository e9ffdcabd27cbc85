"""
Lower bounds on the time of every placement of a configuration: its compute alone, or the simulation with the fastest
links.

Compute alone costs microseconds and mostly suffices (:mod:`pipette_opt.costs.work`). The simulation gives every link
the speed of the fastest link, but groups of several hosts only what links among as many different hosts allow
(:class:`IdealLinks`). The simulated time never falls when a transfer takes longer, so the result bounds all placements
with the same rectangles of stages and replicas per host. Neither bound needs the solver.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import permutations

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, read_only
from pipette_opt.costs.least_links import LeastLinks, even_shapes
from pipette_opt.costs.placed import placed_batches
from pipette_opt.costs.placed_links import LeastExchange, PlacedExchange
from pipette_opt.costs.unplaced import costs_of
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.filter import CheckedConfig
from pipette_opt.parallel import (
    HostTile,
    ParallelConfig,
    Placement,
    host_tiles,
    microbatches_of,
    tile_placement,
)
from pipette_opt.simulate.many import estimate_many, simulate_batches
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
            placed = [_on_first_hosts(checked[number].config, tile) for number, tile in batch]
            microbatches = np.array([microbatches_of(instance.training, config) for config, _ in placed])
            batches = placed_batches(ideal, placed, links=partial(IdealLinks, instance.cluster))
            times = simulate_batches(batches, microbatches, instance.p2p)
            np.minimum.at(bounds, [number for number, _ in batch], times)
    return bounds


class IdealLinks(LeastLinks):
    """
    Links of an ideal cluster that knows how many hosts a group has.

    Groups of ``k`` hosts of one placement have ``k`` different hosts. So no ring's slowest hop exceeds the largest rate
    at which links, in their faster direction, connect ``k`` hosts. In an all-to-all, each host sends to ``k - 1`` hosts
    and receives from them; the busiest of the ``k`` hosts takes no less than the ``k``-th fastest host over its own
    best links. NVLink domains are those of :class:`LeastLinks`.
    """

    def hop_rates(self, source: IntArray, target: IntArray, flows: IntArray, num_hosts: IntArray) -> FloatArray:
        """Return the bytes per second of a flow over each hop, at most what connects the hosts of its ring."""
        rates = super().hop_rates(source, target, flows, num_hosts)
        if self.given.most_in_domain > 1:
            return rates
        for count, hosts in _pairs(flows, np.broadcast_to(num_hosts[..., None], flows.shape)):
            most = connecting_bytes_per_s(self.given, count)[hosts] / count
            if most > 0.0:
                these = (flows == count) & (num_hosts[..., None] == hosts)
                rates[these] = np.minimum(rates[these], most)
        return rates

    def exchange(
        self, groups: IntArray, who: str, shares: FloatArray, *, hands_on: bool = False
    ) -> PlacedExchange | LeastExchange:
        """Return all-to-alls in which the busiest host takes at least as long as over its own best links."""
        exchange = super().exchange(groups, who, shares, hands_on=hands_on)
        if not isinstance(exchange, PlacedExchange):
            return exchange
        alike, place = np.unique(groups.reshape(len(groups), -1), axis=0, return_inverse=True)
        slower = np.stack([self._slowdown(hosts.reshape(groups.shape[1:])) for hosts in alike])
        return exchange._replace(load_s_per_byte=exchange.load_s_per_byte * slower[place.reshape(-1)])

    def _slowdown(self, groups: IntArray) -> FloatArray:
        """
        Return by which factor the fastest links understate the load of the all-to-alls of a placement, 1 or more.

        Members must be even (:func:`even_shapes`); the factors of other placements are 1.

        Parameters
        ----------
        groups
            Hosts of the members, shape ``(groups, members)``. The factors have shape ``(groups,)``.
        """
        found = np.ones(len(groups))
        for group, (hosts, _, ranks) in enumerate(even_shapes(groups).tolist()):
            if hosts > 1:
                given_s, ideal_s = (
                    busiest_host_s_per_byte(cluster, ranks)[hosts] for cluster in (self.given, self.instance.cluster)
                )
                found[group] = given_s / ideal_s if given_s < np.inf else 1.0
        return found


def _pairs(flows: IntArray, num_hosts: IntArray) -> list[tuple[int, int]]:
    """Return the distinct pairs of a number of flows and a number of hosts, for hops that exist."""
    hops = flows > 0
    return list(map(tuple, np.unique(np.stack([flows[hops], num_hosts[hops]], axis=1), axis=0).tolist()))


@lru_cache(maxsize=1024)
def connecting_bytes_per_s(cluster: ClusterSpec, num_flows: int) -> FloatArray:
    """
    Return the largest rate at which links connect each number of hosts, bytes/s, shape ``(num_nodes + 1,)``; 0 if none.

    A link counts in its faster direction, with ``num_flows`` flows together. From each host in turn, the connected
    hosts grow by the fastest link to a further host; so the slowest link so far is the largest rate that connects as
    many.
    """
    rates = np.nan_to_num(cluster.pair_bytes_per_s(num_flows))
    links = np.maximum(rates, rates.T)
    starts, found = np.arange(len(links)), np.zeros(len(links) + 1)
    reached, ways, slowest = np.eye(len(links), dtype=np.bool_), links.copy(), np.full(len(links), np.inf)
    for size in range(2, len(links) + 1):
        further = np.where(reached, -1.0, ways).argmax(axis=1)
        slowest = np.minimum(slowest, ways[starts, further])
        reached[starts, further], ways = True, np.maximum(ways, links[further])
        found[size] = slowest.max()
    return read_only(found, np.float64)


@lru_cache(maxsize=1024)
def busiest_host_s_per_byte(cluster: ClusterSpec, num_flows: int) -> FloatArray:
    """
    Return the least seconds in which the busiest of each number of hosts sends a byte to each other host of them.

    Shape ``(num_nodes + 1,)``; it receives one from each at the same time.
    """
    rates = cluster.pair_bytes_per_s(num_flows)
    apart = np.where(np.eye(len(rates), dtype=np.bool_) | np.isnan(rates), np.inf, 1.0 / rates)
    sent, received = (np.cumsum(np.sort(way, axis=1), axis=1) for way in (apart, apart.T))
    loads = np.sort(np.maximum(sent, received), axis=0)  # of k + 1 hosts in column k - 1
    found = np.zeros(len(rates) + 1)
    found[2:] = loads[np.arange(1, len(rates)), np.arange(len(rates) - 1)]
    return read_only(found, np.float64)


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
