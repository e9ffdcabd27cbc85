"""
Compute of the routed experts of one layer: router, sorting of tokens, and the experts' products as grouped ones.

The router multiplies a rank's own tokens with one column per expert and takes the best ``topk``. A copy of each token
for each of its experts is written in the order of the experts, sorted again by local expert once it has arrived, and
both is undone with the results. Tokens are counted on the host between the two, so nothing hides the router's kernels.
"""

from pipette_opt.costs.experts import expert_block, rows_of_expert, tokens_of_rank
from pipette_opt.costs.products import matmul_time_s, peak_flops
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, ModelSpec, StackSpec, TrainingSpec

EXPERT_KERNELS = 20
"""Launches of one pass that a dense layer does not have: score, choose and count (8), sort and undo it (8), experts."""

ROUTER_PASSES = 6.0
"""Times that the fp32 scores of all experts are read or written: cast, softmax, choice, the map, the load's loss."""


def expert_times_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> tuple[float, float]:
    """Forward and backward of a layer's router and routed experts on the busiest rank, seconds, nothing sent."""
    assert model.num_experts is not None
    peak, element, h = peak_flops(gpu, training), training.parameter_bytes, model.hidden_size
    local = model.num_experts // config.expert_model_parallel_size
    width = model.expert_ffn_size // config.expert_tensor_size
    up = 2 * width if model.gated_linear_unit else width
    rows = rows_of_expert(model, training, config)
    own = tokens_of_rank(training, config)

    def product_s(n: int, k: int) -> float:
        height = max(1, round(rows))
        return matmul_time_s(height, n, k, peak=peak, gpu=gpu, element_bytes=element, rates=rates, count=local)

    router = matmul_time_s(own, model.num_experts, h, peak=peak, gpu=gpu, element_bytes=element, rates=rates)
    products = product_s(up, h) + product_s(h, width) + router
    memory = gpu.memory_bytes_per_s * rates.streaming
    scores = ROUTER_PASSES * own * model.num_experts * 4.0 / memory
    sorted_twice = local > 1 and expert_block(config) > 1
    copied = own * (1.0 + model.moe_router_topk) + (2.0 * local * rows if sorted_twice else 0.0)
    # There and back: each a read and a write of every copy.
    permuted = 2.0 * copied * h * element / memory
    activation = local * rows * (up + width) * element * rates.elementwise / memory
    fixed = EXPERT_KERNELS * rates.kernel_s
    return (
        products + scores + permuted + activation + fixed,
        2.0 * products + scores + permuted + 1.5 * activation + fixed,
    )
