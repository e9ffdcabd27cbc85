"""Tokens of a micro-batch on a rank, and bytes of activations that offloading moves to host memory."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pipette_opt.base.offload import Offload, offload_of
from pipette_opt.layers.branch import OnRank
from pipette_opt.layers.kinds import LayerKind
from pipette_opt.specs.model import ModelSpec
from pipette_opt.specs.training import TrainingSpec


class Degrees(Protocol):
    """Fields of a :class:`~pipette_opt.parallel.ParallelConfig` that activation sizes depend on."""

    @property
    def tensor_model_parallel_size(self) -> int:
        """Tensor-parallel ranks that share a layer."""

    @property
    def context_parallel_size(self) -> int:
        """Context-parallel ranks that share a sequence."""

    @property
    def context_a2a_size(self) -> int:
        """Consecutive ranks of a context group that exchange heads by all-to-all."""

    @property
    def micro_batch_size(self) -> int:
        """Sequences in one micro-batch."""

    @property
    def sequence_parallel(self) -> bool:
        """Return whether tensor-parallel ranks also divide norms and dropout, by the tokens of the sequence."""

    @property
    def expert_model_parallel_size(self) -> int:
        """Ranks that the experts are spread over."""

    @property
    def expert_tensor_size(self) -> int:
        """Ranks that share one expert (expert tensor parallelism)."""

    @property
    def offload(self) -> str | None:
        """Offloading that the search chose, as text such as ``optimizer``; ``None`` to use the job's own offloading."""

    @property
    def tp_comm_overlap(self) -> bool:
        """Return whether the search chose tensor overlap: tensor-parallel ranks send during matrix products."""


def largest_micro_batch_tokens(training: TrainingSpec, config: Degrees) -> int:
    """Return the tokens of the largest micro-batch in a rank's products, with sequence-parallel parts gathered."""
    tokens: int = _tokens(training, config.micro_batch_size, config.context_parallel_size)
    return tokens


def micro_batch_tokens(training: TrainingSpec, config: Degrees) -> int:
    """Return the mean tokens of a micro-batch in a rank's products, with sequence-parallel parts gathered."""
    if training.documents is None:
        return largest_micro_batch_tokens(training, config)
    tokens = training.sequence_tokens(config.micro_batch_size) * config.micro_batch_size
    return max(1, round(float(tokens) / config.context_parallel_size))


def attended_tokens(training: TrainingSpec, config: Degrees) -> float:
    """Return the mean tokens of a micro-batch that fused attention of a rank computes: those without padding."""
    if training.documents is None:
        return micro_batch_tokens(training, config)
    sequences = training.global_batch_size / config.micro_batch_size
    return training.tokens / sequences / config.context_parallel_size


def tokens_of_rank(training: TrainingSpec, config: Degrees) -> int:
    """Return the mean tokens of a micro-batch that a rank holds outside products, routes, and sends to a stage."""
    return max(1, micro_batch_tokens(training, config) // sequence_shards(config))


def sequence_shards(config: Degrees) -> int:
    """Return the number of ranks that divide a micro-batch's tokens outside of matrix products."""
    return config.tensor_model_parallel_size if config.sequence_parallel else 1


def exchange_ranks(training: TrainingSpec, config: Degrees) -> int:
    """
    Return the number of consecutive ranks of a context group that exchange heads by all-to-all; 1 without exchange.

    The ranks at equal places of these parts form the rings of keys and values, ``context_parallel_size`` over the
    result long.
    """
    return config.context_parallel_size if training.cp_comm_type == "a2a" else config.context_a2a_size


def _tokens(training: TrainingSpec, micro_batch_size: Any, context_parallel_size: Any) -> Any:
    """Return the tokens of the largest micro-batch on a rank of context parallelism; sizes are numbers or arrays."""
    return training.seq_length * micro_batch_size // context_parallel_size


def on_rank(training: TrainingSpec, number_of: Callable[[str], Any]) -> OnRank:
    """
    Return the part of a micro-batch that one tensor rank works on.

    Parameters
    ----------
    number_of
        Function that returns a field of :class:`Degrees`: a number, or an array with a number for each configuration.
    """
    tp, cp, ranks = (number_of(f"{name}_parallel_size") for name in ("tensor_model", "context", "expert_model"))
    sizes, place = np.unique(ranks, return_inverse=True)
    return OnRank(
        training=training,
        tokens=_tokens(training, number_of("micro_batch_size"), cp),
        shards=np.where(number_of("sequence_parallel"), tp, 1),
        tp=tp,
        cp=cp,
        expert_ranks=ranks,
        expert_tp=number_of("expert_tensor_size"),
        imbalance=np.array([training.imbalance(int(size)) for size in sizes])[place],
    )


def host_keeps(training: TrainingSpec, config: Degrees) -> Offload:
    """Return what is offloaded to host memory: the configuration's choice, or else the job's options."""
    return training.offload if config.offload is None else offload_of(config.offload)


def moved_bytes(model: ModelSpec, training: TrainingSpec, config: Degrees, kind: LayerKind) -> float:
    """Return the bytes that a layer offloads to the host in a micro-batch's forward, and reloads in its backward."""
    offload = host_keeps(training, config)
    if not offload.cpu_offloading_num_layers and not offload.offload_modules:
        return 0.0
    rank = on_rank(training, lambda name: getattr(config, name))._replace(tokens=micro_batch_tokens(training, config))
    return float(np.sum(offloaded_bytes(model, kind, rank, offload)))


def offloaded_bytes(model: ModelSpec, kind: LayerKind, rank: OnRank, offload: Offload) -> Any:
    """Return the bytes of a layer's kept tensors that offloading moves; of whole layers, a share for each layer."""
    inputs = [tensor for branch in model.branches(kind) for tensor in branch.kept(rank) if tensor.module is not None]
    if offload.cpu_offloading_num_layers:
        share = min(offload.cpu_offloading_num_layers / model.num_layers, 1.0)
        return share * sum(tensor.size for tensor in inputs)
    modules = set(offload.offload_modules)
    if "fused_group_mlp" in modules:
        modules |= {"expert_fc1", "moe_act"}
    return sum(tensor.size for tensor in inputs if tensor.module in modules)
