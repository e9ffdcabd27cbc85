"""What a plan records of its job, and the refusal of whatever a target cannot say."""

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

from pipette_opt.base.errors import InputError
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.recorded import recorded_spec

T = TypeVar("T")


def recorded_model(plan: Plan) -> ModelSpec:
    """The model, from the plan's inputs; ``InputError`` if it is not there."""
    return _recorded(plan, "model", ModelSpec)


def recorded_training(plan: Plan) -> TrainingSpec:
    """
    The training, from the plan's inputs; ``InputError`` if it is not there.

    No plan is made for FlashAttention 2 in place of a GPU's faster kernels; earlier ones recorded 2 for all of them.
    """
    training = _recorded(plan, "training", TrainingSpec)
    return replace(training, flash_version=3) if training.flash_version == 2 else training


SOLVE_OPTIONS = {
    "context_parallel_size": "--context-parallel 1",
    "expert_model_parallel_size": "--expert-parallel 1",
    "virtual_pipeline_model_parallel_size": "--virtual-pipeline 1",
    "recompute_granularity": "--recompute none,full",
    "recompute_method": "--recompute none,full",
    "offload": "--offload none",
    "tp_comm_overlap": "--no-tp-comm-overlap",
    "overlap_grad_reduce": "--no-overlap-grad-reduce",
    "overlap_param_gather": "--no-overlap-param-gather",
}
"""Options of ``solve`` that give a plan without what a target cannot say, by field of a configuration."""

ASSUMED = (
    "expert_imbalance",
    "rank_imbalances",
    "expert_placement",
    "unequal_microbatches",
    "other_arguments",
    "fp8_copies",
)
"""
Fields that say what is assumed of a run, or checked for every target, and words of Megatron-LM, which the plan's notes
have; nothing sets them.
"""


def refuse_unsaid(target: str, spec: Any, said: Collection[str]) -> None:
    """
    Raise ``InputError`` for a field with another value than its default that a target's export does not write.

    Parameters
    ----------
    spec
        A configuration, a model or a training: a dataclass.
    said
        Fields that the target expresses, or checks itself.
    """
    unsaid = [
        field
        for field in fields(spec)
        if field.name not in (*said, *ASSUMED)
        and field.default is not MISSING
        and getattr(spec, field.name) != field.default
    ]
    if not unsaid:
        return
    first, names = unsaid[0], [field.name for field in unsaid]
    others = [f"{name}={getattr(spec, name)!r}" for name in names[1:]]
    that = f"that, nor for {', '.join(others)}" if others else "that"
    options = [SOLVE_OPTIONS[name] for name in names if name in SOLVE_OPTIONS]
    hint = f" Solve with {' '.join(options)}." if options and isinstance(spec, ParallelConfig) else ""
    problem = f"is {getattr(spec, first.name)!r}; an export for {target} has no words for {that}.{hint}"
    raise InputError(first.name, problem)


def tensor_overlap_remark(target: str, config: ParallelConfig) -> str:
    """
    Return what a plan with tensor overlap loses at a target that has no words for it; empty for others.

    Without it the plan is the same but for the time, and takes less memory: it is no reason to refuse.
    """
    if not config.tp_comm_overlap:
        return ""
    return (
        f"The plan's time counts on --tp-comm-overlap, which {target} has no words for: an iteration takes longer.\n"
        "For the best plan without it solve with --no-tp-comm-overlap."
    )


def refuse_async_sends(target: str, plan: Plan) -> None:
    """Raise ``InputError`` if the plan's pipeline counts on sends that nobody waits for."""
    if plan.p2p == "async" and plan.config.pipeline_model_parallel_size > 1:
        raise InputError(
            "p2p", f"the plan assumes sends that are never waited for; {target} waits. Solve with --p2p blocking."
        )


def refuse_second_order(target: str, plan: Plan) -> None:
    """Raise ``InputError`` if the map only comes out right with pipeline ranks numbered before data ranks."""
    config = plan.config
    alike = config.pipeline_model_parallel_size == 1 or config.data_parallel_size == 1
    if plan.placement.order != "tp-cp-ep-dp-pp" and not alike:
        raise InputError(
            "rank_order",
            f"is {plan.placement.order}; {target} numbers data-parallel ranks before pipeline stages. "
            "Export for megatron or nemo.",
        )


def _recorded(plan: Plan, name: str, spec: type[T]) -> T:
    if not isinstance(plan.inputs.get(name), Mapping):
        raise InputError(f"inputs.{name}", "is not in the plan; its fields are needed to write this export.")
    return recorded_spec(spec, plan.inputs[name], f"inputs.{name}")
