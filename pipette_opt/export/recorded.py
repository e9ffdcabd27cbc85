"""Model and training settings recorded in a plan, and refusal of fields that a format cannot express."""

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

from pipette_opt.base.errors import InputError
from pipette_opt.base.typed import typed
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Plan
from pipette_opt.read.optimizer_words import WORDS_OF_TRAINERS
from pipette_opt.specs import ModelSpec, TrainingSpec

T = TypeVar("T")


def recorded_model(plan: Plan) -> ModelSpec:
    """Return the model recorded in the plan; raise ``InputError`` if none is recorded."""
    return _recorded(plan, "model", ModelSpec)


def recorded_training(plan: Plan) -> TrainingSpec:
    """
    Return the training settings recorded in the plan; raise ``InputError`` if none are recorded.

    The installed library chooses FlashAttention 2 or 3, not an option of a format: 2 counts as the default, 3.
    """
    return written_training(_recorded(plan, "training", TrainingSpec))


def written_training(training: TrainingSpec) -> TrainingSpec:
    """Return training settings as formats write them, see :func:`recorded_training`."""
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
"""Options of ``solve`` that avoid a feature, by the field of the configuration that a format may lack."""

ASSUMED = (
    "expert_imbalance",
    "rank_imbalances",
    "unequal_microbatches",
    "packed",
    "documents",
    "other_arguments",
    "fp8_copies",
)
"""Fields that exports never write: assumptions about a run, fields checked elsewhere, and extra arguments."""


def refuse_unwritten(target: str, spec: Any, written: Collection[str]) -> None:
    """
    Raise ``InputError`` for fields that differ from their default but are not written by the format.

    Parameters
    ----------
    spec
        Configuration, model or training settings: a dataclass.
    written
        Fields that the format writes or checks.
    """
    missing = [
        field
        for field in fields(spec)
        if field.name not in (*written, *ASSUMED)
        and field.default is not MISSING
        and getattr(spec, field.name) != field.default
    ]
    if not missing:
        return
    first, names = missing[0], [field.name for field in missing]
    if first.name == "adapters":
        problem = f"gives the plan adapters, which are not written for {target}"
        raise InputError("--finetune", f"{problem}; export with --format accelerate, nemo or rankmap-csv.")
    others = [f"{name}={getattr(spec, name)!r}" for name in names[1:]]
    that = f"that, nor for {', '.join(others)}" if others else "that"
    options = [SOLVE_OPTIONS[name] for name in names if name in SOLVE_OPTIONS]
    hint = f" Solve with {' '.join(options)}." if options and isinstance(spec, ParallelConfig) else ""
    problem = f"is {getattr(spec, first.name)!r}, but {target} has no option for {that}.{hint}"
    raise InputError(first.name, problem)


def tensor_overlap_remark(target: str, config: ParallelConfig) -> str:
    """
    Return a remark for a plan with tensor overlap if the format has no such option; empty for other plans.

    The plan is not refused: without overlap an iteration takes longer, but less memory.
    """
    if not config.tp_comm_overlap:
        return ""
    return (
        f"The plan's time needs --tp-comm-overlap, which {target} has no option for: an iteration takes longer.\n"
        "For the best plan without it solve with --no-tp-comm-overlap."
    )


OF_OPTIMIZER = ("optimizer", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
"""Fields that trainers of Hugging Face set by arguments of their own, which :func:`optimizer_remark` names."""


def optimizer_remark(training: TrainingSpec) -> str:
    """Return a remark on the optimizer that the user's program has to have; empty for Adam with states in fp32."""
    words = [] if training.optimizer == "adam" else [f"--optim {WORDS_OF_TRAINERS[training.optimizer]}"]
    if training.main_params_dtype == "none":
        words.append("weights that are loaded and stepped in bfloat16, without copies in fp32")
    return f"Optimizer as the plan has it: {', and '.join(words)}." if words else ""


def refuse_async_sends(target: str, plan: Plan) -> None:
    """Raise ``InputError`` if the plan assumes asynchronous pipeline sends."""
    if plan.p2p == "async" and plan.config.pipeline_model_parallel_size > 1:
        raise InputError(
            "p2p", f"is async, but {target} waits for pipeline sends; set p2p to blocking in its job file."
        )


def refuse_second_order(target: str, plan: Plan) -> None:
    """Raise ``InputError`` if the plan's rank order puts pipeline stages before replicas."""
    config = plan.config
    alike = config.pipeline_model_parallel_size == 1 or config.data_parallel_size == 1
    if plan.placement.order != "tp-cp-ep-dp-pp" and not alike:
        raise InputError(
            "rank_order",
            f"is {plan.placement.order}, but {target} numbers data-parallel ranks before pipeline stages. "
            "Export for megatron or nemo.",
        )


def _recorded(plan: Plan, name: str, spec: type[T]) -> T:
    if not isinstance(plan.inputs.get(name), Mapping):
        raise InputError(
            f"inputs.{name}", "is missing in the plan, but this export needs it; solve again with this version."
        )
    return typed(spec, plan.inputs[name], f"inputs.{name}", closed=True)
