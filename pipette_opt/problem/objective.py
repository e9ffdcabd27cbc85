"""Reference computation of the integer objective of a placement; tests check solvers and baselines against it."""

from dataclasses import dataclass, field

import numpy as np

from pipette_opt.base.types import IntArray, P2PMode
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, Paths, ProblemData


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedTicks:
    """
    Times of a candidate configuration on given hosts, integer ticks.

    Arrays cover ``pp`` stages and ``D`` columns of hosts; the replicas of one column take equal times.

    Parameters
    ----------
    forward, backward
        Time of one micro-batch on one stage, tensor communication included, shape ``(pp, D)``.
    send_forward, send_backward
        Transfer from stage s to s+1 (cyclic), and from s+1 to s, shape ``(num_links, D)``.
    ring
        Gradient reduction of each stage, shape ``(pp,)``.
    embedding
        All-reduce of tied word embeddings, after the reductions of the first and the last stage.
    path_work
        Compute of each path, with tensor communication between hosts and overlapped rings, shape ``(num_paths, D)``.
    """

    forward: IntArray
    backward: IntArray
    send_forward: IntArray
    send_backward: IntArray
    ring: IntArray
    embedding: int = 0
    path_work: IntArray = field(default_factory=lambda: np.zeros((0, 1), dtype=np.int64))


def place(data: ProblemData, candidate: CandidateData, nodes: IntArray) -> PlacedTicks:
    """
    Return the times of a candidate configuration on the hosts ``nodes``, shape ``candidate.grid``.

    With an unusable link, ``forward`` or ``backward`` is at least ``UNUSABLE_TICKS`` and ``path_work`` is meaningless.
    """
    stages, layers = candidate.tile.stages, np.array(candidate.config.layers_per_stage, dtype=np.int64)
    stage = np.arange(candidate.num_stages)
    hosts = nodes[stage // stages]  # (pp, D, K)
    kinds = data.kind_of_node[hosts]
    forward = candidate.forward_ticks[kinds, stage[:, None, None]].max(axis=2)
    backward = candidate.backward_ticks[kinds, stage[:, None, None]].max(axis=2)
    hop_forward = hop_backward = np.zeros_like(forward)
    if candidate.grid[2] > 1:
        rings = hosts.reshape(*hosts.shape[:2], -1, candidate.slot_ring)
        following = np.roll(rings, -1, axis=3)
        hop_forward = candidate.tensor_forward_ticks[rings, following].max(axis=(2, 3))
        hop_backward = candidate.tensor_backward_ticks[rings, following].max(axis=(2, 3))
        forward = forward + layers[:, None] * hop_forward
        backward = backward + layers[:, None] * hop_backward
    here, receiving = hosts[: candidate.num_links], np.roll(hosts, -1, axis=0)[: candidate.num_links]
    inside = (here == receiving).all(axis=2)
    send_forward = np.where(inside, candidate.intra_p2p_ticks, candidate.p2p_ticks[here, receiving].max(axis=2))
    send_backward = np.where(inside, candidate.intra_p2p_ticks, candidate.p2p_ticks[receiving, here].max(axis=2))
    ring = candidate.ring_floor_ticks
    if candidate.ring_length > 1:
        rings = hosts.reshape(len(hosts), candidate.ring_length, -1)
        hops = candidate.ring_ticks[candidate.ring_class[:, None, None], rings, np.roll(rings, -1, axis=1)]
        ring = np.maximum(ring, hops.max(axis=(1, 2)))
    embedding = candidate.embedding_floor_ticks
    if candidate.embedding_ticks.size:
        embedding = int(candidate.embedding_ticks[hosts[0], hosts[-1]].max())
    work = np.zeros((0, hosts.shape[1]), dtype=np.int64)
    if candidate.paths is not None:
        by_host = candidate.paths.work_ticks[:, kinds, stage[:, None, None]]  # (num_paths, pp, D, K)
        work = path_work(candidate.paths, by_host.max(axis=3), hop_forward, hop_backward)
        work = work + candidate.paths.added_ticks(ring_levels(candidate, nodes))[:, None]
    return PlacedTicks(
        forward=forward,
        backward=backward,
        send_forward=send_forward,
        send_backward=send_backward,
        ring=ring,
        embedding=embedding,
        path_work=work,
    )


def path_work(paths: Paths, by_stage: IntArray, hop_forward: IntArray, hop_backward: IntArray) -> IntArray:
    """
    Return the ticks of compute and tensor communication on each path, shape ``(num_paths, D)``.

    Parameters
    ----------
    by_stage
        Compute of each path on each stage, integer ticks, shape ``(num_paths, pp, D)``.
    hop_forward, hop_backward
        Communication of one layer between the hosts of a slot, ticks, shape ``(pp, D)``.
    """
    tensor = paths.forward_layers @ hop_forward + paths.backward_layers @ hop_backward
    total: IntArray = by_stage.sum(axis=1) + tensor
    return total


def objective_ticks(data: ProblemData, candidate: CandidateData, nodes: IntArray) -> int:
    """
    Return the integer objective of a placement, ticks; ``UNUSABLE_TICKS`` or more with an unusable link.

    The analytical 1F1B model takes the round trip plus ``m - 1`` periods of each column. It subtracts the work that
    earlier stages still do when a stage has finished, and adds the reduction of that stage. The relaxation takes the
    longest path to a stage's last backward plus that stage's reduction. Both take the maximum over stages and columns.
    The hosts must be distinct.
    """
    placed = place(data, candidate, nodes)
    slowest = [placed.forward, placed.backward, placed.send_forward, placed.send_backward, placed.ring]
    if max(int(ticks.max(initial=0)) for ticks in slowest) >= UNUSABLE_TICKS:
        return UNUSABLE_TICKS  # products with the number of micro-batches would leave 64 bits
    return placed_objective_ticks(data, candidate, placed)


def placed_objective_ticks(data: ProblemData, candidate: CandidateData, placed: PlacedTicks) -> int:
    """
    Return the integer objective for given stage times, ticks; it never falls when a time grows.

    The arrays set the number of columns. So minima over hosts, given as one column, yield a lower bound.
    """
    finish = finish_ticks(data, candidate, placed)
    done = finish.max(axis=1) + placed.ring
    done[[0, -1]] += placed.embedding
    return int(done.max()) + candidate.optimizer_ticks


def finish_ticks(data: ProblemData, candidate: CandidateData, placed: PlacedTicks) -> IntArray:
    """Return the end of each stage's last backward, before its reduction, integer ticks, shape ``(pp, D)``."""
    if candidate.paths is None:
        return _finish_closed(data, candidate, placed)
    return _finish_paths(candidate.paths, placed)


def ring_levels(candidate: CandidateData, nodes: IntArray) -> IntArray:
    """Return the level of the slowest ring hop of each grid row, shape ``(P,)``; 0 without overlapped rings."""
    if not candidate.ring_level.size:
        return np.zeros(candidate.grid[0], dtype=np.int64)
    rings = nodes.reshape(len(nodes), candidate.ring_length, -1)
    levels: IntArray = candidate.ring_level[rings, np.roll(rings, -1, axis=1)].max(axis=(1, 2))
    return np.where(levels < UNUSABLE_TICKS, levels, 0)  # an unusable link costs more elsewhere


def largest_ticks(candidate: CandidateData) -> int:
    """Return an upper bound on the objective of every placement on usable links, integer ticks."""
    link = _largest_usable(candidate.p2p_ticks) + candidate.intra_p2p_ticks
    layer = _largest_usable(candidate.tensor_forward_ticks) + _largest_usable(candidate.tensor_backward_ticks)
    ring = _largest_usable(candidate.ring_ticks) + int(candidate.ring_floor_ticks.max())
    ring += int(candidate.embedding_ticks.max(initial=candidate.embedding_floor_ticks))
    if candidate.paths is None:
        compute = int(candidate.forward_ticks.max() + candidate.backward_ticks.max())
        stage = compute + max(candidate.config.layers_per_stage) * layer + 2 * link
        schedule = 2 * (candidate.num_microbatches + candidate.num_stages) * stage
    else:
        paths = candidate.paths
        work = paths.work_ticks.max(axis=1) + (paths.forward_layers + paths.backward_layers) * layer
        slowest = np.full(candidate.grid[0], paths.shape_of_rings[0] - 1)
        schedule = int(((work + (paths.up + paths.down) * link).sum(axis=1) + paths.added_ticks(slowest)).max())
    return schedule + ring + candidate.optimizer_ticks


def _largest_usable(ticks: IntArray) -> int:
    return int(ticks[ticks < UNUSABLE_TICKS].max(initial=0))


def period_ticks(placed: PlacedTicks, p2p: P2PMode) -> IntArray:
    """Return the time between two micro-batches in steady state of each column, ticks rounded up, shape ``(D,)``."""
    cost = placed.forward + placed.backward
    if p2p == "blocking":
        wait = np.zeros((len(cost) + 1, cost.shape[1]), dtype=np.int64)
        wait[1:-1] = np.maximum(placed.send_forward, placed.send_backward)
        period: IntArray = (cost + wait[:-1] + wait[1:]).max(axis=0)
        return period
    best = np.zeros(cost.shape[1], dtype=np.int64)
    transfer = placed.send_forward + placed.send_backward
    for first in range(len(cost)):
        total = np.cumsum(cost[first:], axis=0)
        total[1:] += np.cumsum(transfer[first:], axis=0)
        lengths = np.arange(1, len(total) + 1)[:, None]
        best = np.maximum(best, (-(-total // lengths)).max(axis=0))
    return best


def _finish_closed(data: ProblemData, candidate: CandidateData, placed: PlacedTicks) -> IntArray:
    """Return the end of each stage's last backward by the analytical 1F1B model, integer ticks, shape ``(pp, D)``."""
    round_trip = (placed.forward + placed.backward).sum(axis=0)
    round_trip = round_trip + (placed.send_forward + placed.send_backward).sum(axis=0)
    total = round_trip + (candidate.num_microbatches - 1) * period_ticks(placed, data.p2p)
    finish: IntArray = total[None, :] - _before(placed.backward, placed.send_backward)
    return finish


def _finish_paths(paths: Paths, placed: PlacedTicks) -> IntArray:
    """Return the earliest end of each stage's last backward by the relaxation's paths, ticks, shape ``(pp, D)``."""
    links = len(placed.send_forward)
    length = placed.path_work + paths.up[:, :links] @ placed.send_forward + paths.down[:, :links] @ placed.send_backward
    finish = np.zeros((paths.up.shape[1], length.shape[1]), dtype=np.int64)
    np.maximum.at(finish, paths.stage, length)
    return finish


def _before(work: IntArray, transfer: IntArray) -> IntArray:
    """Return the work and transfers of all stages before each stage, summed, integer ticks, shape ``(pp, D)``."""
    before: IntArray = np.zeros_like(work)
    before[1:] = np.cumsum(work[:-1] + transfer, axis=0)
    return before
