"""
Choice of the GPU (slot) of each rank inside its host, if links of single GPUs are known.

The search before works on :meth:`~pipette_opt.specs.ClusterSpec.relaxed` hosts, where every group has the best slots
possible for its size. So its bounds are below every order of slots. This module gets the hosts of a solution and gives
each an order: local rank i runs on slot ``order[i]``.

On small hosts, all orders are scored by their busiest slots. The best orders are simulated, equal on all hosts, and
with stages reversed on every other row of hosts. Reversed, a stage and the next one on another host share a rail. From
the best few, a local search swaps two slots: on all hosts, on a row or a column of the grid of hosts, or on one host.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.costs.unplaced import costs_of
from pipette_opt.parallel import HostTile, ParallelConfig, RankGrid, microbatches_of, tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import SLOTS
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.solutions import SimulatedSolution, best_first
from pipette_opt.simulate.swap_search import has_room
from pipette_opt.specs import Instance
from pipette_opt.specs.gpu_links import GpuLinks

MAX_SCORED = 8
"""Every order is scored on hosts with at most this many GPUs: 40,320 orders; nine GPUs have 362,880. Chosen."""

MAX_STARTS = 48
"""Number of orders with the best scores that are simulated. Chosen."""

MAX_DESCENTS = 4
"""Number of simulated orders from which the local search starts. Chosen."""

MAX_REORDERED = 4
"""A step tries all 24 orders on hosts with at most this many GPUs; on larger hosts, it swaps two slots. Chosen."""

MAX_CANDIDATES = 512
"""Largest number of candidates (configurations with a host tile) that get slots. Chosen."""

MAX_IMPROVED = 4
"""Number of solutions that the local search improves further. Chosen."""

FIRST_PASS = 0.5
"""Fraction of the time for the first orders of all candidate configurations. Chosen."""

IMPROVED = 1e-9
"""Least relative gain of a swap that counts as an improvement; above rounding errors. Chosen."""


def search_share(instance: Instance) -> float:
    """Return the fraction of the time limit left for the search on relaxed hosts; 1 if hosts are not relaxed."""
    return 1.0 if instance.cluster.gpu_links is None else 1.0 - SLOTS.share


def with_slots(
    instance: Instance,
    data: ProblemData,
    simulated: Sequence[SimulatedSolution],
    num_others: int,
    clock: Clock,
    also: Sequence[SimulatedSolution] = (),
) -> list[SimulatedSolution]:
    """
    Return solutions with slots, simulated with these.

    The fastest plan on relaxed hosts need not be the fastest with slots. So every candidate configuration of ``data``
    with a relaxed time below the best time with slots gets slots, most promising first. Local search then improves the
    best of them.

    Parameters
    ----------
    instance
        Instance with the links of single GPUs.
    data
        Candidates. Those without a simulated solution are placed on the hosts of the best solution, or on hosts in
        listed order.
    num_others
        Number of further solutions that always get slots.
    clock
        Time limit; the first solution is simulated in a few orders at least.
    also
        Solutions that get slots whatever their relaxed time.
    """
    first_pass, none = clock.slice(FIRST_PASS), clock.after(0.0)
    found: list[SimulatedSolution] = []
    fastest_s, left_over = float("inf"), list(also)
    for solution in _relaxed_candidates(instance, data, simulated):
        is_enough = first_pass.is_over or solution.estimate.iteration_time_s >= fastest_s
        if found and is_enough and len(found) > num_others:
            break
        found.append(assign_slots(instance, solution, none))
        left_over = [other for other in left_over if not _is_placed_alike(other, found[-1])]
        fastest_s = min(fastest_s, found[-1].estimate.iteration_time_s)
    found += [assign_slots(instance, other, none) for other in left_over]
    found.sort(key=attrgetter("estimate.iteration_time_s"))
    for place in range(min(MAX_IMPROVED, len(found))):
        found[place] = assign_slots(instance, found[place], clock.slice(0.5))
    return found


def _is_placed_alike(plan: SimulatedSolution, other: SimulatedSolution) -> bool:
    return plan.candidate.config == other.candidate.config and np.array_equal(plan.nodes, other.nodes)


def _relaxed_candidates(
    instance: Instance, data: ProblemData, simulated: Sequence[SimulatedSolution]
) -> list[SimulatedSolution]:
    """Return each candidate configuration once, on its best known hosts, with its relaxed time; fastest first."""
    best_of: dict[tuple[ParallelConfig, HostTile], SimulatedSolution] = {}
    for solution in sorted(simulated, key=lambda solution: -solution.estimate.iteration_time_s):
        best_of[solution.candidate.config, solution.candidate.tile] = solution
    relaxed = replace(instance, cluster=instance.cluster.relaxed())
    hosts = best_first(simulated)[0].nodes.ravel()
    others = []
    for candidate in data.candidates[:MAX_CANDIDATES]:
        if (candidate.config, candidate.tile) not in best_of:
            like_best = hosts if candidate.num_cells == len(hosts) else np.arange(candidate.num_cells)
            nodes = like_best.reshape(candidate.grid)
            if has_room(data, candidate, nodes):
                others.append((candidate, nodes))
    placed = [(other.config, tile_placement(other.config, other.tile, nodes)) for other, nodes in others]
    times = estimate_many(relaxed, placed) if placed else np.zeros(0)
    reference = simulated[0].estimate
    rest = [
        SimulatedSolution(
            candidate=candidate,
            nodes=nodes,
            estimate=replace(reference, iteration_time_s=seconds),
        )
        for (candidate, nodes), seconds in zip(others, times.tolist(), strict=True)
        if seconds < float("inf")
    ]
    return sorted((*best_of.values(), *rest), key=attrgetter("estimate.iteration_time_s"))


def assign_slots(instance: Instance, solution: SimulatedSolution, clock: Clock) -> SimulatedSolution:
    """
    Return the solution on its hosts with the fastest order of slots found in time.

    If no time is left, it is the fastest of the first orders.
    """

    def times_s(orders: list[IntArray]) -> FloatArray:
        """Return the simulated seconds of orders, each of shape ``(*nodes.shape, gpus)``."""
        placed = [(config, tile_placement(config, solution.candidate.tile, solution.nodes, slots)) for slots in orders]
        return estimate_many(instance, placed)

    config, links = solution.candidate.config, instance.cluster.gpu_links
    assert links is not None
    used = config.world_size // solution.nodes.size
    starts = [
        np.broadcast_to(np.arange(used), (*solution.nodes.shape, used)) if solution.slots is None else solution.slots
    ]
    if links.num_slots <= MAX_SCORED:
        starts += _scored(instance, links, solution.candidate, solution.nodes)
    times = times_s(starts)
    best, fastest_s = starts[0], float("inf")
    for index in np.argsort(times, kind="stable")[:MAX_DESCENTS].tolist():
        if fastest_s < float("inf") and clock.is_over:
            break
        found = _swapped(starts[index], float(times[index]), links.num_slots, times_s, lambda: clock.is_over)
        if found[1] < fastest_s:
            best, fastest_s = found
    placement = tile_placement(config, solution.candidate.tile, solution.nodes, best)
    return replace(solution, slots=best, estimate=estimate(instance, config, placement))


def _swapped(
    order: IntArray,
    fastest_s: float,
    num_slots: int,
    times_s: Callable[[list[IntArray]], FloatArray],
    is_over: Callable[[], bool],
) -> tuple[IntArray, float]:
    """Swap slots on groups of hosts as long as a swap is faster. Return the order of each host, and the seconds."""
    used = order.shape[-1]
    spare = [sorted(set(range(num_slots)) - set(slots)) for slots in order.reshape(-1, used).tolist()]
    whole = np.concatenate([order.reshape(-1, used), np.array(spare, dtype=np.int64).reshape(len(spare), -1)], 1)
    whole = whole.reshape(*order.shape[:-1], num_slots)
    moves = _moves(used, num_slots)
    areas, since = list(_areas(order.shape[:-1])), 0
    while since < len(areas) and not is_over():
        area = areas.pop(0)
        areas.append(area)
        tried = []
        for places in moves:
            other = whole.copy()
            other[area] = whole[area][..., places]
            tried.append(other)
        times = times_s([other[..., :used] for other in tried])
        if times.min() < fastest_s * (1 - IMPROVED):
            whole, fastest_s, since = tried[int(times.argmin())], float(times.min()), 0
        else:
            since += 1
    return whole[..., :used], fastest_s


def _moves(used: int, num_slots: int) -> list[IntArray]:
    """Return permutations of slots: all on small hosts, else swaps of two slots of which at least one has a rank."""
    if num_slots <= MAX_REORDERED:
        return [np.array(order) for order in permutations(range(num_slots))]
    moves = []
    for a in range(used):
        for b in range(a + 1, num_slots):
            places = np.arange(num_slots)
            places[[a, b]] = b, a
            moves.append(places)
    return moves


def _areas(grid: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield parts of the grid of hosts whose orders change together: all, each row, each column, each host."""
    everything = (slice(None),) * len(grid)
    seen = set()
    lines = [
        tuple(slice(index, index + 1) if axis == fixed else slice(None) for axis in range(len(grid)))
        for fixed in (0, 1)
        for index in range(grid[fixed])
    ]
    cells = [tuple(slice(index, index + 1) for index in cell) for cell in np.ndindex(*grid)]
    for area in (everything, *lines, *cells):
        held = np.zeros(grid, dtype=np.bool_)
        held[area] = True
        if held.tobytes() not in seen:
            seen.add(held.tobytes())
            yield area


class _HostRanks(NamedTuple):
    """
    Communication between the ranks of a host, by position in its rank order.

    Parameters
    ----------
    groups
        Groups of a ring with several members on a host, each with the bytes of one hop in an iteration.
    sends
        Pairs of positions, from a stage to the next on the host.
    leaves
        Pairs of positions from the last stage of a host to the first of another host.
    reversed_stages
        Position of each rank with the order of stages reversed.
    message_bytes
        Bytes that a pair sends in an iteration, both directions.
    """

    groups: list[tuple[list[int], float]]
    sends: list[tuple[int, int]]
    leaves: list[tuple[int, int]]
    reversed_stages: IntArray
    message_bytes: float


def _host_ranks(instance: Instance, candidate: CandidateData) -> _HostRanks:
    config, tile = candidate.config, candidate.tile
    nodes = np.arange(candidate.num_cells).reshape(candidate.grid)
    placement = tile_placement(config, tile, nodes)
    at = {
        tuple(coordinate): position
        for position, coordinate in enumerate(
            RankGrid.of(config, tile.order).coordinates()[placement.node == 0].tolist()
        )
    }
    costs, m = costs_of(instance, config), microbatches_of(instance.training, config)
    kinds = costs.layers.values()
    context = sum(
        kind.layers.sum(axis=0) * sum(moved.hop_bytes for moved in (*kind.context, *kind.exchange)) for kind in kinds
    )
    rings = [(kind, (*kind.tensor, *(message.traffic for message in kind.beside_products))) for kind in kinds]
    tensor = sum(kind.layers.sum(axis=0) * sum(ring.hop_bytes for ring in sent) for kind, sent in rings)
    hop_bytes = {
        (0, 1): max(ring.hop_bytes for ring in costs.gradient),
        (0, 1, 3): m * float(np.max(context)),
        (0, 1, 2): m * float(np.max(tensor)),
    }
    hop_bytes[0, 3] = hop_bytes.pop((0, 1))  # gradients: the same stage and tensor rank
    groups = []
    for fixed, moved in hop_bytes.items():
        members: dict[tuple[int, ...], list[int]] = {}
        for coordinate, position in at.items():
            members.setdefault(tuple(coordinate[axis] for axis in fixed), []).append(position)
        groups += [(group, moved) for group in members.values() if len(group) > 1 and moved > 0]
    stages = sorted({coordinate[0] for coordinate in at})
    turned = {stage: stages[-1 - place] for place, stage in enumerate(stages)}
    return _HostRanks(
        groups=groups,
        sends=[(at[s, *rest], at[s + 1, *rest]) for s, *rest in at if s + 1 in turned],
        leaves=[(at[stages[-1], *rest], at[stages[0], *rest]) for s, *rest in at if s == stages[0]],
        reversed_stages=np.array([at[turned[s], *rest] for s, *rest in at]),
        message_bytes=2 * m * costs.message_bytes,
    )


def _scored(instance: Instance, links: GpuLinks, candidate: CandidateData, nodes: IntArray) -> list[IntArray]:
    """Return the orders with the best scores, equal on hosts of a type, without and with odd rows reversed."""
    ranks = _host_ranks(instance, candidate)
    used = candidate.config.world_size // nodes.size
    orders = np.array(list(permutations(range(links.num_slots), used)), dtype=np.int64)
    several_rows = nodes.shape[0] > 1
    between = _slowest_pairs(links, nodes) if several_rows else None
    kinds = links.kind_of_node[nodes]
    found = []
    for turned in (False, True) if several_rows and len(ranks.sends) else (False,):
        best_of = {
            kind: orders[_best_scores(_scores(links, kind, ranks, orders, between, turned))]
            for kind in np.unique(kinds).tolist()
        }
        for place in range(max(map(len, best_of.values()))):
            slots = np.empty((*nodes.shape, used), dtype=np.int64)
            for kind, best in best_of.items():
                slots[kinds == kind] = best[min(place, len(best) - 1)]
            if turned:
                slots[1::2] = slots[1::2][..., ranks.reversed_stages]
            found.append(slots)
    return found


def _scores(
    links: GpuLinks, kind: int, ranks: _HostRanks, orders: IntArray, between: FloatArray | None, turned: bool
) -> FloatArray:
    """Return approximate seconds of each order: slowest groups of each ring, and sends; shape ``(len(orders),)``."""
    rings, inside = links.ring_bytes_per_s[kind], links.kinds[kind]
    slowest: dict[float, FloatArray] = {}
    for members, moved in ranks.groups:
        sets = np.bitwise_or.reduce(1 << orders[:, members], axis=1)
        slowest[moved] = np.maximum(slowest.get(moved, 0.0), moved / rings[sets])
    scores = sum(slowest.values(), np.zeros(len(orders)))
    if ranks.sends:
        rates = np.min([inside[orders[:, a], orders[:, b]] for a, b in ranks.sends], axis=0)
        scores = scores + ranks.message_bytes / rates
    if between is not None:
        # With reversed stages, the last stage of a host and the first of the next have the same slots.
        pairs = [(a, a) for a, _ in ranks.leaves] if turned else ranks.leaves
        rates = np.min([between[orders[:, a], orders[:, b]] for a, b in pairs], axis=0)
        scores = scores + ranks.message_bytes / rates
    return scores


def _best_scores(scores: FloatArray) -> IntArray:
    """Return the indices of the first and the last order of each of the best scores, at most ``MAX_STARTS``."""
    ranked = np.argsort(scores, kind="stable")
    step = np.flatnonzero(np.diff(scores[ranked]) > IMPROVED * scores[ranked][:-1])
    first, last = np.concatenate([[0], step + 1]), np.concatenate([step, [len(ranked) - 1]])
    chosen = np.unique(np.stack([first, last], axis=1)[: MAX_STARTS // 2].ravel())
    best: IntArray = ranked[chosen]
    return best


def _slowest_pairs(links: GpuLinks, nodes: IntArray) -> FloatArray | None:
    """
    Return the slowest bandwidth from slot to slot over all pairs of a placement's hosts, bytes/s, ``(slots, slots)``.

    ``None`` if links between hosts are not known by slot.
    """
    if links.between is None:
        return None
    used = nodes.ravel()
    part = np.nan_to_num(links.between[used][:, :, used], nan=np.inf)
    part[np.arange(len(used)), :, np.arange(len(used))] = np.inf
    slowest: FloatArray = part.min(axis=(0, 2))
    return slowest
