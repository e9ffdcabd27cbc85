"""Sensitivity of the plan's time: each input 10 % slower, and 10 % faster."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import ClusterSpec, Instance

SLOWER, FASTER = 0.9, 1.1
"""Factors on rates. Chosen: about as far apart as measured rates of equal machines."""

_FIXED_COSTS = (
    "kernel_s",
    "host_kernel_s",
    "host_collective_s",
    "pipelined_wait_s",
    "group_wait_s",
    "micro_batch_s",
    "iteration_s",
    "collective_s",
)
"""Fields of a stack whose seconds do not depend on the size of tensors."""


class Changed(NamedTuple):
    """An input, and the simulated time of an iteration in seconds with this input slower and faster."""

    name: str
    slower_s: float
    faster_s: float


def sensitivities(instance: Instance, config: ParallelConfig, placement: Placement) -> list[Changed]:
    """Return the iteration times with a single input changed, for each input that the job has."""

    def seconds(change: Callable[[Instance, float], Instance], share: float) -> float:
        return estimate(change(instance, share), config, placement).iteration_time_s

    return [Changed(name, seconds(change, SLOWER), seconds(change, FASTER)) for name, change in _changes(instance)]


def _changes(instance: Instance) -> Iterator[tuple[str, Callable[[Instance, float], Instance]]]:
    if instance.cluster.num_nodes > 1:
        yield "links between hosts", _between
    yield "links inside hosts", _inside
    if instance.profile is None:
        yield "GPUs (compute and memory)", _gpus
    yield "latencies and fixed costs", _fixed


def _on(instance: Instance, cluster: ClusterSpec) -> Instance:
    return replace(instance, cluster=cluster)


def _between(instance: Instance, share: float) -> Instance:
    cluster, gpus = instance.cluster, instance.cluster.gpu_links
    return _on(
        instance,
        replace(
            cluster,
            link_matrices=tuple(
                replace(matrix, bytes_per_s=matrix.bytes_per_s * share) for matrix in cluster.link_matrices
            ),
            levels=tuple(replace(level, bytes_per_s=level.bytes_per_s * share) for level in cluster.levels),
            node_bytes_per_s=None if cluster.node_bytes_per_s is None else cluster.node_bytes_per_s * share,
            gpu_links=None
            if gpus is None
            else replace(gpus, between=None if gpus.between is None else gpus.between * share),
        ),
    )


def _inside(instance: Instance, share: float) -> Instance:
    cluster, gpus = instance.cluster, instance.cluster.gpu_links
    return _on(
        instance,
        replace(
            cluster,
            intra_node_bytes_per_s=cluster.intra_node_bytes_per_s * share,
            gpu_links=None if gpus is None else replace(gpus, inside=gpus.inside * share),
        ),
    )


def _gpus(instance: Instance, share: float) -> Instance:
    cluster = instance.cluster
    changed = {
        kind.name: replace(
            kind,
            peak_flops={name: flops * share for name, flops in kind.peak_flops.items()},
            memory_bytes_per_s=kind.memory_bytes_per_s * share,
        )
        for kind in cluster.gpu_kinds
    }
    return _on(
        instance, replace(cluster, nodes=tuple(replace(node, gpu=changed[node.gpu.name]) for node in cluster.nodes))
    )


def _fixed(instance: Instance, share: float) -> Instance:
    """Scale latencies and fixed costs: ``share`` 0.9, 10 % slower, means 10 % more seconds."""
    cluster, more = instance.cluster, 2.0 - share
    stack = replace(instance.stack, **{name: getattr(instance.stack, name) * more for name in _FIXED_COSTS})
    slower = replace(
        cluster,
        inter_node_latency_s=cluster.inter_node_latency_s * more,
        intra_node_latency_s=cluster.intra_node_latency_s * more,
        known_latency_s=None if cluster.known_latency_s is None else cluster.known_latency_s * more,
        levels=tuple(replace(level, latency_s=level.latency_s * more) for level in cluster.levels),
    )
    return replace(_on(instance, slower), stack=stack)
