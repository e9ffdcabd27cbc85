"""Run of the fullest rank of a plan alone, as a correction of predicted memory."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.measure.megatron_rank import has_transformer_engine, measure_rank
from pipette_opt.memory.framework import LARGEST_OFFSET, Framework
from pipette_opt.memory.predictor import MemoryPredictor, stage_works
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance, ModelSpec, TrainingSpec

Measure = Callable[[ModelSpec, TrainingSpec, ParallelConfig, int, str], int]
"""Function that returns the peak bytes of a rank's tensors, by model, job, configuration, stage and device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """
    A stage that was run.

    Parameters
    ----------
    work
        Key of its work in a stack's constants (:func:`~pipette_opt.memory.twins.work_keys`).
    measured_bytes, counted_bytes
        Peak of its tensors: allocated or counted in the run, and predicted by formula and network.
    """

    stage: int
    work: str
    measured_bytes: int
    counted_bytes: int

    @property
    def offset(self) -> float:
        """Logarithm of measured over predicted bytes."""
        return float(np.clip(np.log(self.measured_bytes / self.counted_bytes), -LARGEST_OFFSET, LARGEST_OFFSET))


def usual_device() -> str:
    """Return ``cuda`` if there is a GPU, else ``cpu``."""
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

    ``InputError`` for a configuration or a device that cannot be run.
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
    """Return the constants with this anchor, in place of an older one of equal work."""
    others = tuple((work, offset) for work, offset in framework.anchors if work != anchor.work)
    return replace(framework, anchors=(*others, (anchor.work, anchor.offset)))
