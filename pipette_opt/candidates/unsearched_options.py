"""Launcher options that save time but are not searched, except tensor overlap if the search space includes it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipette_opt.candidates.legality import check_legal
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance, ModelSpec
from pipette_opt.specs.precision import fp8_copies
from pipette_opt.specs.user_buffers import may_have_user_buffers, user_buffers_reach


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsearchedOption:
    """
    Option of Megatron-LM that changes the training.

    Parameters
    ----------
    option
        Option as in a launch script.
    job_fields
        Function that returns the fields of :class:`~pipette_opt.specs.TrainingSpec` that the option sets; ``None`` if
        the job cannot have the option, or has it already.
    goes_with
        Function that returns whether the option has an effect in a configuration of the job.
    condition
        Requirement or cost of the option that the simulated time leaves out.
    """

    option: str
    job_fields: Callable[[Instance], Mapping[str, Any] | None]
    goes_with: Callable[[Instance, ParallelConfig], bool]
    condition: str


def _tensor_overlap(instance: Instance) -> Mapping[str, Any] | None:
    training = instance.training
    can = may_have_user_buffers(training, instance.cluster) and not training.tp_comm_overlap
    return {"tp_comm_overlap": True} if can else None


def _reaches_tensor_group(instance: Instance, config: ParallelConfig) -> bool:
    reached = user_buffers_reach(instance.cluster, config.tensor_model_parallel_size)
    return reached and config.sequence_parallel and not config.tp_comm_overlap


GRAPHED_BESIDE_EXPERTS = ("attn", "moe_router", "moe_preprocess")
"""Parts of a layer with experts that CUDA graphs can launch: shapes of dropless experts change (Megatron's docs)."""


def graph_modules(model: ModelSpec) -> tuple[str, ...]:
    """Return the parts of a layer that CUDA graphs can launch: the whole dense layer, or all but the routed experts."""
    return ("attn", "mlp") if model.num_experts is None else GRAPHED_BESIDE_EXPERTS


def _graphs(instance: Instance, *, with_experts: bool) -> Mapping[str, Any] | None:
    if instance.training.cuda_graph or (instance.model.num_experts is not None) != with_experts:
        return None
    return {"cuda_graph": True, "cuda_graph_modules": graph_modules(instance.model)}


def _narrow_gradients(instance: Instance) -> Mapping[str, Any] | None:
    training = instance.training
    wide = training.precision == "bf16" and training.accumulate_allreduce_grads_in_fp32
    return {"accumulate_allreduce_grads_in_fp32": False} if wide else None


def _fp8(instance: Instance) -> Mapping[str, Any] | None:
    training, peaks = instance.training, [gpu.peak_flops for gpu in instance.cluster.gpu_kinds]
    if training.recipe is not None or training.precision == "fp32" or not all("fp8" in peak for peak in peaks):
        return None
    return {"fp8": True, "fp8_copies": fp8_copies(peaks)}


def _narrow_gather(instance: Instance) -> Mapping[str, Any] | None:
    training = instance.training
    return {"fp8_param_gather": True} if training.recipe is not None and not training.fp8_param_gather else None


def _deepep(instance: Instance) -> Mapping[str, Any] | None:
    if instance.model.num_experts is None or instance.training.moe_token_dispatcher_type == "flex":
        return None
    return {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}


def _expert_overlap(instance: Instance) -> Mapping[str, Any] | None:
    if instance.model.num_experts is None or instance.training.overlap_moe_expert_parallel_comm:
        return None
    return {"overlap_moe_expert_parallel_comm": True}


def _sends_tokens(instance: Instance, config: ParallelConfig) -> bool:
    return config.expert_model_parallel_size > 1


def _any(instance: Instance, config: ParallelConfig) -> bool:
    return True


TENSOR_OVERLAP = "--tp-comm-overlap"
"""Option for tensor overlap, the only option here that a search space may include."""

UNSEARCHED_OPTIONS = (
    UnsearchedOption(
        option=TENSOR_OVERLAP,
        job_fields=_tensor_overlap,
        goes_with=_reaches_tensor_group,
        condition="Transformer Engine inside an NVLink domain; half is hidden, as in public runs",
    ),
    UnsearchedOption(
        option="--cuda-graph-impl local",
        job_fields=partial(_graphs, with_experts=False),
        goes_with=lambda instance, config: config.recompute_granularity != "full",
        condition="memory of the graphs' pools is not counted",
    ),
    UnsearchedOption(
        option=f"--cuda-graph-impl transformer_engine --cuda-graph-scope {' '.join(GRAPHED_BESIDE_EXPERTS)}",
        job_fields=partial(_graphs, with_experts=True),
        goes_with=lambda instance, config: config.recompute_granularity != "full",
        condition="memory of the graphs' pools is not counted",
    ),
    UnsearchedOption(
        option="--grad-reduce-in-bf16",
        job_fields=_narrow_gradients,
        goes_with=_any,
        condition="gradients are summed in 16 bits",
    ),
    UnsearchedOption(
        option="--fp8-format hybrid", job_fields=_fp8, goes_with=_any, condition="products of the layers are in 8 bits"
    ),
    UnsearchedOption(
        option="--fp8-param-gather",
        job_fields=_narrow_gather,
        goes_with=lambda instance, config: config.use_distributed_optimizer,
        condition="weights of the layers are kept in 8 bits only",
    ),
    UnsearchedOption(
        option="--moe-token-dispatcher-type flex",
        job_fields=_deepep,
        goes_with=_sends_tokens,
        condition="needs DeepEP",
    ),
    UnsearchedOption(
        option="--overlap-moe-expert-parallel-comm",
        job_fields=_expert_overlap,
        goes_with=_sends_tokens,
        condition="a second micro-batch is under way in each layer",
    ),
)
"""Options whose effect on time can be estimated."""


UNPRICED_OPTIONS = (
    "--cross-entropy-loss-fusion",
    "--defer-embedding-wgrad-compute",
    "--overlap-p2p-communication-warmup-flush",
)
"""Options of Megatron-LM that may save time in any model, but whose effect is not estimated."""

UNPRICED_OPTIONS_OF_EXPERTS = (
    "--delay-wgrad-compute",
    "--moe-permute-fusion",
    "--moe-router-fusion",
    "--moe-shared-expert-overlap",
)
"""Options that may save time in models with experts, but whose effect is not estimated."""


def unsearched_options(instance: Instance, searched: Collection[str] = ()) -> list[str]:
    """
    Return the options that this job leaves out, although they apply to it and this tool can estimate their effect.

    Options in ``searched`` are not returned.
    """
    possible = (option for option in UNSEARCHED_OPTIONS if option.job_fields(instance) is not None)
    return [option.option for option in possible if option.option not in searched]


def unpriced_options(instance: Instance) -> list[str]:
    """Return the options that apply to this job but are left out, and whose effect this tool cannot estimate."""
    of_experts = () if instance.model.num_experts is None else UNPRICED_OPTIONS_OF_EXPERTS
    has = {option for option, *_ in instance.training.other_arguments or ()}
    return [option for option in (*UNPRICED_OPTIONS, *of_experts) if option not in has]


def with_unsearched_options(instance: Instance, config: ParallelConfig) -> Iterator[tuple[UnsearchedOption, Instance]]:
    """Yield the options that a configuration could have, each with the instance whose training has the option."""
    for option in UNSEARCHED_OPTIONS:
        fields = option.job_fields(instance)
        if fields is None or not option.goes_with(instance, config):
            continue
        try:
            training = replace(instance.training, **fields)
        except ValueError:  # it contradicts another option of the training
            continue
        if not check_legal(instance.model, training, config):
            yield option, replace(instance, training=training)
