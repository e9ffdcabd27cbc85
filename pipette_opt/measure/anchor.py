"""Run of the rank with the highest predicted memory, to correct the memory prediction of a plan."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.measure.megatron_rank import has_transformer_engine, measure_rank
from pipette_opt.memory.predictor import MemoryPredictor, stage_works
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance, ModelSpec, TrainingSpec
from pipette_opt.specs.memory_constants import LARGEST_OFFSET, MemoryConstants

Measure = Callable[[ModelSpec, TrainingSpec, ParallelConfig, int, str], int]
"""Function of (model, training, configuration, stage, device) that returns the peak bytes of a rank's tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """
    Stage whose rank was run, with measured and predicted memory.

    Parameters
    ----------
    work
        Key of the stage's work among a stack's memory constants (:func:`~pipette_opt.memory.twins.work_keys`).
    measured_bytes
        Peak of the rank's tensors, allocated on a GPU or counted without one.
    counted_bytes
        Peak predicted by tensor sizes and network.
    """

    stage: int
    work: str
    measured_bytes: int
    counted_bytes: int

    @property
    def offset(self) -> float:
        """Logarithm of measured over predicted bytes, clipped to ``LARGEST_OFFSET``."""
        return float(np.clip(np.log(self.measured_bytes / self.counted_bytes), -LARGEST_OFFSET, LARGEST_OFFSET))


def usual_device() -> str:
    """Return ``cuda`` if torch sees a GPU, else ``cpu``."""
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
    Run the rank of the stage with the largest predicted peak, and return its measured and predicted memory.

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


def anchored(memory_constants: MemoryConstants, anchor: Anchor) -> MemoryConstants:
    """Return the memory constants with this measurement, in place of an older measurement of equal work."""
    return replace(memory_constants, anchors={**memory_constants.anchors, anchor.work: anchor.offset})
