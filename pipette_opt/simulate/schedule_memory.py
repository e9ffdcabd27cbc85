"""Memory of stages under a schedule other than 1F1B."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pipette_opt.memory.filter import predicted_memory
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.predictor import MemoryPredictor, oom_probability
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.schedule import Schedule, max_in_flight
from pipette_opt.plans.plan import StageMemory
from pipette_opt.specs import Instance


def schedule_memory(
    memory: tuple[StageMemory, ...],
    instance: Instance,
    config: ParallelConfig,
    schedule: Schedule,
    predictor: MemoryPredictor,
    max_oom_risk: float,
) -> tuple[StageMemory, ...]:
    """
    Return the stages' memory with a schedule's activations in flight.

    ``memory`` is that of 1F1B. The fraction of activations comes from the memory formula; the rest of the prediction
    stays.
    """
    table = stage_table(instance.model, instance.training, [config])
    formula = formula_bytes(table)
    saved = np.asarray(formula.saved) * (max_in_flight(schedule) / np.asarray(table.in_flight) - 1.0)
    grown = 1.0 + saved / np.asarray(formula.total)
    (prediction,) = predicted_memory(instance, predictor, [config], max_oom_risk)
    predicted = np.ceil(np.array([before.predicted_bytes for before in memory]) * grown)
    capacity = np.array([before.capacity_bytes for before in memory])
    risks = oom_probability(replace(prediction, predicted_bytes=predicted), capacity)
    return tuple(
        replace(
            before,
            predicted_bytes=int(predicted[stage]),
            upper_bytes=int(np.ceil(before.upper_bytes * grown[stage])),
            oom_probability=float(risks[stage]),
            components=_with_activations(before.components, int(predicted[stage]) - before.predicted_bytes),
        )
        for stage, before in enumerate(memory)
    )


def _with_activations(components: Mapping[str, int], more_bytes: int) -> dict[str, int]:
    """Return the parts of a peak with ``more_bytes`` added to the activations; empty if the parts are not known."""
    return {name: size + more_bytes * (name == "activations") for name, size in components.items()}
