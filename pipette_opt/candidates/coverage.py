"""Coverage of a search space: values of its legal configurations, and choices of the job that it leaves out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipette_opt.base.degrees import CONTEXT_A2A, DEGREES, EXPERT, EXPERT_TENSOR
from pipette_opt.base.units import counted
from pipette_opt.candidates.enumeration import Enumeration
from pipette_opt.candidates.space import OF_EXPERTS, RECOMPUTATIONS, SearchSpace
from pipette_opt.candidates.unsearched_options import TENSOR_OVERLAP, unpriced_options, unsearched_options
from pipette_opt.specs import Instance

DIMENSIONS: Mapping[str, str] = {
    "num_gpus": "world_size",
    **{degree.option: degree.number for degree in DEGREES},
    "sequence_parallel": "sequence_parallel",
    "use_distributed_optimizer": "use_distributed_optimizer",
    "data_parallel_sharding_strategy": "data_parallel_sharding_strategy",
    "num_distributed_optimizer_instances": "num_distributed_optimizer_instances",
    "recompute": "recomputation",
    "offload": "offload",
    "tp_comm_overlap": "tp_comm_overlap",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
}
"""Field of the search space, and the property of a configuration that has its value."""

NEVER_SEARCHED = ("hosts that hold unequal parts of the grid",)
"""Choices that no search space contains, whatever the job."""

UNPINNED_BY_DEFAULT = (
    "num_gpus",
    "recompute",
    "offload",
    "max_micro_batch_size",
    "max_virtual_pipeline",
    "uneven_layers",
)
"""Fields of the search space that :func:`left_out` describes separately, not as a pinned value."""


def layers_are_free(instance: Instance, space: SearchSpace) -> bool:
    """Return whether layers per stage are open: neither given by the user nor restricted to even stages."""
    return space.layers_per_stage is None and space.uneven_layers


def searched_values(instance: Instance, enumeration: Enumeration) -> dict[str, tuple[Any, ...]]:
    """Return the values of each dimension of the search space that legal configurations have."""
    names = dict(DIMENSIONS)
    if instance.model.num_experts is None:
        del names[EXPERT.option], names[EXPERT_TENSOR.option]
    if instance.training.cp_comm_type != "a2a+p2p":
        del names[CONTEXT_A2A.option]
    if enumeration.values("offload") == (None,):
        del names["offload"]
    if enumeration.values("tp_comm_overlap") == (False,):
        del names["tp_comm_overlap"]
    return {name: enumeration.values(field) for name, field in names.items()}


SCOPE = (
    "the judge's time (critical path of the real schedule) of every configuration searched and every packing of whole "
    "hosts by equal rectangles of the (stage, replica) grid"
)
"""Text of every certificate: the time that is proven, and the configurations and placements that it covers."""

SCOPE_OF_EXPERTS = "; expert-parallel groups that span hosts are bounded over the best links and timed by the judge"
"""Text added for models with experts."""


def covered(instance: Instance, missing: Sequence[str] = ()) -> str:
    """Return the text of what a certificate covers; ``missing`` lists what it does not cover, see :func:`left_out`."""
    scope = SCOPE if instance.model.num_experts is None else SCOPE + SCOPE_OF_EXPERTS
    return f"{scope}. Not searched: {'; '.join(missing)}." if missing else scope


def left_out(
    instance: Instance, space: SearchSpace, enumeration: Enumeration, *, any_split: bool = False
) -> tuple[str, ...]:
    """
    Return the choices of the job that the search space leaves out, each as a short text.

    Parameters
    ----------
    any_split
        Whether the joint CP-SAT model covered every number of layers per stage.
    """
    return tuple(dict.fromkeys(_left_out(instance, space, enumeration, any_split)))


def _left_out(instance: Instance, space: SearchSpace, enumeration: Enumeration, any_split: bool) -> Iterator[str]:
    cluster, values = instance.cluster, searched_values(instance, enumeration)
    near = f" but for single changes of {counted(len(space.near), 'plan')}" if space.near else ""
    searched = listed(enumeration.world_sizes)
    if "world_sizes" in space.narrowed:
        yield f"numbers of GPUs other than {searched} (left out for the time limit)"
    elif space.num_gpus is not None or (cluster.num_nodes > 1 and not space.world_sizes):
        yield f"other numbers of GPUs than {searched}"
    elif space.num_gpus is None and cluster.gpus_per_node > 1:
        yield "numbers of GPUs that do not fill whole hosts"
    for name in DIMENSIONS:
        pinned = getattr(space, name)
        if pinned is not None and name not in UNPINNED_BY_DEFAULT and name in values:
            given = pinned if isinstance(pinned, tuple) else (pinned,)
            is_narrowed = name in space.narrowed
            why = "left out for the time limit" if is_narrowed else "pinned"
            yield f"{_words(name)} other than {listed(given)}{near if is_narrowed else ''} ({why})"
    if space.pipelined_sharding is not None:
        yield f"sharding of pipelines other than {listed(space.pipelined_sharding)} (pinned)"
    if "optim" not in space.outer_dp_sharding_strategy:
        yield "optimizer states that groups of replicas share (pinned)"
    if space.needs_replicas:
        yield "stages or tensor ranks without replicas"
    if set(space.recompute) != set(RECOMPUTATIONS):
        yield f"recomputation other than {listed(space.recompute)} (pinned)"
    else:
        modules = (*(OF_EXPERTS if instance.model.num_experts is not None else ()), *space.more_recompute)
        tried = f" than {listed(modules)}" if modules else " than the attention core"
        yield f"recomputation of other modules{tried}{near}"
    unequal = len({node.gpu.memory_bytes for node in cluster.nodes}) > 1
    if "block" in space.recompute and unequal:
        yield "more recomputed layers than memory requires"
    if space.offload is not None:
        yield f"offloading to the host other than {listed(space.offload)}"
        if unequal:
            yield "more offloading to the host than memory requires"
    elif instance.training.offload.is_nothing:
        yield "offloading of optimizer states or activations to the host (--offload)"
    if space.layers_per_stage is not None:
        yield "layers per stage other than those given (pinned)"
    elif not space.uneven_layers:
        yield "uneven layers per stage"
    elif not any_split:
        yield "uneven layers per stage other than lighter ends"
    if space.micro_batch_size is None and instance.training.global_batch_size > space.max_micro_batch_size:
        yield f"micro-batches above {space.max_micro_batch_size}{near}"
    if space.virtual_pipeline is None and max(values["pipeline_parallel"], default=1) > 1:
        yield f"more than {space.max_virtual_pipeline} model chunks per stage{near}"
    if space.context_parallel is None and cluster.num_nodes > 1:
        yield "context parallelism of tensor groups over hosts"
    if instance.model.num_experts is not None and cluster.num_nodes > 1:
        yield "tensor groups of models with experts over hosts"
    if space.sequence_parallel is None and max(values["tensor_parallel"], default=1) > 1:
        yield "tensor parallelism without sequence parallelism"
    is_free = space.use_distributed_optimizer is None and space.data_parallel_sharding_strategy is None
    if is_free and max(values["data_parallel"], default=1) > 1:
        yield "replicas without the distributed optimizer"
    if space.data_parallel_sharding_strategy is None and max(values["data_parallel"], default=1) > 1:
        other = f" other than {listed(space.more_sharding)}" if space.more_sharding else ""
        if not other and any(config.sharding_stage > 2 for config in space.more_configs):
            other = " other than ZeRO 3 alone"
        yield f"ZeRO 2 and 3{other} (--data-parallel-sharding-strategy)"
    if instance.training.unequal_microbatches:
        yield "replicas that differ by more than one micro-batch, or one group of micro-batches"
    if max(values["pipeline_parallel"], default=1) > 1:
        near = f" but for {counted(len(space.more_layouts), 'layout')}" if space.more_layouts else ""
        yield f"unequal model chunks of one stage{near}"
    gives_up = space.tp_comm_overlap is None and "tp_comm_overlap" in values
    if gives_up and unequal:
        yield f"tensor groups without {TENSOR_OVERLAP} where memory allows it"
    options = unsearched_options(instance, () if space.tp_comm_overlap is False else (TENSOR_OVERLAP,))
    if options:
        yield f"options that may save time: {', '.join(options)}"
    unpriced = unpriced_options(instance)
    if unpriced:
        yield f"options whose time is not known: {', '.join(unpriced)}"
    yield from NEVER_SEARCHED


def _words(name: str) -> str:
    return {"use_distributed_optimizer": "distributed optimizer", "num_gpus": "numbers of GPUs"}.get(
        name, name.replace("_", " ")
    )


def listed(values: Iterable[Any]) -> str:
    """Return values as text for people, such as ``none or full`` or ``on or off``."""
    return " or ".join(_value(value) for value in values)


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
