"""The fullest rank of a plan run alone, and what its memory says of predictions."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.measure.megatron_rank import has_transformer_engine, measure_rank
from pipette_opt.memory.framework import LARGEST_OFFSET, Framework
from pipette_opt.memory.predictor import MemoryPredictor, stage_works
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance, ModelSpec, TrainingSpec

Measure = Callable[[ModelSpec, TrainingSpec, ParallelConfig, int, str], int]
"""Bytes that a rank's tensors take at most: model, job, configuration, stage, device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """
    One stage, run.

    Parameters
    ----------
    work
        Its name in a stack's constants (:func:`~pipette_opt.memory.twins.work_keys`).
    measured_bytes, counted_bytes
        Its tensors at their peak: allocated or counted in that run, and counted by formula and network.
    """

    stage: int
    work: str
    measured_bytes: int
    counted_bytes: int

    @property
    def offset(self) -> float:
        """Logarithm of measured over counted."""
        return float(np.clip(np.log(self.measured_bytes / self.counted_bytes), -LARGEST_OFFSET, LARGEST_OFFSET))


def usual_device() -> str:
    """The GPU if there is one, else none."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def run_fullest(
    instance: Instance,
    config: ParallelConfig,
    predictor: MemoryPredictor,
    device: str,
    measure: Measure = measure_rank,
) -> Anchor:
    """
    Run the rank of the stage whose predicted peak is the largest.

    Raises ``InputError`` for a configuration or a device that cannot be run.
    """
    model, training, per_node = instance.model, instance.training, instance.cluster.gpus_per_node
    (prediction,) = predictor.predict(model, training, [config], gpus_per_node=per_node)
    stage = int(prediction.predicted_bytes.argmax())
    measured = measure(model, training, config, stage, device)
    counted, placeholders = predictor.counted(model, training, [config])
    engine = device == "cuda" and has_transformer_engine()
    return Anchor(
        stage=stage,
        work=stage_works(model, training, [config], gpus_per_node=per_node)[stage],
        measured_bytes=measured,
        counted_bytes=round(float(counted[stage] - (0.0 if engine else placeholders[stage]))),
    )


def anchored(framework: Framework, anchor: Anchor) -> Framework:
    """The constants with that anchor, in place of an older one of the same work."""
    others = tuple((work, offset) for work, offset in framework.anchors if work != anchor.work)
    return replace(framework, anchors=(*others, (anchor.work, anchor.offset)))
