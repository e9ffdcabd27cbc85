"""Rule on memory: the plan's predictor is run again for each stage."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import is_number
from pipette_opt.memory.filter import predicted_memory
from pipette_opt.memory.predictor import oom_probability, stack_predictor
from pipette_opt.parallel import ParallelConfig, Placement, RankGrid
from pipette_opt.plans.plan import Plan, StageMemory
from pipette_opt.specs import Instance
from pipette_opt.verify.common import REPRODUCED, on_cluster, same


def accepted_risk(inputs: Mapping[str, Any]) -> float:
    """Return the accepted OOM risk that a plan records; ``InputError`` if it records none."""
    risk = inputs.get("max_oom_risk")
    if not is_number(risk) or not 0 <= risk <= 1:
        raise InputError("inputs.max_oom_risk", f"must be the accepted risk, from 0 to 1, got {risk!r}; solve again.")
    return float(risk)


def stages_memory(
    instance: Instance, config: ParallelConfig, placement: Placement, max_oom_risk: float
) -> tuple[StageMemory, ...]:
    """
    Return the predicted memory of every stage, compared with the smallest GPU that holds the stage.

    Parameters
    ----------
    placement
        Placement with hosts numbered as in the cluster.
    """
    cluster, predictor = instance.cluster, stack_predictor(instance.stack)
    (prediction,) = predicted_memory(instance, predictor, [config], max_oom_risk)
    usable = [predictor.usable_bytes(node.gpu) for node in cluster.nodes]
    stage_of_rank = RankGrid.of(config, placement.order).coordinates()[:, 0]
    stages = range(config.pipeline_model_parallel_size)
    capacity = [min(usable[node] for node in placement.node[stage_of_rank == stage]) for stage in stages]
    risks = oom_probability(prediction, np.array(capacity))
    return tuple(
        StageMemory(
            stage=stage,
            predicted_bytes=int(prediction.predicted_bytes[stage]),
            upper_bytes=int(prediction.upper_bytes[stage]),
            capacity_bytes=capacity[stage],
            oom_probability=float(risks[stage]),
            counted_bytes=int(prediction.counted_bytes[stage]),
            spread=float(prediction.spread[stage]),
            extrapolates=bool(prediction.extrapolates[stage]),
            components=prediction.components_of(stage),
        )
        for stage in stages
    )


def memory_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: predicted, upper and usable memory, OOM risk and extrapolation flag of every stage are reproduced."""
    try:
        again = stages_memory(instance, plan.config, on_cluster(instance, plan), accepted_risk(plan.inputs))
    except InputError as error:
        yield f"the memory cannot be predicted: {error}"
        return
    for found, expected in zip(plan.memory, again, strict=False):  # memory_fits says if stages are missing
        for field in fields(StageMemory):
            recorded, right = getattr(found, field.name), getattr(expected, field.name)
            if field.name == "components":
                yield from _parts_are_reproduced(expected.stage, recorded, right)
            elif not same(recorded, right):
                yield f"stage {expected.stage} has {field.name} {recorded}, but a new prediction gives {right}"


def _parts_are_reproduced(stage: int, recorded: Mapping[str, int], right: Mapping[str, int]) -> Iterator[str]:
    """Each component of a stage's peak is reproduced within a share of the whole."""
    slack = REPRODUCED * sum(right.values())
    for name in sorted({*recorded, *right}):
        if abs(recorded.get(name, 0) - right.get(name, 0)) > slack:
            yield (
                f"stage {stage} has {recorded.get(name, 0)} bytes of {name}, but a new prediction gives "
                f"{right.get(name, 0)}"
            )
