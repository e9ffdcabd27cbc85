"""
Near-OOM slowdown: time that plans lose where memory is nearly full, calibrated on runs of a stack.

The caching allocator returns its blocks to the driver and requests them again, which stops the device. The risk follows
from a plan's memory. ``Instance.edge_loss_s`` hands the loss to the costs, so that solver, simulator and back-tests
agree. A stack without calibrated times and memory has no such loss.
"""

from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.costs.edge import edge_times_s, gradients_outgrow
from pipette_opt.memory.filter import CheckedConfig, MemoryCheck, keep_fitting
from pipette_opt.memory.framework import framework_of
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance, StackSpec

EDGE = 0.95
"""Share of the usable memory that fragmentation leaves."""

NEAR, WIDTH = 0.9, 0.1
"""
Share of the usable memory at which jobs begin to lose time once an iteration, and the standard deviation of its log.
"""

REDUCTION_BYTES = 6 * 500_000_000
"""
Bytes of the reduction where gradients are freed after each step: a flat copy of a bucket, and one in fp32.

Buckets of 500 million elements are the default of Aleph-Alpha/scaling (``core/optimizer/allreduce.py``), and of
DeepSpeed. Predictions of memory do not count them.
"""

DECIDING = ("model", "cluster", "training", "stack")
"""Fields of the instance that determine a configuration's loss."""


def stack_predictor(stack: StackSpec) -> MemoryPredictor:
    """
    Load the shipped memory predictor with the constants of the stack; Megatron-Core's where it has none
    for memory.
    """
    return MemoryPredictor.load(framework=framework_of(stack.memory, f"stack {stack.name}, memory"))


def with_edge_loss(instance: Instance, memory: MemoryCheck | None = None) -> Instance:
    """
    Return the instance with the near-OOM slowdown of its stack in its times; unchanged if it already has it.

    A stack without such a loss has none. The loss is computed anew for a job that was changed since.

    Parameters
    ----------
    memory
        Checked configurations on the same cluster, whose losses are then known.
    """
    stack, known = instance.stack, instance.edge_loss_s
    if not stack.loses_near_full_memory:
        return replace(instance, edge_loss_s=None) if isinstance(known, EdgeLoss) else instance
    if known is not None and memory is None and not (isinstance(known, EdgeLoss) and known.is_outdated(instance)):
        return instance
    loss = EdgeLoss(instance=replace(instance, edge_loss_s=None), predictor=stack_predictor(stack))
    if memory is not None:
        loss.learn(memory)
    return replace(instance, edge_loss_s=loss)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeLoss:
    """Expected near-OOM slowdown of a configuration in one iteration, seconds; a cached function."""

    instance: Instance
    predictor: MemoryPredictor
    _known: dict[ParallelConfig, float] = field(init=False, repr=False, default_factory=dict)

    def __call__(self, config: ParallelConfig) -> float:
        """Return the expected loss of a configuration, wherever it is placed."""
        if config not in self._known:
            self.learn(keep_fitting(self.instance, [config], self.predictor))
        return self._known[config]

    def is_outdated(self, instance: Instance) -> bool:
        """Return whether job, cluster or stack differ from those of this loss."""
        own = self.instance
        return any(getattr(own, name) is not getattr(instance, name) for name in DECIDING)

    def learn(self, memory: MemoryCheck) -> None:
        """Store the expected loss of every configuration in ``memory``."""
        gpus = np.repeat(np.sort(memory.capacity_bytes)[::-1], self.instance.cluster.gpus_per_node)
        for checked in (*memory.fitting, *memory.rejected):
            self._known[checked.config] = self._loss_s(checked, gpus)

    def _loss_s(self, checked: CheckedConfig, gpus: IntArray) -> float:
        """
        Match stages with GPUs as the memory filter does, the largest need with the largest capacity.

        Parameters
        ----------
        gpus
            Usable bytes of each GPU, descending.
        """
        needed, spread = checked.prediction.predicted_bytes, checked.prediction.spread
        order = np.argsort(-needed)
        last = checked.config.world_size // len(needed) * np.arange(1, len(needed) + 1) - 1
        usable = gpus[np.minimum(last, len(gpus) - 1)]
        return expected_loss_s(self.instance, self.predictor, checked.config, needed[order], usable, spread[order])


def expected_loss_s(
    instance: Instance,
    predictor: MemoryPredictor,
    config: ParallelConfig,
    needed_bytes: IntArray | FloatArray,
    usable_bytes: IntArray,
    spread: FloatArray,
) -> float:
    """
    Expected near-OOM slowdown of a configuration in one iteration, seconds.

    Parameters
    ----------
    needed_bytes, usable_bytes, spread
        Predicted peak of each stage, usable memory, and standard deviation of the logarithm of the prediction's error;
        shape ``(pp,)``, in the same order.
    """
    usable = np.maximum(usable_bytes, 1)
    at_edge = predictor.oom_probability(needed_bytes, (EDGE * usable).astype(np.int64), spread)
    near, near_freed = near_risks(instance, config, needed_bytes, usable)
    flushes_s, refill_s, regrown_s = edge_times_s(instance, config)
    return float(at_edge.max()) * flushes_s + near * refill_s + near_freed * regrown_s


def near_risks(
    instance: Instance,
    config: ParallelConfig,
    needed_bytes: IntArray | FloatArray,
    usable_bytes: IntArray | FloatArray,
) -> tuple[float, float]:
    """
    Probabilities of a loss once an iteration: where gradients are kept, and where they are freed.

    Gradients that fit into blocks of activations are allocated again without a loss.

    Parameters
    ----------
    needed_bytes, usable_bytes
        Predicted peak and usable memory of each stage, shape ``(pp,)``.
    """
    kept = near_risk(float((needed_bytes / usable_bytes).max()))
    if not gradients_outgrow(instance.model, instance.training, config):
        return kept, 0.0
    return kept, near_risk(float(((needed_bytes + REDUCTION_BYTES) / usable_bytes).max()))


def near_risk(fullness: float) -> float:
    """
    Probability of a loss once an iteration.

    Parameters
    ----------
    fullness
        Predicted peak of the fullest stage over its usable memory.
    """
    return NormalDist().cdf(float(np.log(fullness / NEAR)) / WIDTH)
