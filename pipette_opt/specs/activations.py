"""
Bytes of activations that offloading moves to host memory, for each module of a layer (Megatron-Core's module names).

Only large tensors are counted. Statistics of norms, masks and row sums of attention kernels are too small to matter.
"""

from collections.abc import Mapping
from typing import Protocol

from pipette_opt.base.offload import OFFLOAD_MODULES, Offload, offload_of
from pipette_opt.layers.branch import OnRank
from pipette_opt.layers.kinds import LayerKind
from pipette_opt.specs.model import ModelSpec
from pipette_opt.specs.training import TrainingSpec


class Degrees(Protocol):
    """
    Fields of a configuration that activation sizes depend on (:class:`~pipette_opt.parallel.ParallelConfig`
    has them).
    """

    @property
    def tensor_model_parallel_size(self) -> int:
        """Tensor-parallel ranks that share a layer."""

    @property
    def context_parallel_size(self) -> int:
        """Context-parallel ranks that share a sequence."""

    @property
    def micro_batch_size(self) -> int:
        """Sequences in one micro-batch."""

    @property
    def sequence_parallel(self) -> bool:
        """Return whether tensor-parallel ranks also divide norms and dropout, by the tokens of the sequence."""

    @property
    def expert_tensor_size(self) -> int:
        """Ranks that share one expert (expert tensor parallelism)."""

    @property
    def offload(self) -> str | None:
        """Offloading that the search chose, as text such as ``optimizer``; ``None`` to use the job's own offloading."""

    @property
    def tp_comm_overlap(self) -> bool:
        """Return whether the search chose tensor overlap: tensor-parallel ranks send during matrix products."""


def module_inputs(model: ModelSpec, training: TrainingSpec, config: Degrees, kind: LayerKind) -> Mapping[str, float]:
    """
    Return the bytes of inputs that each module of one layer keeps for the backward pass of one micro-batch.

    Keys are the modules of :data:`~pipette_opt.base.offload.OFFLOAD_MODULES` without ``fused_group_mlp``, plus
    ``rest``: inputs of the MLP's products and of its activation. A norm that is fused with the product after it (before
    attention, before a dense MLP) has 0 bytes; its input is counted with that product.
    """
    tokens = config.micro_batch_size * training.seq_length // config.context_parallel_size
    on_rank = OnRank(
        tokens=tokens,
        own_tokens=tokens / (config.tensor_model_parallel_size if config.sequence_parallel else 1),
        tp=config.tensor_model_parallel_size,
        expert_tp=config.expert_tensor_size,
        element=training.parameter_bytes,
        stored=training.parameter_bytes if training.recipe is None else training.recipe.element_bytes,
    )
    found = dict.fromkeys((*OFFLOAD_MODULES, "rest"), 0.0)
    del found["fused_group_mlp"]
    for branch in model.branches(kind):
        found |= branch.module_inputs(on_rank)
    return found


def host_keeps(training: TrainingSpec, config: Degrees) -> Offload:
    """Return what is offloaded to host memory: the configuration's choice, or else the job's options."""
    return training.offload if config.offload is None else offload_of(config.offload)


def moved_bytes(model: ModelSpec, training: TrainingSpec, config: Degrees, kind: LayerKind) -> float:
    """
    Return the bytes that one layer offloads to the host in the forward pass of one micro-batch, and reloads in the
    backward.
    """
    offload = host_keeps(training, config)
    if offload.cpu_offloading_num_layers:
        share = min(offload.cpu_offloading_num_layers / model.num_layers, 1.0)
        return share * sum(module_inputs(model, training, config, kind).values())
    if not offload.offload_modules:
        return 0.0
    inputs = dict(module_inputs(model, training, config, kind))
    inputs["fused_group_mlp"] = inputs["expert_fc1"] + inputs["moe_act"]
    return sum(inputs[name] for name in offload.offload_modules)
