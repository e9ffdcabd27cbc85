"""
Single changes of a configuration: those that differ in one degree, the micro-batch, the chunks or the recomputation.

They are tried whatever a short time limit narrowed, and beyond the default limits of the search space. Options that the
user pinned stay as they are. Layers per stage are free, and so is the number of replicas, as other degrees change it.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations as subsets
from typing import Any

from pipette_opt.base.degrees import CONTEXT, DATA, DEGREES, EXPERT_TENSOR, TENSOR
from pipette_opt.base.types import Recomputation
from pipette_opt.candidates.space import RECOMPUTATIONS, SearchSpace
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.recompute import OPERATIONS, RECOMPUTE_MODULES, known_word
from pipette_opt.specs import Instance
from pipette_opt.specs.stack import ON_MEGATRON_CORE


def every_recomputation(instance: Instance) -> tuple[Recomputation | None, ...]:
    """
    Return every choice of recomputation, with every set of the modules that a model has.

    Megatron-Core has no recomputation by operation.
    """
    model, operations = instance.model, () if instance.stack.family in ON_MEGATRON_CORE else OPERATIONS
    branches = [branch for kind in dict.fromkeys(model.layers) for branch in model.branches(kind)]
    held = {"core_attn", *(name for branch in branches for name in branch.modules)}
    held |= {"layernorm"} if any(branch.has_own_norm for branch in branches) else set()
    held |= {"moe_act", "moe"} if model.num_experts is not None else set()
    modules = [name for name in RECOMPUTE_MODULES if name in held]
    sets = (chosen for number in range(1, len(modules) + 1) for chosen in subsets(modules, number))
    return tuple(dict.fromkeys((*RECOMPUTATIONS, *operations, *(known_word("+".join(chosen)) for chosen in sets))))


def choices(config: ParallelConfig) -> dict[str, Any]:
    """Return the choices of a configuration that change singly, as values of the fields of a search space."""
    degrees = {degree.option: (getattr(config, degree.number),) for degree in DEGREES if degree != DATA}
    return {**degrees, "recompute": (config.recomputation,)}


def open_choices(space: SearchSpace) -> list[str]:
    """Return the fields of a search space that change singly and that the user left open."""
    return [
        name
        for name in (*(degree.option for degree in DEGREES if degree != DATA), "recompute")
        if _is_open(space, name)
    ]


def single_changes(instance: Instance, space: SearchSpace) -> Iterator[SearchSpace]:
    """Yield a search space for each open choice of each configuration in ``space.near``; all other choices are kept."""
    for config in space.near:
        kept = choices(config)
        for name in open_choices(space):
            yield _changed(instance, space, config, kept, name)


def _is_open(space: SearchSpace, name: str) -> bool:
    """Return whether the user left a field open."""
    value = getattr(space, name)
    return value == RECOMPUTATIONS if name == "recompute" else value is None or name in space.narrowed


def _changed(
    instance: Instance, space: SearchSpace, config: ParallelConfig, kept: dict[str, Any], name: str
) -> SearchSpace:
    """Return the space of the configurations that differ from ``config`` in the field ``name`` only."""
    values: dict[str, Any] = {**kept, name: every_recomputation(instance) if name == "recompute" else None}
    if name in (TENSOR.option, CONTEXT.option) and _is_open(space, EXPERT_TENSOR.option):
        values[EXPERT_TENSOR.option] = None  # by default it is the tensor size
    most = {
        "max_micro_batch_size": instance.training.global_batch_size // config.data_parallel_size,
        # The embedding and the output head may count as a layer each.
        "max_virtual_pipeline": (instance.model.num_layers + 2) // config.pipeline_model_parallel_size,
    }
    default = SearchSpace()
    for limit, number in most.items():
        if getattr(space, limit) == getattr(default, limit):
            values[limit] = max(number, 1)
    return replace(
        space,
        **values,
        num_gpus=config.world_size,
        world_sizes=(),
        more_splits=(*space.more_splits, config.layers_per_stage),
        more_configs=(),
        more_recompute=(),
        near=(),
        narrowed=(),
    )
