"""
Which GPU of its host each rank gets, where links of single GPUs are known.

Everything before this works on :meth:`~pipette_opt.specs.ClusterSpec.relaxed` hosts, where every group has the best
slots that a group of its size can have; so its bounds are below every order of slots. Here the hosts of a solution are
given, and each gets an order: local rank i runs on slot ``order[i]``. Orders of small hosts are all scored by the slots
that talk most, the best of them are simulated, alike on all hosts and with stages reversed on every other row of hosts,
so that a stage and the next one on another host share a rail. From the best few of these, two slots are exchanged, on
all hosts, on a row or a column of the grid of hosts, or on one host, as long as the simulator finds that faster.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.costs.unplaced import costs_of
from pipette_opt.parallel import NodeBlock, ParallelConfig, RankGrid, block_placement, microbatches_of
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.reseat import has_room
from pipette_opt.simulate.solutions import SimulatedSolution, best_first
from pipette_opt.specs import Instance
from pipette_opt.specs.gpu_links import GpuLinks

SLOTS_SHARE = 0.1
"""Share of the time limit that is kept for orders of GPUs, where links of single GPUs are known. Chosen."""

MAX_SCORED = 8
"""GPUs of a host up to which every order is scored: 40,320 orders. Chosen: nine have 362,880."""

MAX_STARTS = 48
"""Orders that are simulated of those with the best scores. Chosen."""

MAX_DESCENTS = 4
"""Of these, from how many slots are exchanged. Chosen."""

MAX_REORDERED = 4
"""GPUs of a host up to which a step may give a host any order, 24; on larger ones it exchanges two slots. Chosen."""

MAX_PACKINGS = 512
"""Packings of configurations that are looked at. Chosen."""

MAX_IMPROVED = 4
"""Of these, from how many exchanges go on. Chosen."""

FIRST_PASS = 0.5
"""Share of the time for the first orders of all packings. Chosen."""

IMPROVED = 1e-9
"""Relative; an exchange counts if it makes a plan faster by more than rounding."""


def search_share(instance: Instance) -> float:
    """Share of the time limit that is left for the search on relaxed hosts; all of it if these are the given ones."""
    return 1.0 if instance.cluster.gpu_links is None else 1.0 - SLOTS_SHARE


def with_slots(
    instance: Instance,
    data: ProblemData,
    simulated: Sequence[SimulatedSolution],
    num_others: int,
    seconds: float,
    stop: threading.Event,
    also: Sequence[SimulatedSolution] = (),
) -> list[SimulatedSolution]:
    """
    Solutions with slots and the time that they have there.

    What is fastest on relaxed hosts need not be so with slots, so every packing of ``data`` is looked at whose relaxed
    time is below the best time with slots, most promising first, then exchanges go on from the best of them.

    Parameters
    ----------
    instance
        With the links of single GPUs.
    data
        Candidates; those without a simulated solution are placed on the hosts of the best one, or as hosts are listed.
    num_others
        So many more are given slots in any case.
    seconds
        For all of them; the first is simulated in some orders at least.
    also
        Solutions that are given slots whatever their relaxed time.
    """
    begun = time.perf_counter()
    found: list[SimulatedSolution] = []
    fastest_s, left_over = float("inf"), list(also)
    for one in _packings(instance, data, simulated):
        late = time.perf_counter() >= begun + FIRST_PASS * seconds or stop.is_set()
        if found and (late or one.estimate.iteration_time_s >= fastest_s) and len(found) > num_others:
            break
        found.append(assign_slots(instance, one, 0.0, stop))
        left_over = [one for one in left_over if one.candidate.config != found[-1].candidate.config]
        fastest_s = min(fastest_s, found[-1].estimate.iteration_time_s)
    found += [assign_slots(instance, one, 0.0, stop) for one in left_over]
    found.sort(key=lambda one: one.estimate.iteration_time_s)
    for place in range(min(MAX_IMPROVED, len(found))):
        now = time.perf_counter()
        left = max(0.0, begun + seconds - now)
        found[place] = assign_slots(instance, found[place], now + left / 2, stop)
    return found


def _packings(instance: Instance, data: ProblemData, simulated: Sequence[SimulatedSolution]) -> list[SimulatedSolution]:
    """Each packing once, on its best hosts known, with its relaxed time; the fastest first."""
    best_of: dict[tuple[ParallelConfig, NodeBlock], SimulatedSolution] = {}
    for one in sorted(simulated, key=lambda one: -one.estimate.iteration_time_s):
        best_of[one.candidate.config, one.candidate.block] = one
    relaxed = replace(instance, cluster=instance.cluster.relaxed())
    hosts = best_first(simulated)[0].nodes.ravel()
    others = []
    for candidate in data.candidates[:MAX_PACKINGS]:
        if (candidate.config, candidate.block) not in best_of:
            like_best = hosts if candidate.num_cells == len(hosts) else np.arange(candidate.num_cells)
            nodes = like_best.reshape(candidate.grid)
            if has_room(data, candidate, nodes):
                others.append((candidate, nodes))
    placed = [(one.config, block_placement(one.config, one.block, nodes)) for one, nodes in others]
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
    return sorted((*best_of.values(), *rest), key=lambda one: one.estimate.iteration_time_s)


def assign_slots(instance: Instance, one: SimulatedSolution, ends: float, stop: threading.Event) -> SimulatedSolution:
    """
    The same on its hosts with the fastest order of slots found by the time ``ends`` of ``time.perf_counter()``.

    Where that is over already, the fastest of the first orders.
    """

    def times_s(orders: list[IntArray]) -> FloatArray:
        """The simulator's times of orders, each of shape ``(*nodes.shape, gpus)``."""
        placed = [(config, block_placement(config, one.candidate.block, one.nodes, slots)) for slots in orders]
        return estimate_many(instance, placed)

    config, links = one.candidate.config, instance.cluster.gpu_links
    assert links is not None
    used = config.world_size // one.nodes.size
    starts = [np.broadcast_to(np.arange(used), (*one.nodes.shape, used)) if one.slots is None else one.slots]
    if links.num_slots <= MAX_SCORED:
        starts += _scored(instance, links, one.candidate, one.nodes)
    times = times_s(starts)
    best, fastest_s = starts[0], float("inf")
    for index in np.argsort(times, kind="stable")[:MAX_DESCENTS].tolist():
        if fastest_s < float("inf") and _over(ends, stop):
            break
        found = _exchanged(starts[index], float(times[index]), links.num_slots, times_s, lambda: _over(ends, stop))
        if found[1] < fastest_s:
            best, fastest_s = found
    placement = block_placement(config, one.candidate.block, one.nodes, best)
    return replace(one, slots=best, estimate=estimate(instance, config, placement))


def _over(ends: float, stop: threading.Event) -> bool:
    return time.perf_counter() >= ends or stop.is_set()


def _exchanged(
    order: IntArray,
    fastest_s: float,
    num_slots: int,
    times_s: Callable[[list[IntArray]], FloatArray],
    is_over: Callable[[], bool],
) -> tuple[IntArray, float]:
    """Slots exchanged on some hosts as long as that is faster: orders by grid of hosts, and their time in seconds."""
    used = order.shape[-1]
    spare = [sorted(set(range(num_slots)) - set(one)) for one in order.reshape(-1, used).tolist()]
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
    """Which slot each place gets: every order of small hosts, else two exchanged, of which one has a rank."""
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
    """Parts of the grid of hosts whose orders change together: all, each row, each column, each host."""
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
    Who talks to whom inside a host, by position in its rank order.

    Parameters
    ----------
    groups
        Ring groups with several members on a host, and the bytes that a hop of them moves in an iteration.
    sends
        Pairs of positions, from a stage to the next on the same host.
    leaves
        The same from the last stage of a host to the first of another one.
    reversed_stages
        Position with the order of stages turned round.
    message_bytes
        What a pair sends in an iteration, both ways.
    """

    groups: list[tuple[list[int], float]]
    sends: list[tuple[int, int]]
    leaves: list[tuple[int, int]]
    reversed_stages: IntArray
    message_bytes: float


def _host_ranks(instance: Instance, candidate: CandidateData) -> _HostRanks:
    config, block = candidate.config, candidate.block
    nodes = np.arange(candidate.num_cells).reshape(candidate.grid)
    placement = block_placement(config, block, nodes)
    at = {
        tuple(coordinate): position
        for position, coordinate in enumerate(
            RankGrid.of(config, block.order).coordinates()[placement.node == 0].tolist()
        )
    }
    costs, m = costs_of(instance, config), microbatches_of(instance.training, config)
    kinds = costs.layers.values()
    context = sum(one.layers.sum(axis=0) * sum(ring.hop_bytes for ring in one.context) for one in kinds)
    tensor = sum(one.layers.sum(axis=0) * sum(ring.hop_bytes for ring in one.tensor) for one in kinds)
    hop_bytes = {
        (0, 1): max(one.hop_bytes for one in costs.gradient),
        (0, 1, 3): m * float(np.max(context)),
        (0, 1, 2): m * float(np.max(tensor)),
    }
    hop_bytes[0, 3] = hop_bytes.pop((0, 1))  # gradients: the same stage and tensor rank
    groups = []
    for fixed, moved in hop_bytes.items():
        members: dict[tuple[int, ...], list[int]] = {}
        for coordinate, position in at.items():
            members.setdefault(tuple(coordinate[axis] for axis in fixed), []).append(position)
        groups += [(one, moved) for one in members.values() if len(one) > 1 and moved > 0]
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
    """The orders with the best scores, the same on all hosts of a kind, and with stages reversed on every other row."""
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
    """Seconds that the slowest of the groups of each sort take in turn, about, shape ``(len(orders),)``."""
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
        # Reversed, the last stage of a host and the first of the next have the same slots.
        pairs = [(a, a) for a, _ in ranks.leaves] if turned else ranks.leaves
        rates = np.min([between[orders[:, a], orders[:, b]] for a, b in pairs], axis=0)
        scores = scores + ranks.message_bytes / rates
    return scores


def _best_scores(scores: FloatArray) -> IntArray:
    """The first and the last order of each of the best scores, as long as they are few."""
    ranked = np.argsort(scores, kind="stable")
    step = np.flatnonzero(np.diff(scores[ranked]) > IMPROVED * scores[ranked][:-1])
    first, last = np.concatenate([[0], step + 1]), np.concatenate([step, [len(ranked) - 1]])
    chosen = np.unique(np.stack([first, last], axis=1)[: MAX_STARTS // 2].ravel())
    best: IntArray = ranked[chosen]
    return best


def _slowest_pairs(links: GpuLinks, nodes: IntArray) -> FloatArray | None:
    """From slot to slot over the hosts of a placement, the slowest pair of hosts, shape ``(slots, slots)``."""
    if links.between is None:
        return None
    used = nodes.ravel()
    part = np.nan_to_num(links.between[used][:, :, used], nan=np.inf)
    part[np.arange(len(used)), :, np.arange(len(used))] = np.inf
    slowest: FloatArray = part.min(axis=(0, 2))
    return slowest
