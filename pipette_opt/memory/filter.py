"""Memory filter: configurations that fit the cluster, and the bytes that the others lack."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from pipette_opt.base.risk import IGNORED_RISK, USUAL_RISK
from pipette_opt.base.types import IntArray, read_only
from pipette_opt.base.units import ceil_div, counted, gib
from pipette_opt.memory.predictor import MemoryPrediction, MemoryPredictor, oom_probability
from pipette_opt.parallel import ParallelConfig, without_overlap
from pipette_opt.specs import ClusterSpec, Instance

HALF = 0.5
"""Risk at which the predicted peak itself equals the memory; no larger one is advised. Chosen."""

FULL = 0.9
"""Peak over usable memory from which a peak no longer tells the need: the allocator then returns blocks. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckedConfig:
    """
    Configuration with the memory that its stages need.

    Parameters
    ----------
    need_bytes
        Upper bound on the peak memory of one GPU of each stage, shape ``(pp,)``; 0 if the accepted risk is 1.
    short_bytes
        Bytes that a GPU lacks at least; 0 if the configuration may fit.
    """

    config: ParallelConfig
    prediction: MemoryPrediction
    need_bytes: IntArray
    short_bytes: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "need_bytes", read_only(self.need_bytes, np.int64))

    def of(self, config: ParallelConfig) -> "CheckedConfig":
        """Return this result for another configuration that needs equal memory."""
        return CheckedConfig(
            config=config, prediction=self.prediction, need_bytes=self.need_bytes, short_bytes=self.short_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryCheck:
    """
    Result of the memory filter.

    Parameters
    ----------
    fitting, rejected
        Checked configurations in the order of the candidates.
    capacity_bytes
        Usable bytes of one GPU of each host, shape ``(num_nodes,)``.
    max_oom_risk
        Accepted risk of running out of memory, 0 to 1, with which ``need_bytes`` were computed.
    spared
        Candidates with block recomputation that other candidates make unnecessary (:mod:`~pipette_opt.memory.fewest`).
    kept_on_gpu
        Candidates left out because an equal configuration with less offload fits.
    not_overlapped
        Candidates without tensor overlap, left out because the one with overlap fits and recomputes no more layers.
    """

    fitting: tuple[CheckedConfig, ...]
    rejected: tuple[CheckedConfig, ...]
    capacity_bytes: IntArray
    max_oom_risk: float
    spared: tuple[ParallelConfig, ...] = ()
    kept_on_gpu: tuple[ParallelConfig, ...] = ()
    not_overlapped: tuple[ParallelConfig, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "capacity_bytes", read_only(self.capacity_bytes, np.int64))

    def joined(self, other: "MemoryCheck") -> "MemoryCheck":
        """Return both results as one; ``other`` has other candidates, but equal hosts and risk."""
        return replace(
            self,
            fitting=(*self.fitting, *other.fitting),
            rejected=(*self.rejected, *other.rejected),
            spared=(*self.spared, *other.spared),
            kept_on_gpu=(*self.kept_on_gpu, *other.kept_on_gpu),
            not_overlapped=(*self.not_overlapped, *other.not_overlapped),
        )

    def kept(self, keep: Callable[[ParallelConfig], bool]) -> "MemoryCheck":
        """Return the result for the candidates for which ``keep`` returns true."""
        return replace(
            self,
            fitting=tuple(checked for checked in self.fitting if keep(checked.config)),
            rejected=tuple(checked for checked in self.rejected if keep(checked.config)),
            spared=tuple(filter(keep, self.spared)),
            kept_on_gpu=tuple(filter(keep, self.kept_on_gpu)),
            not_overlapped=tuple(filter(keep, self.not_overlapped)),
        )

    @property
    def nearest_miss(self) -> CheckedConfig | None:
        """Rejected configuration that lacks the fewest bytes; ``None`` if none is rejected."""
        return min(self.rejected, key=lambda checked: checked.short_bytes, default=None)

    def explain(self) -> str:
        """Return a sentence on how many candidates memory rules out, and on the rejected one that lacks least."""
        total = len(self.fitting) + len(self.rejected)
        head = f"memory rules out {len(self.rejected):,} of {counted(total, 'candidate')}"
        miss = self.nearest_miss
        if miss is None:
            return f"{head}."
        stage = int(miss.need_bytes.argmax())
        need, room = gib(int(miss.need_bytes[stage])), gib(int(self.capacity_bytes.max()))
        if need > room:
            return f"{head}; nearest miss: {miss.config.label()}, stage {stage} needs {need:.1f} GiB of {room:.1f}."
        return (
            f"{head}; nearest miss: {miss.config.label()} needs {need:.1f} GiB on stage {stage}, and too few hosts "
            f"have that much: it lacks {gib(miss.short_bytes):.1f} GiB."
        )

    def way_out(self) -> str:
        """Return a sentence on the least accepted risk at which a rejected candidate would fit; empty if none would."""
        room = int(self.capacity_bytes.max())
        risks = [float(oom_probability(checked.prediction, room).max()) for checked in self.rejected]
        least = min(risks, default=1.0)
        if not self.max_oom_risk < least < HALF:
            return ""
        config, accepted = self.rejected[risks.index(least)].config, ceil(100 * least) / 100
        return f"With --max-oom-risk {accepted:g} {config.label()} would fit."


def usable_bytes(cluster: ClusterSpec, predictor: MemoryPredictor) -> IntArray:
    """Return the usable bytes of one GPU of each host, shape ``(num_nodes,)``."""
    return np.array([predictor.usable_bytes(node.gpu) for node in cluster.nodes], dtype=np.int64)


def predicted_memory(
    instance: Instance, predictor: MemoryPredictor, configs: Sequence[ParallelConfig], max_oom_risk: float
) -> list[MemoryPrediction]:
    """
    Predict the memory of every stage of each configuration for the model, training and hosts of an instance.

    The bounds are exceeded with at most ``max_oom_risk``.
    """
    return predictor.predict(
        instance.model,
        instance.training,
        configs,
        gpus_per_node=instance.cluster.gpus_per_node,
        intra_node_bytes_per_s=instance.cluster.intra_node_bytes_per_s,
        max_oom_risk=max_oom_risk,
    )


def keep_fitting(
    instance: Instance,
    candidates: Sequence[ParallelConfig],
    predictor: MemoryPredictor,
    max_oom_risk: float = USUAL_RISK,
) -> MemoryCheck:
    """
    Separate candidates that may fit from those that fit in no placement.

    Stages are matched with GPUs, the largest need with the largest capacity, as if GPUs of different hosts could be
    mixed freely. A candidate that fails even so fails in every placement; the solver decides which hosts a stage gets.
    With an accepted risk of 1, every candidate fits. Candidates that differ only in communication overlap need equal
    memory and are predicted once.
    """
    bases = [without_overlap(config) for config in candidates]
    alone = list(dict.fromkeys(bases))
    capacity = usable_bytes(instance.cluster, predictor)
    gpus = np.repeat(np.sort(capacity)[::-1], instance.cluster.gpus_per_node)
    predictions = predicted_memory(instance, predictor, alone, max_oom_risk)
    fitting: list[CheckedConfig] = []
    rejected: list[CheckedConfig] = []
    checked: dict[ParallelConfig, CheckedConfig] = {}
    for base, prediction in zip(alone, predictions, strict=True):
        need = np.zeros_like(prediction.upper_bytes) if max_oom_risk >= IGNORED_RISK else prediction.upper_bytes
        short = _short_bytes(base, need, gpus)
        checked[base] = CheckedConfig(config=base, prediction=prediction, need_bytes=need, short_bytes=short)
    for config, base in zip(candidates, bases, strict=True):
        known = checked[base]
        result = known if config is base else known.of(config)
        (rejected if result.short_bytes else fitting).append(result)
    return MemoryCheck(
        fitting=tuple(fitting), rejected=tuple(rejected), capacity_bytes=capacity, max_oom_risk=max_oom_risk
    )


def _short_bytes(config: ParallelConfig, need_bytes: IntArray, gpus: IntArray) -> int:
    """
    Return the most bytes that any GPU lacks when the neediest stages get the largest GPUs; 0 if all stages fit.

    Parameters
    ----------
    need_bytes
        Need of one GPU of each stage, shape ``(pp,)``.
    gpus
        Usable bytes of every GPU, descending.
    """
    per_stage = ceil_div(config.world_size, config.pipeline_model_parallel_size)
    if config.world_size > len(gpus):
        needs = np.sort(need_bytes)[::-1]
        return int(max(needs[0] - gpus[0], 0))
    worst = gpus[per_stage * np.arange(1, len(need_bytes) + 1) - 1]  # the smallest GPU that each stage gets
    return int(max((np.sort(need_bytes)[::-1] - worst).max(), 0))
