"""Construction of the integer placement problem: one candidate for each configuration and host tile, times in ticks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.base.units import MIB
from pipette_opt.costs.collectives import hosts_of_a_domain
from pipette_opt.costs.compute import StageCompute, forced_kinds, stage_compute
from pipette_opt.costs.context import exchange_stays_inside
from pipette_opt.costs.layer_kinds import counted_layers
from pipette_opt.costs.messages import inter_node_message_s, intra_node_message_s, p2p_bytes
from pipette_opt.costs.overlap import stage_rings
from pipette_opt.costs.reductions import Reductions, dense_shape
from pipette_opt.costs.stage import expert_block
from pipette_opt.parallel import (
    HostTile,
    ParallelConfig,
    gpus_of_a_host,
    host_tiles,
    microbatches_of,
    ranks_of_a_host,
)
from pipette_opt.problem.beside import Beside, RingLevels, later_share, least_beside, pass_seconds, ring_levels
from pipette_opt.problem.data import CandidateData, Paths, ProblemData
from pipette_opt.problem.path_counts import PathCounts, plain_counts
from pipette_opt.problem.ticks import (
    TICKS_PER_ROUND_TRIP,
    SharedLinks,
    embedding_floor,
    embedding_key,
    embedding_ticks,
    expert_key,
    link_ticks,
    ring_floor,
    ring_ticks,
    tensor_key,
    tensor_ticks,
    ticks_of,
)
from pipette_opt.specs import Instance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittingCandidate:
    """
    A configuration that fits into the memory of some hosts.

    Parameters
    ----------
    need_bytes
        Upper bound on the peak memory of one GPU of each stage, shape ``(pp,)``.
    """

    config: ParallelConfig
    need_bytes: IntArray


def with_paths(
    instance: Instance, data: ProblemData, candidate: CandidateData, counts: Sequence[PathCounts]
) -> CandidateData:
    """Return the candidate configuration with more paths in its relaxation, overlapped communication included."""
    config, tile, paths = candidate.config, candidate.tile, candidate.paths
    compute = stage_compute(instance, config)
    chunk_s, beside = pass_seconds(instance, config, compute, tile), least_beside(instance, config, tile)
    levels, later = ring_levels(instance, config, tile), later_share(instance, config)
    for further in counts:
        paths = paths.joined(_paths(config, tile, further, chunk_s, data.tick_s, beside, levels))
        if later > 0:
            to_first = further.take(further.stage == 0)
            paths = paths.joined(_paths(config, tile, to_first, chunk_s, data.tick_s, beside, levels, later))
    if levels is None:
        return replace(candidate, paths=paths)
    return replace(candidate, paths=paths, ring_level=levels.of_hop)


def build_problem_data(
    instance: Instance,
    fitting: Sequence[FittingCandidate],
    capacity_bytes: IntArray,
    *,
    reductions: bool = True,
    links: SharedLinks | None = None,
) -> ProblemData:
    """
    Build the integer placement problem: seconds become ticks (integer time units) and bytes become MiB.

    Each candidate gets a relaxation. Its paths exist in every schedule and bound both send modes from below;
    :func:`with_paths` adds more. Times are rounded down.

    Parameters
    ----------
    capacity_bytes
        Usable memory of one GPU of each host, shape ``(num_nodes,)``.
    reductions
        ``False`` leaves out the reductions of gradients and tied embeddings: a relaxation for every choice of overlap.
    links
        Link matrices of earlier problems of the instance, whose tick length is reused. By default, the tick is a
        fraction of the shortest round trip of all candidates.

    Returns
    -------
    ProblemData
        One candidate for each configuration and host tile (part of the model on one host); configurations without a
        legal tile are left out.
    """
    _check_reduction(instance)
    compute = [stage_compute(instance, candidate.config) for candidate in fitting]
    links = links or SharedLinks(_tick_s(compute))
    candidates = [
        _candidate(instance, candidate, times, tile, links, reductions=reductions)
        for candidate, times in zip(fitting, compute, strict=True)
        for tile in host_tiles(candidate.config, instance.cluster.gpus_per_node, instance.launcher)
    ]
    return _problem(instance, candidates, capacity_bytes, links.tick_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxations:
    """
    Problem with a relaxation for every candidate.

    Parameters
    ----------
    built
        Indices of the given configurations for which candidates were built.
    """

    problem: ProblemData
    built: tuple[int, ...]
    links: SharedLinks


def build_relaxations(
    instance: Instance,
    fitting: Sequence[FittingCandidate],
    capacity_bytes: IntArray,
    order: Sequence[int] | None = None,
    is_enough: Callable[[int, int], bool] = lambda num_bytes, num_built: False,
    links: SharedLinks | None = None,
) -> Relaxations:
    """
    Build relaxations of the given configurations, or of as many as memory and time allow.

    Parameters
    ----------
    order
        Indices of configurations in building order; by default the given order. The result keeps the given order.
    is_enough
        Predicate that stops building. Called before each further configuration with the bytes of all link matrices and
        the number of configurations built.
    links
        Link matrices of earlier problems of the instance, whose tick length is reused.
    """
    _check_reduction(instance)
    compute = [stage_compute(instance, candidate.config) for candidate in fitting]
    links = links or SharedLinks(_tick_s(compute))
    built: dict[int, list[CandidateData]] = {}
    for index in range(len(fitting)) if order is None else order:
        if built and is_enough(links.num_bytes, len(built)):
            break
        fits = fitting[index]
        built[index] = [
            _candidate(instance, fits, compute[index], tile, links, reductions=True)
            for tile in host_tiles(fits.config, instance.cluster.gpus_per_node, instance.launcher)
        ]
    candidates = [candidate for index in sorted(built) for candidate in built[index]]
    problem = _problem(instance, candidates, capacity_bytes, links.tick_s)
    return Relaxations(problem=problem, built=tuple(sorted(built)), links=links)


def _check_reduction(instance: Instance) -> None:
    """Raise ``InputError`` for a collective algorithm whose time does not depend on its slowest link alone."""
    if instance.allreduce == "tree":
        raise InputError("allreduce", "tree is supported by estimate only, not by a search; give ring.")


def _problem(
    instance: Instance, candidates: Sequence[CandidateData], capacity_bytes: IntArray, tick_s: float
) -> ProblemData:
    return ProblemData(
        candidates=tuple(candidates),
        p2p=instance.p2p,
        tick_s=tick_s,
        kind_of_node=instance.cluster.kind_of_node,
        capacity_mib=np.asarray(capacity_bytes) // MIB,
    )


def shared_links(instance: Instance, configs: Sequence[ParallelConfig], *, least_only: bool = False) -> SharedLinks:
    """
    Return an empty cache of link matrices, with the tick length that these configurations require.

    With ``least_only``, the cache keeps only the least entry of each matrix.
    """
    return SharedLinks(_tick_s([stage_compute(instance, config) for config in configs]), least_only=least_only)


def _tick_s(compute: Sequence[StageCompute]) -> float:
    """Return the seconds of a tick: a fixed fraction of the shortest forward and backward through all stages."""
    round_trips = [float((times.forward_s + times.backward_s).sum(axis=(1, 2)).min()) for times in compute]
    return min(round_trips, default=1.0) / TICKS_PER_ROUND_TRIP


def links_decide(instance: Instance, config: ParallelConfig, tile: HostTile) -> bool:
    """
    Return whether each collective is a function of its slowest hop, so that integers can express it.

    This needs expert ranks on one host, and one ring for the gradients: no ZeRO 2 or 3, and one optimizer instance.
    Tensor groups must be inside hosts, since stages with embeddings or head send more than their layers. If context
    groups span hosts, all layers must send equally much.
    """
    if not config.reduces_in_one_ring or tile.tensor_nodes > 1:
        return False
    alike = tile.context_nodes == 1 or len(counted_layers(instance.model, config)) == 1
    alike &= exchange_stays_inside(instance.training, config, tile)
    return alike and experts_stay_inside(instance, config, tile) and hops_decide(instance, config, tile)


def hops_decide(instance: Instance, config: ParallelConfig, tile: HostTile) -> bool:
    """
    Return whether the slowest hop alone decides the time of a stage's rings.

    It does not on NVLink domains, where the number of a ring's hosts in each domain matters. It also does not if
    distances between hosts differ and a stage has several rings (gradients, parameters, experts, keys) with different
    slowest hops.
    """
    cluster = instance.cluster
    several = config.use_distributed_optimizer or instance.model.num_experts is not None
    if (several or tile.context_nodes > 1) and not cluster.equally_far:
        return False
    if len(set(cluster.domain_of_node.tolist())) == 1:
        return True
    stage = config.tensor_model_parallel_size * config.context_parallel_size * config.data_parallel_size
    return int(hosts_of_a_domain(cluster, stage // ranks_of_a_host(config, tile)).max()) == 1


def experts_stay_inside(instance: Instance, config: ParallelConfig, tile: HostTile) -> bool:
    """Return whether each group of ranks that together hold all experts stays on one host; true for dense models."""
    return instance.model.num_experts is None or ranks_of_a_host(config, tile) % expert_block(config) == 0


def _candidate(
    instance: Instance,
    fitting: FittingCandidate,
    compute: StageCompute,
    tile: HostTile,
    links: "SharedLinks",
    *,
    reductions: bool,
) -> CandidateData:
    config, cluster, tick_s = fitting.config, instance.cluster, links.tick_s
    gpus, shape = gpus_of_a_host(config, tile), dense_shape(config, tile)
    message = p2p_bytes(instance.model, instance.training, config)
    linked = links.links(instance)

    rings = stage_rings(instance, config, compute) if reductions else []
    distinct = list(dict.fromkeys(rings))
    num_microbatches = microbatches_of(instance.training, config)
    forward, backward = pass_seconds(instance, config, compute, tile)
    tensor_of = tensor_key(instance, config, compute, tile)

    def tensor(way: int) -> IntArray:
        return links.shared(
            ("tensor", way, *tensor_of),
            lambda: tensor_ticks(instance, config, compute, tile, linked, tick_s)[way],
        )

    reduced = Reductions(instance, config, tile, linked)
    num_hosts = int(np.prod(tile.node_grid(config)))
    optimizer_s = compute.optimizer_s[forced_kinds(cluster, num_hosts, compute.optimizer_s)]
    counts = plain_counts(config.pipeline_model_parallel_size, num_microbatches, config.num_chunks)
    none = np.zeros(config.pipeline_model_parallel_size, dtype=np.int64)
    return CandidateData(
        config=config,
        tile=tile,
        grid=tile.node_grid(config),
        num_microbatches=num_microbatches,
        forward_ticks=ticks_of(forward.sum(axis=1), tick_s),
        backward_ticks=ticks_of(backward.sum(axis=1), tick_s),
        intra_p2p_ticks=int(ticks_of(intra_node_message_s(cluster, message), tick_s)),
        p2p_ticks=links.shared(
            ("p2p", message, gpus // tile.stages),
            lambda: link_ticks(inter_node_message_s(cluster, message, gpus // tile.stages), tick_s),
        ),
        ring_class=np.array([distinct.index(ring) for ring in rings]) if reductions else none,
        ring_ticks=links.shared(
            ("rings", *distinct, shape, *expert_key(instance, config, tile)),
            lambda: np.array([ring_ticks(reduced, ring, tick_s) for ring in distinct]),
        )
        if shape.num_hosts > 1 and reductions
        else np.zeros((max(len(distinct), 1), 0, 0), dtype=np.int64),
        ring_floor_ticks=np.array([ring_floor(instance, config, tile, ring, tick_s) for ring in rings])
        if reductions
        else none,
        tensor_forward_ticks=tensor(0),
        tensor_backward_ticks=tensor(1),
        embedding_ticks=links.shared(
            ("embedding", *embedding_key(instance, config, tile, gpus)),
            lambda: embedding_ticks(instance, config, tile, gpus, tick_s),
        )
        if reductions
        else np.zeros((0, 0), dtype=np.int64),
        embedding_floor_ticks=embedding_floor(instance, config, tile, tick_s) if reductions else 0,
        optimizer_ticks=int(ticks_of(optimizer_s.min(), tick_s)),
        memory_need_mib=-(-np.asarray(fitting.need_bytes) // MIB),
        paths=_paths(config, tile, counts, (forward, backward), tick_s),  # with_paths adds overlapped communication
    )


def _paths(
    config: ParallelConfig,
    tile: HostTile,
    counts: PathCounts,
    chunk_s: tuple[FloatArray, FloatArray],
    tick_s: float,
    beside: Beside | None = None,
    levels: RingLevels | None = None,
    later: float = 0.0,
) -> Paths:
    """
    Return paths with the chunk times (forward, backward) of a configuration and with its overlapped communication.

    ``later``: fraction of the first stage's last backward before which paths end, see :meth:`Beside.by_row_s`.
    """
    rings: dict[str, IntArray] = {}
    forward, backward = chunk_s
    if beside is None:
        counts = counts.take(counts.parts == 1)
    operations = counts.forward if beside is None else counts.without_begun(counts.forward)
    done = counts.backward.astype(np.float64)
    done[:, 0, 0] -= later
    work = np.einsum("rcs,kcs->rks", operations, forward) + np.einsum("rcs,kcs->rks", done, backward)
    if beside is not None:
        least = beside.of_paths_s(counts, later)
        work += least[:, None, :]
        if levels is not None:
            added = np.floor(levels.beside.by_row_s(counts, later) / tick_s).astype(np.int64).swapaxes(1, 2)
            nothing = np.zeros((1, added.shape[2]), dtype=np.int64)
            table, ring = np.unique(
                np.concatenate([nothing, added.reshape(-1, added.shape[2])]), axis=0, return_inverse=True
            )
            rings = {
                "least_ticks": np.ceil(least.sum(axis=1) / tick_s).astype(np.int64),
                "row_ring": ring.reshape(-1)[1:].reshape(added.shape[:2]),
                "ring_ticks": table,
            }
    layers = np.array(config.layers_per_chunk) * (tile.nodes_per_slot > 1)
    return Paths(
        stage=counts.stage,
        work_ticks=np.floor(work / tick_s),
        forward_layers=(operations * layers).sum(axis=1),
        backward_layers=np.floor((done * layers).sum(axis=1)),
        up=counts.up,
        down=counts.down,
        **rings,
    )
