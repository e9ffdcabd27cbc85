"""
The same problem in integers.

Everything the solver and the baselines need, and nothing else: candidates with their costs in ticks, hosts with
their capacities. A candidate has one of two objectives.

- The closed form of 1F1B. Times are rounded up to ticks, so the integer objective is never below the closed form; by
  how much it can be above is ``CandidateData.rounding_ticks``, which every certificate subtracts from its bound.
- The longest of some :class:`Paths` through the schedule, interleaved or not: a lower form, which the judge's time
  never undercuts. Times are rounded down, so there is nothing to subtract.
"""

from dataclasses import dataclass, field

import numpy as np

from pipette_opt.parallel import NodeBlock, ParallelConfig
from pipette_opt.types import BoolArray, IntArray, P2PMode, read_only

UNUSABLE_TICKS = 1 << 50
"""Cost of a link that may not be used; any real objective is far below."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Paths:
    """
    Chains of work and transfers, each of which ends with a stage's last backward.

    Each is a path through the event graph of one replica, whatever the hosts; so no stage is finished before the
    longest of its paths is over. A path's length is linear in the times of work and links. All arrays are read-only
    int64.

    Parameters
    ----------
    stage
        Whose last backward each path ends with, shape ``(num_paths,)``.
    work_ticks
        Work of each path on each stage, by kind of GPU, with tensor communication inside a host, rounded down, shape
        ``(num_paths, num_kinds, pp)``.
    forward_layers, backward_layers
        How many times a path goes through a transformer layer of each stage, forwards and backwards: what tensor
        communication between hosts multiplies; shape ``(num_paths, pp)``, zero if groups stay inside hosts.
    up, down
        How many transfers a path makes from each stage to the next (cyclic) and back, shape ``(num_paths, pp)``.
    """

    stage: IntArray
    work_ticks: IntArray
    forward_layers: IntArray
    backward_layers: IntArray
    up: IntArray
    down: IntArray

    def __post_init__(self) -> None:
        for name in PATH_ARRAYS:
            object.__setattr__(self, name, read_only(getattr(self, name), np.int64))
        num_paths, _, pp = self.work_ticks.shape
        if self.stage.shape != (num_paths,):
            raise ValueError(f"stage must have shape ({num_paths},), got {self.stage.shape}.")
        for name in ("forward_layers", "backward_layers", "up", "down"):
            if getattr(self, name).shape != (num_paths, pp):
                raise ValueError(f"{name} must have shape ({num_paths}, {pp}), got {getattr(self, name).shape}.")

    def __len__(self) -> int:
        return len(self.stage)

    def take(self, which: IntArray | BoolArray) -> "Paths":
        """Some of the paths."""
        return Paths(**{name: getattr(self, name)[which] for name in PATH_ARRAYS})

    def joined(self, other: "Paths") -> "Paths":
        """These and others, each once."""
        both = Paths(
            **{name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in PATH_ARRAYS},
        )
        flat = np.concatenate([getattr(both, name).reshape(len(both), -1) for name in PATH_ARRAYS], axis=1)
        _, first = np.unique(flat, axis=0, return_index=True)
        return both.take(np.sort(first))


PATH_ARRAYS = ("stage", "work_ticks", "forward_layers", "backward_layers", "up", "down")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateData:
    """
    One configuration with one packing of the hosts; its placement is a host for each cell of ``grid``.

    Let ``P, D, K = grid`` (pipeline, data, tensor), ``a = block.stages``; pipeline stage ``s`` lives in grid row
    ``s // a``; all arrays are read-only int64 ticks.

    Parameters
    ----------
    num_microbatches
        ``m``, per replica.
    forward_ticks, backward_ticks
        One micro-batch on one stage (all its chunks together) on each kind of GPU, with tensor communication
        inside a host, shape ``(num_kinds, pp)``.
    intra_p2p_ticks
        Transfer between two stages of one host, one direction.
    p2p_ticks
        Transfer of one micro-batch between adjacent stages on host i and host j, directed, sharing the link with
        the flows that run at once, shape ``(num_nodes, num_nodes)``; ``UNUSABLE_TICKS`` where there is no link.
    ring_class
        Which row of ``ring_ticks`` each stage uses, shape ``(pp,)``.
    ring_ticks
        Gradient reduction (with the parameter gather of the distributed optimizer) of a stage of that class if
        its slowest hop between hosts is the directed pair (i, j), shape ``(num_classes, num_nodes, num_nodes)``.
    ring_floor_ticks
        Gradient reduction of each stage if all its hops stay inside hosts, shape ``(pp,)``; zero if dp is 1.
        A stage's reduction takes the larger of this and of its hops between hosts.
    tensor_forward_ticks, tensor_backward_ticks
        Only if ``K > 1``: tensor communication of one micro-batch and one transformer layer if the slowest hop of
        the group's ring between hosts is (i, j), shape ``(num_nodes, num_nodes)``; else empty ``(0, 0)``. A
        stage's time grows by ``layers_per_stage[s]`` times the largest over the ring of its K hosts in order.
    embedding_ticks
        All-reduce of tied word embeddings between the first and the last stage if these are on hosts i and j, shape
        ``(num_nodes, num_nodes)``; empty ``(0, 0)`` if nothing is tied or all stages share a host. The slowest over
        columns and tensor parts follows the reductions of both stages.
    embedding_floor_ticks
        The same if all stages share a host.
    optimizer_ticks
        Optimizer step of the slowest stage.
    memory_need_mib
        Upper bound of the peak memory of one GPU of each stage, shape ``(pp,)``.
    rounding_ticks
        The integer objective exceeds the real one by at most this.
    paths
        Whose longest is the objective; ``None`` for the closed form of 1F1B.
    least_ticks
        What is known already: no placement has a smaller objective.
    """

    config: ParallelConfig
    block: NodeBlock
    grid: tuple[int, int, int]
    num_microbatches: int
    forward_ticks: IntArray
    backward_ticks: IntArray
    intra_p2p_ticks: int
    p2p_ticks: IntArray
    ring_class: IntArray
    ring_ticks: IntArray
    ring_floor_ticks: IntArray
    tensor_forward_ticks: IntArray
    tensor_backward_ticks: IntArray
    optimizer_ticks: int
    memory_need_mib: IntArray
    rounding_ticks: int
    embedding_ticks: IntArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    embedding_floor_ticks: int = 0
    paths: Paths | None = None
    least_ticks: int = 0

    def __post_init__(self) -> None:
        for name in (
            "forward_ticks",
            "backward_ticks",
            "p2p_ticks",
            "ring_class",
            "ring_ticks",
            "ring_floor_ticks",
            "tensor_forward_ticks",
            "tensor_backward_ticks",
            "embedding_ticks",
            "memory_need_mib",
        ):
            object.__setattr__(self, name, read_only(getattr(self, name), np.int64))

    @property
    def exact(self) -> bool:
        """Whether the objective is the closed form of the schedule (1F1B without interleaving)."""
        return self.paths is None

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return self.config.pipeline_model_parallel_size

    @property
    def num_links(self) -> int:
        """Stages that send activations on: all but the last, with interleaving also this (to the first)."""
        return self.num_stages - (self.config.num_chunks == 1)

    @property
    def wraps(self) -> bool:
        """Whether hosts of the last grid row send activations to hosts of the first."""
        return self.config.num_chunks > 1 and self.grid[0] > 1

    @property
    def has_tied_stages(self) -> bool:
        """Whether tied word embeddings are reduced between the first and the last stage."""
        return bool(self.embedding_ticks.size) or self.embedding_floor_ticks > 0

    @property
    def num_cells(self) -> int:
        """Hosts used."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def row_need_mib(self) -> IntArray:
        """Memory that a host of each grid row must have per GPU, shape ``(P,)``."""
        needs: IntArray = self.memory_need_mib.reshape(self.grid[0], self.block.stages).max(axis=1)
        return needs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProblemData:
    """
    The joint problem: choose one candidate and a distinct allowed host for each cell of its grid.

    Parameters
    ----------
    tick_s
        Seconds of one tick.
    kind_of_node
        Kind of GPU of each host, shape ``(num_nodes,)``.
    capacity_mib
        Memory of one GPU of each host that a stage may use, shape ``(num_nodes,)``.
    """

    candidates: tuple[CandidateData, ...]
    p2p: P2PMode
    tick_s: float
    kind_of_node: IntArray
    capacity_mib: IntArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind_of_node", read_only(self.kind_of_node, np.int64))
        object.__setattr__(self, "capacity_mib", read_only(self.capacity_mib, np.int64))

    @property
    def num_nodes(self) -> int:
        """Hosts listed."""
        return len(self.kind_of_node)

    def allowed(self, candidate: CandidateData) -> BoolArray:
        """Whether every stage of a grid row fits on a host, shape ``(P, num_nodes)``."""
        return candidate.row_need_mib[:, None] <= self.capacity_mib[None, :]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedTicks:
    """
    Times of a candidate on given hosts; ``pp`` stages, ``D`` columns of hosts (each holding equal replicas).

    Parameters
    ----------
    forward, backward
        One micro-batch on one stage, tensor communication included, shape ``(pp, D)``.
    send_forward, send_backward
        Transfer from stage s to s+1 (cyclic) and from s+1 to s, shape ``(num_links, D)``.
    ring
        Gradient reduction of each stage, shape ``(pp,)``.
    embedding
        All-reduce of tied word embeddings, after the reductions of the first and the last stage.
    path_work
        Work of each path of the candidate, tensor communication between hosts included, shape ``(num_paths, D)``.
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
    Look up what a candidate costs on the hosts ``nodes``, shape ``candidate.grid``.

    Products with unusable links are at least ``UNUSABLE_TICKS`` in ``forward`` and ``backward``, and nonsense in
    ``path_work``.
    """
    stages, layers = candidate.block.stages, np.array(candidate.config.layers_per_stage, dtype=np.int64)
    stage = np.arange(candidate.num_stages)
    hosts = nodes[stage // stages]  # (pp, D, K)
    kinds = data.kind_of_node[hosts]
    forward = candidate.forward_ticks[kinds, stage[:, None, None]].max(axis=2)
    backward = candidate.backward_ticks[kinds, stage[:, None, None]].max(axis=2)
    hop_forward = hop_backward = np.zeros_like(forward)
    if candidate.grid[2] > 1:
        following = np.roll(hosts, -1, axis=2)
        hop_forward = candidate.tensor_forward_ticks[hosts, following].max(axis=2)
        hop_backward = candidate.tensor_backward_ticks[hosts, following].max(axis=2)
        forward = forward + layers[:, None] * hop_forward
        backward = backward + layers[:, None] * hop_backward
    here, there = hosts[: candidate.num_links], np.roll(hosts, -1, axis=0)[: candidate.num_links]
    inside = (here == there).all(axis=2)
    send_forward = np.where(inside, candidate.intra_p2p_ticks, candidate.p2p_ticks[here, there].max(axis=2))
    send_backward = np.where(inside, candidate.intra_p2p_ticks, candidate.p2p_ticks[there, here].max(axis=2))
    ring = candidate.ring_floor_ticks
    if candidate.grid[1] > 1:
        hops = candidate.ring_ticks[candidate.ring_class[:, None, None], hosts, np.roll(hosts, -1, axis=1)]
        ring = np.maximum(ring, hops.max(axis=(1, 2)))
    embedding = candidate.embedding_floor_ticks
    if candidate.embedding_ticks.size:
        embedding = int(candidate.embedding_ticks[hosts[0], hosts[-1]].max())
    work = np.zeros((0, hosts.shape[1]), dtype=np.int64)
    if candidate.paths is not None:
        by_host = candidate.paths.work_ticks[:, kinds, stage[:, None, None]]  # (num_paths, pp, D, K)
        work = path_work(candidate.paths, by_host.max(axis=3), hop_forward, hop_backward)
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
    Work of each path, shape ``(num_paths, D)``.

    Parameters
    ----------
    by_stage
        Of each path on each stage, shape ``(num_paths, pp, D)``.
    hop_forward, hop_backward
        Tensor communication of one layer between hosts, shape ``(pp, D)``.
    """
    tensor = paths.forward_layers @ hop_forward + paths.backward_layers @ hop_backward
    total: IntArray = by_stage.sum(axis=1) + tensor
    return total


def objective_ticks(data: ProblemData, candidate: CandidateData, nodes: IntArray) -> int:
    """
    The integer objective, in plain terms; solvers and baselines are checked against it.

    The closed form: round trip plus ``m - 1`` periods of each column, minus what the stages before still have to do
    when a stage is finished, plus that stage's reduction; the largest over stages and columns. Or the longest path to
    a stage's last backward plus that stage's reduction, likewise. The hosts must be distinct; usable links are the
    caller's concern: a link that is not gives a value of at least ``UNUSABLE_TICKS``.
    """
    placed = place(data, candidate, nodes)
    slowest = [placed.forward, placed.backward, placed.send_forward, placed.send_backward, placed.ring]
    if max(int(ticks.max(initial=0)) for ticks in slowest) >= UNUSABLE_TICKS:
        return UNUSABLE_TICKS  # products with the number of micro-batches would leave 64 bits
    return placed_objective_ticks(data, candidate, placed)


def placed_objective_ticks(data: ProblemData, candidate: CandidateData, placed: PlacedTicks) -> int:
    """
    The integer objective from what each stage costs; it never falls when one of these times grows.

    The number of columns is that of the arrays, so minima over hosts, as one column, give a lower bound.
    """
    finish = finish_ticks(data, candidate, placed)
    done = finish.max(axis=1) + placed.ring
    done[[0, -1]] += placed.embedding
    return int(done.max()) + candidate.optimizer_ticks


def finish_ticks(data: ProblemData, candidate: CandidateData, placed: PlacedTicks) -> IntArray:
    """When each stage of each column has finished its last backward, before its reduction, shape ``(pp, D)``."""
    if candidate.paths is None:
        return _finish_closed(data, candidate, placed)
    return _finish_paths(candidate.paths, placed)


def largest_ticks(candidate: CandidateData) -> int:
    """No placement on usable links has a larger objective."""
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
        schedule = int((work + (paths.up + paths.down) * link).sum(axis=1).max())
    return schedule + ring + candidate.optimizer_ticks


def _largest_usable(ticks: IntArray) -> int:
    return int(ticks[ticks < UNUSABLE_TICKS].max(initial=0))


def period_ticks(placed: PlacedTicks, p2p: P2PMode) -> IntArray:
    """Period of each column, rounded up to ticks, shape ``(D,)``; the forms of the two send modes."""
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
    """When each stage has finished its last backward by the closed form, shape ``(pp, D)``."""
    round_trip = (placed.forward + placed.backward).sum(axis=0)
    round_trip = round_trip + (placed.send_forward + placed.send_backward).sum(axis=0)
    total = round_trip + (candidate.num_microbatches - 1) * period_ticks(placed, data.p2p)
    finish: IntArray = total[None, :] - _before(placed.backward, placed.send_backward)
    return finish


def _finish_paths(paths: Paths, placed: PlacedTicks) -> IntArray:
    """When each stage can have finished its last backward at the earliest, shape ``(pp, D)``."""
    links = len(placed.send_forward)
    length = placed.path_work + paths.up[:, :links] @ placed.send_forward + paths.down[:, :links] @ placed.send_backward
    finish = np.zeros((paths.up.shape[1], length.shape[1]), dtype=np.int64)
    np.maximum.at(finish, paths.stage, length)
    return finish


def _before(work: IntArray, transfer: IntArray) -> IntArray:
    """Sum of work and transfer over the stages before each stage, shape ``(pp, D)``."""
    before: IntArray = np.zeros_like(work)
    before[1:] = np.cumsum(work[:-1] + transfer, axis=0)
    return before
