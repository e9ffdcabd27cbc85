"""
Branch and bound over the hosts of a grid, with the simulator as the bound of partial placements.

Relaxations in integers cannot express every time. All-to-alls depend on all links of a group together, ZeRO 2 and 3
hide collectives in every micro-batch, and compute beside collectives depends on the host. The simulator can, and no
operation starts later when a link or a GPU becomes faster. So a partial placement is bounded by a simulation in which
each open cell has an ideal host: as near to every host as the nearest open host, and as fast as the fastest one.

The partial placement with the least bound is split next, so the least bound holds for all placements. There are two
ways to split: by the host of the next cell, or by the cell of the slowest open host. Both are simulated, and the one
that leaves less to search is kept. Two symmetries shorten the search. Only the first of interchangeable hosts is tried.
Blocks of columns can be rotated, so the first block has the slowest host.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import factorial, isfinite, lcm, perm, prod
from operator import itemgetter

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray
from pipette_opt.costs.experts import coupled_replicas
from pipette_opt.costs.placed import KnownCosts, kinds_in_use
from pipette_opt.costs.unplaced import Costs, Kinds, costs_of, least_costs
from pipette_opt.parallel import ParallelConfig, Placement, tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.solutions import flow_counts
from pipette_opt.specs import ClusterSpec, Instance, LinkMatrix

AT_ONCE = 256
"""Least number of placements simulated together, if so many are open. Chosen."""

MAX_OPEN = 300_000
"""Number of open partial placements at which the search of a candidate ends, which limits its memory. Chosen."""

MAX_WITHOUT_BOUND = 50_000
"""Largest number of placements that are all simulated where partial ones have no bound: some seconds. Chosen."""

OPEN = -1
"""Host of an open cell."""

_Nodes = tuple[int, ...]
"""Host of each cell, or ``OPEN``."""

_Child = tuple[_Nodes, int]
"""Hosts of a partial placement; bits of the hosts that it leaves unused."""

_Partial = tuple[float, int, int, _Nodes, int]
"""Bound in seconds, number of open cells, number in order of discovery; hosts and unused hosts as in ``_Child``."""


class HostTree:
    """
    Open partial placements of a candidate configuration.

    Attributes
    ----------
    best
        Hosts and seconds of the fastest complete placement simulated so far; ``None`` before the first.
    simulated
        Number of complete and partial placements simulated so far.
    """

    def __init__(self, instance: Instance, data: ProblemData, candidate: CandidateData) -> None:
        self.instance, self.data, self.candidate = instance, data, candidate
        self.best: tuple[IntArray, float] | None = None
        self.simulated = 0
        cells, grid = candidate.num_cells, candidate.grid
        self._whole = tile_placement(candidate.config, candidate.tile, np.arange(cells).reshape(grid))
        block = _columns_of_a_block(instance, candidate)
        self._order = _cells_in_order(grid, block).tolist()
        self._first_block = self._order[: grid[0] * block * grid[2]]
        self._hosts = _slowest_first(instance, candidate).tolist()
        self._allowed = data.allowed(candidate).repeat(cells // grid[0], axis=0)
        self._left_out_s, self._count = float("inf"), 0
        self._heap: list[_Partial] = [(0.0, cells, 0, (OPEN,) * cells, 0)]

    @property
    def bound_s(self) -> float:
        """Lower bound on the simulated time of every placement, seconds; infinite without a placement."""
        return min(self._left_out_s, self._heap[0][0] if self._heap else float("inf"))

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left that could raise the bound, or too many placements are open."""
        if not self._heap or len(self._heap) >= MAX_OPEN or not self.is_supported:
            return True
        bound_s, num_open, *_ = self._heap[0]
        return num_open == 0 or bound_s > self._left_out_s

    def go_on(self, to_beat_s: float, clock: Clock, most: int) -> None:
        """Split placements until none can be faster than ``to_beat_s``, ``most`` were simulated, or time is over."""
        until = self.simulated + most
        while not self.is_done and self.bound_s < to_beat_s and self.simulated < until and not clock.is_over:
            self._split_least(to_beat_s)

    def _split_least(self, to_beat_s: float) -> None:
        """Split the partial placements with the least bounds, and keep the parts that may beat ``to_beat_s``."""
        parents, splits = list[_Partial](), list[tuple[int, list[_Child]]]()
        number = 0
        while self._heap and self._heap[0][1] > 0 and self._heap[0][0] < to_beat_s and number < AT_ONCE:
            splits += [(len(parents), split) for split in self._splits(self._heap[0])]
            parents.append(heapq.heappop(self._heap))
            number = sum(len(split) for _, split in splits)
        seconds = self._seconds(parents, [(family, child) for family, split in splits for child in split])
        ends = np.cumsum([len(split) for _, split in splits])[:-1]
        kept: dict[int, tuple[float, list[_Child], FloatArray]] = {}
        for (family, split), found in zip(splits, np.split(seconds, ends), strict=True):
            bounds = np.maximum(found, parents[family][0])
            known = bounds[np.isfinite(bounds)]
            most_s = to_beat_s if isfinite(to_beat_s) else known.max(initial=0.0)
            choice = float((np.maximum(most_s - known, 0.0) ** 2).sum()), split, bounds
            kept[family] = min(kept.get(family, choice), choice, key=itemgetter(0))
        for _, split, bounds in kept.values():
            for child, bound_s in zip(split, bounds.tolist(), strict=True):
                self._keep(child, bound_s, to_beat_s)

    def _keep(self, child: _Child, bound_s: float, to_beat_s: float) -> None:
        nodes, unused = child
        num_open = nodes.count(OPEN)
        if num_open == 0 and (self.best is None or bound_s < self.best[1]):
            self.best = np.array(nodes).reshape(self.candidate.grid), bound_s
        if bound_s >= to_beat_s:
            self._left_out_s = min(self._left_out_s, bound_s)
            return
        self._count += 1
        heapq.heappush(self._heap, (bound_s, num_open, self._count, nodes, unused))

    def _splits(self, partial: _Partial) -> list[list[_Child]]:
        """Return the ways to split a partial placement; each covers all its placements, up to symmetry."""
        *_, nodes, unused = partial
        free = [host for host in self._hosts if host not in nodes and not unused >> host & 1]
        cells = [cell for cell in self._order if nodes[cell] == OPEN]
        is_root = len(cells) == len(nodes)
        by_cell, without = list[_Child](), unused
        for host in free[: len(free) - len(cells) + 1]:  # the slowest host that is used
            into = self._first_block if is_root else cells
            by_cell += [(_filled(nodes, cell, host), without) for cell in into if self._allowed[cell, host]]
            without |= 1 << host
        alike = {self._twin[host]: host for host in reversed(free) if self._allowed[cells[0], host]}
        by_host = [(_filled(nodes, cells[0], host), unused) for host in alike.values()]
        if is_root:
            return [by_cell]
        return [by_host, by_cell] if self._has_ideal_hosts else [by_host]

    def _seconds(self, parents: list[_Partial], children: list[tuple[int, _Child]]) -> FloatArray:
        """
        Return the simulated time of each partial placement, seconds; 0 if its open cells can have no ideal hosts.

        ``children``: partial placements with the numbers of their parents.
        """
        cells, num_nodes = self.candidate.num_cells, self.data.num_nodes
        free = np.ones((len(parents), num_nodes), dtype=np.bool_)
        for of_parent, (*_, filled, unused) in zip(free, parents, strict=True):
            of_parent[[host for host in range(num_nodes) if host in filled or unused >> host & 1]] = False
        self.simulated += len(children)
        seconds = np.zeros(len(children))
        nodes = np.array([filled for _, (filled, _) in children], dtype=np.int64).reshape(-1, cells)
        ideal = num_nodes + np.array([family for family, _ in children])[:, None] * cells + np.arange(cells)
        priced = np.flatnonzero(self._has_ideal_hosts | (nodes != OPEN).all(axis=1))
        if not len(priced):
            return seconds
        instance = self._with_ideal_hosts(free) if self._has_ideal_hosts else self.instance
        config, hosts = self.candidate.config, np.where(nodes == OPEN, ideal, nodes)[priced]
        placed = [(config, replace(self._whole, node=of_cell[self._whole.node])) for of_cell in hosts]
        seconds[priced] = estimate_many(instance, placed, self._known_costs(instance, free, placed))
        return seconds

    def _known_costs(
        self, instance: Instance, free: BoolArray, placed: Sequence[tuple[ParallelConfig, Placement]]
    ) -> KnownCosts:
        """Return the costs of these placements; of those with ideal hosts, costs that no GPU type is below."""
        known: KnownCosts = {}
        number, bound = len(self.instance.cluster.gpu_kinds), self._costs(free)
        for config, placement in placed:
            kinds = kinds_in_use(instance, placement)
            if (config, kinds) in known:
                continue
            own = [kind for kind in kinds if kind < number]
            if len(own) == len(kinds):
                known[config, kinds] = self._costs_on(kinds)
            else:
                slowest_s = max(bound.compute.optimizer_s[own], default=0.0)
                known[config, kinds] = bound._replace(optimizer_s=max(bound.optimizer_s, float(slowest_s)))
        return known

    def _costs_on(self, kinds: Kinds) -> Costs:
        """Return the costs on given GPU types."""
        if kinds not in self._costs_of_kinds:
            self._costs_of_kinds[kinds] = costs_of(self.instance, self.candidate.config, kinds=kinds)
        return self._costs_of_kinds[kinds]

    @cached_property
    def is_supported(self) -> bool:
        """Return whether partial placements have bounds, or few enough placements differ to simulate them all."""
        hosts, classes = self.data.num_nodes, Counter(self._twin)
        different = factorial(hosts) // prod(map(factorial, classes.values()))
        return self._has_ideal_hosts or min(perm(hosts, self.candidate.num_cells), different) <= MAX_WITHOUT_BOUND

    @cached_property
    def _has_ideal_hosts(self) -> bool:
        """Return whether open cells can have ideal hosts: rings inside NVLink domains depend on all their hosts."""
        return self.instance.cluster.most_in_domain == 1 and self.instance.cluster.gpu_links is None

    @cached_property
    def _rates(self) -> dict[int, FloatArray]:
        """Bandwidths between hosts, bytes/s, by number of concurrent flows; NaN if unmeasured."""
        cluster = self.instance.cluster
        return {flows: cluster.pair_bytes_per_s(flows) for flows in flow_counts(self.instance, self.candidate)}

    @cached_property
    def _twin(self) -> list[int]:
        """First host that is interchangeable with each host."""
        cluster, data, twin = self.instance.cluster, self.data, list(range(self.data.num_nodes))
        apart, domain = ~np.eye(data.num_nodes, dtype=np.bool_), cluster.domain_of_node
        alone = np.bincount(domain)[domain] == 1
        properties = data.kind_of_node, data.capacity_mib, np.where(alone, -1, domain)
        tables = [*self._rates.values(), cluster.pair_latency_s]
        for host in range(data.num_nodes if cluster.gpu_links is None else 0):
            for other in range(host):
                swapped = np.arange(data.num_nodes)
                swapped[[host, other]] = other, host
                is_alike = all(each[host] == each[other] for each in properties)
                if is_alike and all(
                    np.array_equal(table[apart], table[np.ix_(swapped, swapped)][apart], equal_nan=True)
                    for table in tables
                ):
                    twin[host] = twin[other]
                    break
        return twin

    def _with_ideal_hosts(self, free: BoolArray) -> Instance:
        """
        Return the instance with ideal hosts, one for each cell and family.

        ``free``: mask of the hosts that the open cells of each family may have, shape ``(families, num_nodes)``.
        """
        cluster, cells, first = self.instance.cluster, self.candidate.num_cells, self.instance.cluster.nodes[0]
        ideal = []
        for family, kinds in enumerate(self._kinds(free)):
            gpu = first.gpu if len(cluster.gpu_kinds) == 1 else replace(first.gpu, name=f"fastest of {kinds}")
            ideal += [replace(first, host=f"{family}-{cell}", gpu=gpu) for cell in range(cells)]
        further = replace(
            cluster,
            nodes=(*cluster.nodes, *ideal),
            link_matrices=tuple(
                LinkMatrix(concurrent_flows=flows, bytes_per_s=_with_best(rates, free, cells))
                for flows, rates in self._rates.items()
            ),
            node_bytes_per_s=None,
            inter_node_latency_s=cluster.least_latency_s,
            known_latency_s=None if cluster.equally_far else -_with_best(-cluster.pair_latency_s, free, cells),
            levels=(),
        )
        return replace(self.instance, cluster=further)

    def _kinds(self, free: BoolArray) -> list[tuple[int, ...]]:
        """Return the GPU types of the free hosts of each family."""
        return [tuple(sorted(set(self.data.kind_of_node[mask].tolist()))) for mask in free]

    def _costs(self, free: BoolArray) -> Costs:
        """Return the costs of the configuration, with the fastest of each family's GPU types as a further type."""
        if len(self.instance.cluster.gpu_kinds) == 1:
            return self._own_costs
        rows = [list(kinds) for kinds in dict.fromkeys(self._kinds(free))]
        compute = self._own_costs.compute
        forward, backward = (
            np.concatenate([work_s, *(work_s[kinds].min(axis=0, keepdims=True) for kinds in rows)])
            for work_s in (compute.forward_s, compute.backward_s)
        )
        return self._own_costs._replace(compute=replace(compute, forward_s=forward, backward_s=backward))

    @cached_property
    def _costs_of_kinds(self) -> dict[Kinds, Costs]:
        return {}

    @cached_property
    def _own_costs(self) -> Costs:
        return least_costs(self.instance, self.candidate.config)


def _filled(nodes: _Nodes, cell: int, host: int) -> _Nodes:
    return (*nodes[:cell], host, *nodes[cell + 1 :])


def _with_best(table: FloatArray, free: BoolArray, cells: int) -> FloatArray:
    """
    Return a table of host pairs with rows and columns of ideal hosts; a larger entry is better, NaN is no link.

    An ideal host has the best entry of its family's free hosts, with every other host.
    """
    num_nodes, families = free.shape[1], len(free)
    known = np.where(np.isnan(table) | np.eye(num_nodes, dtype=np.bool_), -np.inf, table)
    best = np.full((num_nodes + families * cells,) * 2, -np.inf)
    best[:num_nodes, :num_nodes] = known
    for family, mask in enumerate(free):
        ideal = slice(num_nodes + family * cells, num_nodes + (family + 1) * cells)
        best[:num_nodes, ideal] = known[:, mask].max(axis=1, initial=-np.inf)[:, None]
        best[ideal, :num_nodes] = known[mask].max(axis=0, initial=-np.inf)
        best[ideal, ideal] = known[np.ix_(mask, mask)].max(initial=-np.inf)
    return np.where(np.isinf(best), np.nan, best)


def _columns_of_a_block(instance: Instance, candidate: CandidateData) -> int:
    """
    Return the least number of columns by which placements can be rotated without a change of their time.

    Replicas that exchange tokens stay together, and so do all replicas of several optimizer instances.
    """
    config, replicas = candidate.config, candidate.tile.replicas
    if config.num_distributed_optimizer_instances > 1:
        return candidate.grid[1]
    return lcm(coupled_replicas(instance.model, config), replicas) // replicas


def _cells_in_order(grid: tuple[int, int, int], block: int) -> IntArray:
    """
    Return the cells of the flattened grid in the order in which they are filled.

    Blocks of columns follow on both sides of the first (0, 1, last, 2, ...), rows follow one another inside a block.
    """
    rows, columns, width = grid
    cells = np.arange(rows * columns * width).reshape(rows, columns // block, block * width)
    blocks = np.arange(columns // block)
    near = np.argsort(np.minimum(blocks, len(blocks) - blocks), kind="stable")
    order: IntArray = cells[:, near].swapaxes(0, 1).ravel()
    return order


def _slowest_first(instance: Instance, candidate: CandidateData) -> IntArray:
    """Return the hosts by the compute of their GPUs, longest first; then by their second best link, slowest first."""
    cluster: ClusterSpec = instance.cluster
    work = (candidate.forward_ticks + candidate.backward_ticks).sum(axis=1)[cluster.kind_of_node]
    rates = np.zeros((cluster.num_nodes, 2))
    if cluster.num_nodes > 1:
        known = np.nan_to_num(cluster.pair_bytes_per_s(max(flow_counts(instance, candidate))), nan=0.0)
        rates = np.sort(np.minimum(known, known.T), axis=1)
    order: IntArray = np.lexsort((rates[:, -2], -work))
    return order
