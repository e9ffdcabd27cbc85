"""The integer problem of an instance: every candidate with every packing of the hosts, in ticks."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.costs.collectives import (
    RingTraffic,
    embedding_traffic,
    has_tied_stages,
    inter_node_ring_s,
    intra_node_ring_s,
    tensor_traffic,
)
from pipette_opt.costs.compute import StageCompute, stage_compute
from pipette_opt.costs.context import inside_stages_s
from pipette_opt.costs.exchange import expert_layer_s, expert_ring_s
from pipette_opt.costs.experts import expert_block
from pipette_opt.costs.messages import inter_node_message_s, intra_node_message_s, p2p_bytes
from pipette_opt.costs.overlap import StageRing, stage_rings
from pipette_opt.errors import InputError
from pipette_opt.parallel import NodeBlock, ParallelConfig, node_blocks
from pipette_opt.problem import UNUSABLE_TICKS, CandidateData, Paths, ProblemData
from pipette_opt.specs import Instance
from pipette_opt.types import BoolArray, FloatArray, IntArray, read_only
from pipette_opt.units import MIB

TICKS_PER_ROUND_TRIP = 10_000_000
"""Ticks of the shortest stage round trip of all candidates."""

LONGEST_TICKS = 1 << 40
"""
Time from which a link is not used: products with layers and micro-batches would leave 64 bits.

It is some 100,000 of the shortest round trips.
"""

NO_TICKS = np.zeros((0, 0), dtype=np.int64)

Rounding = Callable[[FloatArray], FloatArray]
"""``np.ceil`` for closed forms, ``np.floor`` for lower forms."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittingCandidate:
    """
    A configuration that fits somewhere.

    Parameters
    ----------
    need_bytes
        Upper bound of the peak memory of one GPU of each stage, shape ``(pp,)``.
    """

    config: ParallelConfig
    need_bytes: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathCounts:
    """
    How often paths through a schedule do what; what :class:`~pipette_opt.problem.Paths` are, before any times.

    Parameters
    ----------
    stage
        Whose last backward each path ends with, shape ``(num_paths,)``.
    forward, backward
        Operations of one micro-batch on each chunk of each stage, shape ``(num_paths, chunks, pp)``.
    up, down
        Transfers from each stage to the next (cyclic) and back, shape ``(num_paths, pp)``.
    """

    stage: IntArray
    forward: IntArray
    backward: IntArray
    up: IntArray
    down: IntArray

    def ending_at(self, stages: BoolArray) -> "PathCounts":
        """Those that end at some of the stages, shape ``(pp,)``."""
        which = stages[self.stage]
        return PathCounts(
            stage=self.stage[which],
            forward=self.forward[which],
            backward=self.backward[which],
            up=self.up[which],
            down=self.down[which],
        )


def plain_counts(pp: int, num_microbatches: int, chunks: int) -> PathCounts:
    """
    The paths that every schedule has.

    The first micro-batch goes through the first chunks up to a stage, the stage does all its work, and its last
    backward, one of the first chunk, ends the path or goes back to the first stage.
    """
    stage = np.arange(pp)
    before = np.tile(np.tri(pp, k=-1, dtype=np.int64), (2, 1))
    here = np.tile(np.eye(pp, dtype=np.int64), (2, 1))
    back = np.concatenate([np.zeros((pp, pp), dtype=np.int64), before[pp:]])
    work = np.repeat(num_microbatches * here[:, None, :], chunks, axis=1)
    forward, backward = work, work.copy()
    forward[:, 0] += before
    backward[:, 0] += back
    first_ends_once = np.arange(1, 2 * pp)
    return PathCounts(
        stage=np.concatenate([stage, np.zeros_like(stage)])[first_ends_once],
        forward=forward[first_ends_once],
        backward=backward[first_ends_once],
        up=before[first_ends_once],
        down=back[first_ends_once],
    )


def with_paths(
    instance: Instance, data: ProblemData, candidate: CandidateData, counts: Sequence[PathCounts]
) -> CandidateData:
    """A candidate whose lower form also has these paths."""
    compute = stage_compute(instance, candidate.config)
    paths = candidate.paths
    for one in counts:
        more = _paths(instance, candidate.config, compute, candidate.block, one, data.tick_s)
        paths = more if paths is None else paths.joined(more)
    return replace(candidate, paths=paths)


def build_problem_data(
    instance: Instance,
    fitting: Sequence[FittingCandidate],
    capacity_bytes: IntArray,
    *,
    lower_form: bool = False,
) -> ProblemData:
    """
    Turn seconds into ticks and bytes into MiB.

    With blocking sends, two stages exchange an activation and a gradient together and wait for the slower one, so
    the closed form uses the slower direction of each link both ways. Lower forms are rounded down.

    Parameters
    ----------
    capacity_bytes
        Memory of one GPU of each host that a stage may use, shape ``(num_nodes,)``.
    lower_form
        Give every candidate the lower form, as interleaved ones have anyway: the paths that every schedule has, which
        no send mode undercuts; :func:`with_paths` adds more.

    Returns
    -------
    ProblemData
        One candidate per configuration and packing; configurations without a packing are left out.
    """
    if instance.allreduce == "tree":
        raise InputError(
            "--allreduce", "tree is known to the judge only (estimate): a tree's time is that of no hop; give ring."
        )
    compute = [stage_compute(instance, candidate.config) for candidate in fitting]
    shortest = min(
        (float((times.forward_s + times.backward_s).sum(axis=(1, 2)).min()) for times in compute), default=1.0
    )
    tick_s = shortest / TICKS_PER_ROUND_TRIP
    links = _Links(tick_s)
    candidates = [
        _candidate(
            instance,
            candidate,
            times,
            block,
            links,
            closed=not lower_form and has_closed_form(instance, candidate.config, block),
        )
        for candidate, times in zip(fitting, compute, strict=True)
        for block in node_blocks(candidate.config, instance.cluster.gpus_per_node, instance.launcher)
    ]
    return ProblemData(
        candidates=tuple(candidates),
        p2p=instance.p2p,
        tick_s=tick_s,
        kind_of_node=instance.cluster.kind_of_node,
        capacity_mib=np.asarray(capacity_bytes) // MIB,
    )


def has_closed_form(instance: Instance, config: ParallelConfig, block: NodeBlock) -> bool:
    """Whether the schedule is 1F1B, and what experts send is always the same."""
    return config.num_chunks == 1 and experts_stay_inside(instance, config, block)


def experts_stay_inside(instance: Instance, config: ParallelConfig, block: NodeBlock) -> bool:
    """Whether no block of ranks that hold every expert once spans hosts."""
    return instance.model.num_experts is None or _ranks_of_a_host(config, block) % expert_block(config) == 0


def _candidate(
    instance: Instance,
    fitting: FittingCandidate,
    compute: StageCompute,
    block: NodeBlock,
    links: "_Links",
    *,
    closed: bool,
) -> CandidateData:
    config, cluster, tick_s = fitting.config, instance.cluster, links.tick_s
    rounding: Rounding = np.ceil if closed else np.floor
    gpus, members = _gpus_of_a_host(config, block), block.replicas * config.context_parallel_size
    num_hosts = max(2, config.data_parallel_size * config.context_parallel_size // members)
    message = p2p_bytes(instance.model, instance.training, config)
    both_ways = closed and instance.p2p == "blocking"

    def link_s() -> FloatArray:
        one_way = inter_node_message_s(cluster, message, gpus // block.stages)
        return np.maximum(one_way, one_way.T) if both_ways else one_way

    rings = stage_rings(instance, config, compute, closed=closed)
    distinct = list(dict.fromkeys(rings))
    num_microbatches = config.num_microbatches(instance.training.global_batch_size)
    forward, backward = _chunk_seconds(instance, config, compute, block)
    tensor_forward, tensor_backward = _tensor_ticks(instance, config, compute, block, tick_s, rounding)
    several_hosts = config.data_parallel_size > block.replicas
    paths = None
    if not closed:
        counts = plain_counts(config.pipeline_model_parallel_size, num_microbatches, config.num_chunks)
        paths = _paths(instance, config, compute, block, counts, tick_s)
    return CandidateData(
        config=config,
        block=block,
        grid=block.node_grid(config),
        num_microbatches=num_microbatches,
        forward_ticks=_ticks(forward.sum(axis=1), tick_s, rounding),
        backward_ticks=_ticks(backward.sum(axis=1), tick_s, rounding),
        intra_p2p_ticks=int(_ticks(intra_node_message_s(cluster, message), tick_s, rounding)),
        p2p_ticks=links.shared(
            ("p2p", message, gpus // block.stages, both_ways, closed), lambda: _link_ticks(link_s(), tick_s, rounding)
        ),
        ring_class=np.array([distinct.index(ring) for ring in rings]),
        ring_ticks=links.shared(
            ("rings", *distinct, members, gpus, num_hosts, closed, *_expert_key(instance, config, block)),
            lambda: np.array(
                [
                    _ring_ticks(instance, config, block, ring, members, gpus, num_hosts, tick_s, rounding)
                    for ring in distinct
                ]
            ),
        )
        if several_hosts
        else np.zeros((len(distinct), 0, 0), dtype=np.int64),
        ring_floor_ticks=np.array(
            [_ring_floor(instance, config, block, ring, members, tick_s, rounding) for ring in rings]
        ),
        tensor_forward_ticks=tensor_forward,
        tensor_backward_ticks=tensor_backward,
        embedding_ticks=links.shared(
            ("embedding", *_embedding_key(instance, config, block, gpus), closed),
            lambda: _embedding_ticks(instance, config, block, gpus, tick_s, rounding),
        ),
        embedding_floor_ticks=_embedding_floor(instance, config, block, tick_s, rounding),
        optimizer_ticks=int(_ticks(compute.optimizer_s, tick_s, rounding)),
        memory_need_mib=-(-np.asarray(fitting.need_bytes) // MIB),
        rounding_ticks=_rounding_ticks(config, block, num_microbatches) if closed else 0,
        paths=paths,
    )


class _Links:
    """The link matrices of one problem, in ticks: candidates whose transfers are alike share one array."""

    def __init__(self, tick_s: float) -> None:
        self.tick_s = tick_s
        self._known: dict[tuple[Hashable, ...], IntArray] = {}

    def shared(self, key: tuple[Hashable, ...], make: Callable[[], IntArray]) -> IntArray:
        """The array of that key, made once; the key says everything that it depends on."""
        if key not in self._known:
            self._known[key] = read_only(make(), np.int64)
        return self._known[key]


def _gpus_of_a_host(config: ParallelConfig, block: NodeBlock) -> int:
    """GPUs used on each host."""
    slot = config.tensor_model_parallel_size * config.context_parallel_size // block.nodes_per_slot
    return slot * block.stages * block.replicas


def _ranks_of_a_host(config: ParallelConfig, block: NodeBlock) -> int:
    """Ranks of one stage on each host that has it."""
    return _gpus_of_a_host(config, block) // block.stages


def _expert_key(instance: Instance, config: ParallelConfig, block: NodeBlock) -> tuple[Hashable, ...]:
    """What rings of experts depend on beside those of everything else."""
    if instance.model.num_experts is None:
        return ()
    return expert_block(config), _ranks_of_a_host(config, block)


def _chunk_seconds(
    instance: Instance, config: ParallelConfig, compute: StageCompute, block: NodeBlock
) -> tuple[FloatArray, FloatArray]:
    """Forward and backward with communication inside a host, shape ``(num_kinds, num_chunks, pp)``."""
    if block.nodes_per_slot > 1:
        return compute.forward_s, compute.backward_s
    experts = 0.0, 0.0
    if instance.model.num_experts is not None:
        ranks, gpus = _ranks_of_a_host(config, block), _gpus_of_a_host(config, block)
        experts = expert_layer_s(instance, config, ranks, gpus)
    forward, backward = inside_stages_s(instance, config, compute, experts)
    return compute.forward_s + forward, compute.backward_s + backward


def _paths(
    instance: Instance,
    config: ParallelConfig,
    compute: StageCompute,
    block: NodeBlock,
    counts: PathCounts,
    tick_s: float,
) -> Paths:
    """Paths with the times of a configuration's chunks."""
    forward, backward = _chunk_seconds(instance, config, compute, block)
    work = np.einsum("rcs,kcs->rks", counts.forward, forward) + np.einsum("rcs,kcs->rks", counts.backward, backward)
    layers = np.array(config.layers_per_stage) // config.num_chunks * (block.nodes_per_slot > 1)
    return Paths(
        stage=counts.stage,
        work_ticks=np.floor(work / tick_s),
        forward_layers=counts.forward.sum(axis=1) * layers,
        backward_layers=counts.backward.sum(axis=1) * layers,
        up=counts.up,
        down=counts.down,
    )


def _tensor_ticks(
    instance: Instance,
    config: ParallelConfig,
    compute: StageCompute,
    block: NodeBlock,
    tick_s: float,
    rounding: Rounding,
) -> tuple[IntArray, IntArray]:
    """Tensor communication of one layer by slowest hop, for groups that span hosts."""
    if block.nodes_per_slot == 1:
        return NO_TICKS, NO_TICKS
    members = config.tensor_model_parallel_size // block.nodes_per_slot
    ticks = []
    idle = (compute.idle_forward_s, compute.idle_backward_s)
    traffics = tensor_traffic(instance.model, instance.training, config, instance.stack)
    for traffic, hidden in zip(traffics, idle, strict=True):
        times = inter_node_ring_s(
            instance.cluster,
            traffic,
            group_flows=members,
            num_flows=members,
            num_hosts=block.nodes_per_slot,
            stack=instance.stack,
        )
        ticks.append(_link_ticks(np.maximum(times - hidden, 0.0), tick_s, rounding))
    return ticks[0], ticks[1]


def _ring_ticks(
    instance: Instance,
    config: ParallelConfig,
    block: NodeBlock,
    ring: StageRing,
    members: int,
    gpus: int,
    num_hosts: int,
    tick_s: float,
    rounding: Rounding,
) -> IntArray:
    """
    Of one ring by its slowest hop.

    With experts two rings follow one another over the same hosts, each at the pace of the same hop, or of the fabric if
    that is slower.
    """

    def time_s(traffic: RingTraffic, flows: int = members) -> FloatArray:
        across = inter_node_ring_s(
            instance.cluster,
            traffic,
            group_flows=flows,
            num_flows=gpus,
            num_hosts=num_hosts,
            stack=instance.stack,
            algorithm=instance.allreduce,
        )
        if ring.experts is None or flows == 1 or instance.allreduce != "ring":
            return across
        return np.maximum(across, intra_node_ring_s(instance.cluster, traffic, instance.stack))

    ranks, size = _ranks_of_a_host(config, block), expert_block(config)

    def experts_s(traffic: RingTraffic) -> FloatArray | float:
        if ranks % size == 0 and traffic.num_steps:
            return time_s(traffic, ranks // size)
        return expert_ring_s(instance, config, traffic, ranks, gpus)

    return _link_ticks(ring.shown_s(time_s, experts_s), tick_s, rounding)


def _ring_floor(
    instance: Instance,
    config: ParallelConfig,
    block: NodeBlock,
    ring: StageRing,
    members: int,
    tick_s: float,
    rounding: Rounding,
) -> int:
    if members == 1 and ring.experts is None:
        return 0

    def time_s(traffic: RingTraffic) -> FloatArray:
        return np.array(intra_node_ring_s(instance.cluster, traffic, instance.stack) if members > 1 else 0.0)

    def experts_s(traffic: RingTraffic) -> float:
        return expert_ring_s(instance, config, traffic, _ranks_of_a_host(config, block), _gpus_of_a_host(config, block))

    return int(_ticks(ring.shown_s(time_s, experts_s), tick_s, rounding))


def _embedding_key(instance: Instance, config: ParallelConfig, block: NodeBlock, gpus: int) -> tuple[Hashable, ...]:
    """What :func:`_embedding_ticks` depends on."""
    if not has_tied_stages(instance.model, config) or config.pipeline_model_parallel_size == block.stages:
        return (None,)
    return embedding_traffic(instance.model, instance.training, config), gpus // block.stages


def _embedding_ticks(
    instance: Instance, config: ParallelConfig, block: NodeBlock, gpus: int, tick_s: float, rounding: Rounding
) -> IntArray:
    """Tied embeddings between hosts of the first and of the last stage; an unmeasured link as the slowest measured."""
    if not has_tied_stages(instance.model, config) or config.pipeline_model_parallel_size == block.stages:
        return NO_TICKS
    flows = gpus // block.stages
    time = inter_node_ring_s(
        instance.cluster,
        embedding_traffic(instance.model, instance.training, config),
        group_flows=1,
        num_flows=flows,
        stack=instance.stack,
    )
    both = np.maximum(time, time.T)
    if np.isnan(both).all():
        return np.zeros(both.shape, dtype=np.int64)
    known = np.where(np.isnan(both), np.nanmax(time), both)
    return _ticks(np.minimum(known, (LONGEST_TICKS - 1) * tick_s), tick_s, rounding)


def _embedding_floor(
    instance: Instance, config: ParallelConfig, block: NodeBlock, tick_s: float, rounding: Rounding
) -> int:
    """Tied embeddings if one host has all stages."""
    if not has_tied_stages(instance.model, config) or config.pipeline_model_parallel_size > block.stages:
        return 0
    traffic = embedding_traffic(instance.model, instance.training, config)
    return int(_ticks(intra_node_ring_s(instance.cluster, traffic, instance.stack), tick_s, rounding))


def _rounding_ticks(config: ParallelConfig, block: NodeBlock, num_microbatches: int) -> int:
    """
    Largest excess of the integer objective over the real one.

    Every rounded term adds less than one tick. Round trip: four terms per stage. A period: at most four terms per
    stage it averages over, and its own rounding. Tensor rings over hosts add two terms per layer. One each for the
    reduction, tied embeddings and the optimizer.
    """
    stages, layers = config.pipeline_model_parallel_size, config.layers_per_stage
    tensor = 2 if block.nodes_per_slot > 1 else 0
    round_trip = 4 * stages + tensor * sum(layers)
    period = 5 + tensor * max(layers)
    return round_trip + num_microbatches * period + 3


def _ticks(seconds: FloatArray | float, tick_s: float, rounding: Rounding) -> IntArray:
    ticks = rounding(np.asarray(seconds) / tick_s)
    if not (ticks < LONGEST_TICKS).all():
        raise InputError(
            "intra_node (or the profile)",
            f"makes a step inside one host last {ticks.max() * tick_s:.3g} s, {ticks.max() / TICKS_PER_ROUND_TRIP:.1g} "
            "times a round trip through the model; check its bandwidth and latency.",
        )
    return ticks.astype(np.int64)


def _link_ticks(seconds: FloatArray, tick_s: float, rounding: Rounding) -> IntArray:
    """Ticks of a link matrix; ``UNUSABLE_TICKS`` without a measurement, from a host to itself, or too slow."""
    ticks = np.full(seconds.shape, UNUSABLE_TICKS, dtype=np.int64)
    known = np.ceil(seconds / tick_s) < LONGEST_TICKS  # false for NaN
    ticks[known] = _ticks(seconds[known], tick_s, rounding)
    return ticks
