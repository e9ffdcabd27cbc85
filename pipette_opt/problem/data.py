"""
Data of the integer placement problem; :mod:`pipette_opt.problem.objective` computes the cost of a placement.

The data holds everything that solvers and baselines need: candidate configurations with their costs in ticks, hosts
with their capacities. The objective of a candidate is a relaxation: the longest of a set of :class:`Paths` through the
schedule, interleaved or not. The simulated time is never below it, as times are rounded down to ticks.
"""

from dataclasses import dataclass, field, fields, replace

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray, P2PMode, read_only
from pipette_opt.parallel import HostTile, ParallelConfig

UNUSABLE_TICKS = 1 << 50
"""Cost of a link that must not be used, integer ticks. Chosen far above any real objective."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Paths:
    """
    Chains of compute and transfers through the schedule; each chain ends with a stage's last backward.

    Each chain is a path through the event graph of one replica, whatever the hosts. So no stage finishes before the
    longest of its paths. The length of a path is linear in the times of compute and links. All arrays are read-only
    int64.

    Parameters
    ----------
    stage
        Stage whose last backward ends each path, shape ``(num_paths,)``.
    work_ticks
        Compute of each path on each stage, by GPU type, with tensor communication inside a host, rounded down, shape
        ``(num_paths, num_kinds, pp)``.
    forward_layers, backward_layers
        Number of transformer layers of each stage on a path, which multiply the tensor communication between hosts,
        shape ``(num_paths, pp)``. Zero if tensor and context groups stay inside hosts.
    up, down
        Number of transfers of a path from each stage to the next (cyclic) and back, shape ``(num_paths, pp)``.
    least_ticks
        Part of ``work_ticks`` that overlapped rings add at least, shape ``(num_paths,)``; by default 0.
    row_ring
        Row of ``ring_ticks`` with what the rings of each grid row add to a path, shape ``(num_paths, rows)``; by
        default no rows.
    ring_ticks
        Ticks that overlapped rings add, by the level of their slowest hop (``CandidateData.ring_level``), ascending,
        shape ``(num_rings, levels)``. The first ring adds nothing. The sum over the grid rows replaces
        ``least_ticks`` where it is larger.
    """

    stage: IntArray
    work_ticks: IntArray
    forward_layers: IntArray
    backward_layers: IntArray
    up: IntArray
    down: IntArray
    least_ticks: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    row_ring: IntArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    ring_ticks: IntArray = field(default_factory=lambda: np.zeros((1, 1), dtype=np.int64))

    def __post_init__(self) -> None:
        num_paths, _, pp = self.work_ticks.shape
        if len(self.least_ticks) != num_paths:
            object.__setattr__(self, "least_ticks", np.zeros(num_paths, dtype=np.int64))
            object.__setattr__(self, "row_ring", np.zeros((num_paths, 0), dtype=np.int64))
        for name in (*PATH_ARRAYS, "ring_ticks"):
            object.__setattr__(self, name, read_only(getattr(self, name), np.int64))
        if self.stage.shape != (num_paths,):
            raise ValueError(f"stage must have shape ({num_paths},), got {self.stage.shape}.")
        for name in ("forward_layers", "backward_layers", "up", "down"):
            if getattr(self, name).shape != (num_paths, pp):
                raise ValueError(f"{name} must have shape ({num_paths}, {pp}), got {getattr(self, name).shape}.")

    def __len__(self) -> int:
        return len(self.stage)

    def take(self, rows: IntArray | BoolArray) -> "Paths":
        """Return the selected paths; ``rows`` holds indices or a mask."""
        return Paths(**{name: getattr(self, name)[rows] for name in PATH_ARRAYS}, ring_ticks=self.ring_ticks)

    def added_ticks(self, levels: IntArray) -> IntArray:
        """
        Return the ticks that overlapped rings add beyond ``work_ticks``, shape ``(num_paths,)``.

        ``levels``: level of the slowest ring hop of each grid row.
        """
        rows = np.arange(self.row_ring.shape[1])
        added: IntArray = self.ring_ticks[self.row_ring, levels[rows]].sum(axis=1) - self.least_ticks
        return np.maximum(added, 0)

    def joined(self, other: "Paths") -> "Paths":
        """Return the paths of both sets, without duplicates."""
        sets = (self, other)
        levels, rows = (max(paths.shape_of_rings[axis] for paths in sets) for axis in (0, 1))
        tables = [np.broadcast_to(paths.ring_ticks, (len(paths.ring_ticks), levels)) for paths in sets]
        rings, ring_of = np.unique(np.concatenate(tables), axis=0, return_inverse=True)  # the first adds nothing
        firsts = (0, len(self.ring_ticks))
        row_ring = [np.zeros((len(paths), rows), dtype=np.int64) for paths in sets]
        for index, paths, first in zip(row_ring, sets, firsts, strict=True):
            if paths.row_ring.size:
                index[:] = ring_of.reshape(-1)[first + paths.row_ring]
        arrays = {name: np.concatenate([getattr(paths, name) for paths in sets]) for name in PATH_ARRAYS[:-1]}
        both = Paths(**arrays, row_ring=np.concatenate(row_ring), ring_ticks=rings)
        flat = np.concatenate([getattr(both, name).reshape(len(both), -1) for name in PATH_ARRAYS], axis=1)
        _, first_of = np.unique(flat, axis=0, return_index=True)
        return both.take(np.sort(first_of))

    @property
    def shape_of_rings(self) -> tuple[int, int]:
        """Number of levels of ring hops, and of grid rows whose rings add ticks."""
        return self.ring_ticks.shape[1], self.row_ring.shape[1]


PATH_ARRAYS = tuple(array.name for array in fields(Paths) if array.name != "ring_ticks")
"""Names of the arrays with a row for each path."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateData:
    """
    One configuration with one host tile; a placement gives it a host for each cell of ``grid``.

    ``grid = (P, D, K)``: ``P`` grid rows of ``tile.stages`` pipeline stages, ``D`` columns of replicas, ``K`` hosts
    for each slot. Stage ``s`` is in row ``s // tile.stages``. The ``K`` hosts of a slot are ``tile.context_nodes``
    groups of consecutive hosts, each with one tensor group. All arrays are read-only int64, times in ticks (integer
    time units).

    Parameters
    ----------
    num_microbatches
        Number ``m`` of micro-batches per replica.
    forward_ticks, backward_ticks
        Time of one micro-batch on one stage (sum of its chunks) on each GPU type, with tensor communication inside a
        host, shape ``(num_kinds, pp)``.
    intra_p2p_ticks
        Transfer between two stages of one host, one direction.
    p2p_ticks
        Transfer of one micro-batch from a stage on host i to the next stage on host j, with concurrent flows on the
        link, shape ``(num_nodes, num_nodes)``; ``UNUSABLE_TICKS`` without a link.
    ring_class
        Index into the first axis of ``ring_ticks`` for each stage, shape ``(pp,)``.
    ring_ticks
        Gradient reduction (and parameter gather of the distributed optimizer) if the slowest hop of the ring is from
        host i to host j, shape ``(num_classes, num_nodes, num_nodes)``.
    ring_floor_ticks
        Gradient reduction of each stage if all hops stay inside hosts, shape ``(pp,)``; zero if dp is 1. The reduction
        of a stage takes the maximum of this time and of the times of its hops between hosts.
    ring_level
        Level of a gradient ring whose slowest hop is from host i to host j, for rings that overlap with compute, shape
        ``(num_nodes, num_nodes)``; ``UNUSABLE_TICKS`` without a link. Empty ``(0, 0)`` without such rings.
    tensor_forward_ticks, tensor_backward_ticks
        Exposed time of one layer and micro-batch for a ring whose slowest hop is from host i to host j, shape
        ``(num_nodes, num_nodes)``; empty ``(0, 0)`` if ``K`` is 1. The rings are those of tensor groups that span
        hosts, otherwise those of context groups. A stage pays ``layers_per_stage[s]`` times the slowest of its rings,
        each through ``slot_ring`` hosts in order.
    embedding_ticks
        All-reduce of tied word embeddings if the first stage is on host i and the last on host j, shape ``(num_nodes,
        num_nodes)``. Empty ``(0, 0)`` without tied embeddings or if all stages share a host. The slowest pair of hosts
        decides; the all-reduce follows the gradient reductions of both stages.
    embedding_floor_ticks
        All-reduce of tied word embeddings if all stages share a host.
    optimizer_ticks
        Optimizer step of the slowest stage.
    memory_need_mib
        Upper bound on the peak memory of one GPU of each stage, MiB, shape ``(pp,)``.
    paths
        Paths whose longest is the objective.
    least_ticks
        Known lower bound on the objective of every placement.
    """

    config: ParallelConfig
    tile: HostTile
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
    paths: Paths
    embedding_ticks: IntArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    embedding_floor_ticks: int = 0
    ring_level: IntArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
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
            "ring_level",
            "memory_need_mib",
        ):
            object.__setattr__(self, name, read_only(getattr(self, name), np.int64))

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return self.config.pipeline_model_parallel_size

    @property
    def num_links(self) -> int:
        """Number of stages that send activations to the next stage; interleaved, the last sends to the first."""
        return self.num_stages - (self.config.num_chunks == 1)

    @property
    def wraps(self) -> bool:
        """Return whether hosts of the last grid row send activations to the first, as in interleaved schedules."""
        return self.config.num_chunks > 1 and self.grid[0] > 1

    @property
    def has_tied_stages(self) -> bool:
        """Return whether tied word embeddings are reduced between the first and the last stage."""
        return bool(self.embedding_ticks.size) or self.embedding_floor_ticks > 0

    @property
    def slot_ring(self) -> int:
        """Number of hosts in one ring of a slot; the ``K`` hosts of the slot form consecutive rings of this size."""
        return self.tile.tensor_nodes if self.tile.tensor_nodes > 1 else self.grid[2]

    @property
    def ring_length(self) -> int:
        """Number of hosts in a gradient ring: all columns, and in each column all context parts of the slot."""
        return self.grid[1] * self.tile.context_nodes

    @property
    def num_cells(self) -> int:
        """Number of hosts that a placement uses."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def row_need_mib(self) -> IntArray:
        """Memory that one GPU of a host in each grid row needs, MiB, shape ``(P,)``."""
        needs: IntArray = self.memory_need_mib.reshape(self.grid[0], self.tile.stages).max(axis=1)
        return needs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProblemData:
    """
    The placement problem: choose one candidate configuration and a different host with enough memory for each cell of
    its grid.

    Parameters
    ----------
    tick_s
        Seconds of one tick (integer time unit).
    kind_of_node
        GPU type of each host, shape ``(num_nodes,)``.
    capacity_mib
        Usable memory of one GPU of each host, MiB, shape ``(num_nodes,)``.
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
        """Number of hosts in the cluster."""
        return len(self.kind_of_node)

    def joined(self, other: "ProblemData") -> "ProblemData":
        """Return the problem with another's candidates appended; hosts and tick length must be equal."""
        return replace(self, candidates=(*self.candidates, *other.candidates))

    def allowed(self, candidate: CandidateData) -> BoolArray:
        """Return a mask of the hosts with enough memory for each grid row, shape ``(P, num_nodes)``."""
        return candidate.row_need_mib[:, None] <= self.capacity_mib[None, :]
