"""
Time of Muon's optimizer step: Newton-Schulz iterations make the momentum of each matrix orthogonal.

One iteration on an ``m x n`` matrix, ``m`` the smaller, is ``X X^T``, its square, and a product with ``X``, together
``4 m^2 n + 2 m^3`` FLOPs (Jordan et al., "Muon", kellerjordan.github.io/posts/muon; Liu et al., arXiv 2502.16982).
Megatron-Core does it on the tensor rank's part of a matrix (``--muon-tp-mode blockwise``; the other modes gather it
first). Replicas share the matrices out, each as a whole (``LayerWiseDistributedOptimizer``). Adam updates embeddings,
head and vectors. Queries, keys and values are matrices of their own (``muon_split_qkv``); the router is one, too,
and the projection of multi-token prediction.
"""

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.costs.experts import local_experts
from pipette_opt.costs.layer_kinds import held_of_kinds
from pipette_opt.costs.products import plain_format
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, LayerKind, ModelSpec, StackSpec, TrainingSpec

ITERATIONS = 5
"""Default number of Newton-Schulz iterations."""


def iterations(training: TrainingSpec) -> int:
    """Return the number of Newton-Schulz iterations: each has the same products (``OptimizerConfig``)."""
    given = training.argument("--muon-num-ns-steps")
    return int(given[0]) if given else ITERATIONS


def orthogonal_flops(rows: float, columns: float) -> float:
    """Return the FLOPs of one matrix with the default number of iterations."""
    small, large = sorted((rows, columns))
    return ITERATIONS * (4.0 * small**2 * large + 2.0 * small**3)


def layer_flops(model: ModelSpec, config: ParallelConfig, kind: LayerKind) -> tuple[float, float]:
    """
    Return the FLOPs of one layer's matrices on one tensor rank: dense matrices, and matrices of its experts.

    Dense matrices are divided among all replicas, matrices of experts among the replicas of experts.
    """
    tp = config.tensor_model_parallel_size
    shapes = [product.on_rank(tp) for branch in model.branches(kind) for product in branch.orthogonal]
    of_experts = 0.0
    if kind.has_experts:
        local, wide = local_experts(model, config)
        gates, h = 2 if model.gated_linear_unit else 1, model.expert_hidden_size
        of_experts = local * (orthogonal_flops(gates * wide, h) + orthogonal_flops(h, wide))
    return sum(orthogonal_flops(n, k) for n, k in shapes), of_experts


def orthogonal_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> FloatArray:
    """Return the seconds of each stage's orthogonalisation, shape ``(pp,)``; 0 for any other optimizer than Muon."""
    seconds = np.zeros(config.pipeline_model_parallel_size)
    if training.optimizer != "muon":
        return seconds
    sharded = config.use_distributed_optimizer
    owners = config.data_parallel_size * config.context_parallel_size if sharded else 1
    of_experts = config.expert_data_parallel_size if sharded else 1
    for kind, layers in held_of_kinds(model, config).items():
        dense, experts = layer_flops(model, config, kind)
        seconds += layers.sum(axis=0) * (dense / owners + experts / of_experts)
    h = model.hidden_size
    projection = orthogonal_flops(h // config.tensor_model_parallel_size, 2 * h)
    seconds[-1] += model.num_own_mtp_layers * projection / owners
    return seconds * (iterations(training) / ITERATIONS) / plain_format(gpu, training, rates).flops_per_s
