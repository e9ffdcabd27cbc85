"""Reference computation of the integer objective of a placement; tests check solvers and baselines against it."""

from dataclasses import dataclass, field

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, Paths, ProblemData


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedTicks:
    """
    Times of a candidate configuration on given hosts, integer ticks.

    Arrays cover ``pp`` stages and ``D`` columns of hosts; the replicas of one column take equal times.

    Parameters
    ----------
    send_forward, send_backward
        Transfer from stage s to s+1 (cyclic), and from s+1 to s, shape ``(num_links, D)``.
    ring
        Gradient reduction of each stage, shape ``(pp,)``.
    embedding
        All-reduce of tied word embeddings, after the reductions of the first and the last stage.
    path_work
        Compute of each path, with tensor communication between hosts and overlapped rings, shape ``(num_paths, D)``.
    slot_hop
        Slowest hop inside the slots of each stage, forward or backward, shape ``(pp, D)``; part of ``path_work``.
    """

    send_forward: IntArray
    send_backward: IntArray
    ring: IntArray
    path_work: IntArray
    embedding: int = 0
    slot_hop: IntArray = field(default_factory=lambda: np.zeros((0, 1), dtype=np.int64))


def place(data: ProblemData, candidate: CandidateData, nodes: IntArray) -> PlacedTicks:
    """
    Return the times of a candidate configuration on the hosts ``nodes``, shape ``candidate.grid``.

    With an unusable link inside a slot, ``path_work`` is meaningless.
    """
    stages, stage, paths = candidate.tile.stages, np.arange(candidate.num_stages), candidate.paths
    hosts = nodes[stage // stages]  # (pp, D, K)
    kinds = data.kind_of_node[hosts]
    hop_forward = hop_backward = np.zeros(hosts.shape[:2], dtype=np.int64)
    if candidate.grid[2] > 1:
        rings = hosts.reshape(*hosts.shape[:2], -1, candidate.slot_ring)
        following = np.roll(rings, -1, axis=3)
        hop_forward = candidate.tensor_forward_ticks[rings, following].max(axis=(2, 3))
        hop_backward = candidate.tensor_backward_ticks[rings, following].max(axis=(2, 3))
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
    by_host = paths.work_ticks[:, kinds, stage[:, None, None]]  # (num_paths, pp, D, K)
    work = path_work(paths, by_host.max(axis=3), hop_forward, hop_backward)
    return PlacedTicks(
        send_forward=send_forward,
        send_backward=send_backward,
        ring=ring,
        embedding=embedding,
        path_work=work + paths.added_ticks(ring_levels(candidate, nodes))[:, None],
        slot_hop=np.maximum(hop_forward, hop_backward),
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

    It is the longest path to a stage's last backward plus that stage's reduction, the maximum over stages and columns.
    The hosts must be distinct.
    """
    placed = place(data, candidate, nodes)
    slowest = [placed.slot_hop, placed.send_forward, placed.send_backward, placed.ring]
    if max(int(ticks.max(initial=0)) for ticks in slowest) >= UNUSABLE_TICKS:
        return UNUSABLE_TICKS  # products with the number of micro-batches would leave 64 bits
    return placed_objective_ticks(candidate, placed)


def placed_objective_ticks(candidate: CandidateData, placed: PlacedTicks) -> int:
    """
    Return the integer objective for given stage times, ticks; it never falls when a time grows.

    The arrays set the number of columns. So minima over hosts, given as one column, yield a lower bound.
    """
    finish = finish_ticks(candidate.paths, placed)
    done = finish.max(axis=1) + placed.ring
    done[[0, -1]] += placed.embedding
    return int(done.max()) + candidate.optimizer_ticks


def finish_ticks(paths: Paths, placed: PlacedTicks) -> IntArray:
    """Return the earliest end of each stage's last backward, before its reduction, integer ticks, shape ``(pp, D)``."""
    links = len(placed.send_forward)
    length = placed.path_work + paths.up[:, :links] @ placed.send_forward + paths.down[:, :links] @ placed.send_backward
    finish = np.zeros((paths.up.shape[1], length.shape[1]), dtype=np.int64)
    np.maximum.at(finish, paths.stage, length)
    return finish


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
    paths = candidate.paths
    work = paths.work_ticks.max(axis=1) + (paths.forward_layers + paths.backward_layers) * layer
    slowest = np.full(candidate.grid[0], paths.shape_of_rings[0] - 1)
    schedule = int(((work + (paths.up + paths.down) * link).sum(axis=1) + paths.added_ticks(slowest)).max())
    return schedule + ring + candidate.optimizer_ticks


def _largest_usable(ticks: IntArray) -> int:
    return int(ticks[ticks < UNUSABLE_TICKS].max(initial=0))
