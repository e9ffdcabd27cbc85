"""
Compute of the routed experts of one layer: router, sorting of tokens, and grouped products of the experts.

The router multiplies a rank's own tokens with one column per expert and takes the best ``topk``. Each token is copied
for each of its experts, in the order of the experts. Received copies are sorted again by local expert, and both sorts
are undone with the results. The ``flex`` dispatcher sends tokens unsorted, and copies them for each expert after they
have arrived. The host counts tokens in between, so nothing hides the router's kernels.

The gradient of an expert's weights has its tokens as inner size, which may be few. It is added to the sum of earlier
micro-batches, read and written in its own format (Megatron-Core's ``gradient_accumulation_fusion``). This takes equally
long for any number of tokens, and with few tokens longer than the product.

The bias of an expert's second product is weighted with each token's probability, so the product does not add it.
Megatron-Core (``TEGroupedMLP._apply_bias`` in ``moe/experts.py``) adds it for one expert after the other and
concatenates the results, in framework operations, each through memory.
"""

from pipette_opt.costs.experts import distinct_shares, local_experts, rows_of_expert
from pipette_opt.costs.products import cast_s, frozen_s, linear_format, plain_format, product_times_s
from pipette_opt.costs.stage import expert_block
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, ModelSpec, StackSpec, TrainingSpec
from pipette_opt.specs.activations import tokens_of_rank

EXPERT_KERNELS = 20
"""
Number of kernel launches of one pass beyond those of a dense layer. Counted.

Scores, choice and counts (8), sorting and back (8), experts (4).
"""

ROUTER_KERNELS, ROUTED_KERNELS = 8, 4
"""
Number of launches of the router, and of the kernels that compute the tokens' destinations. Counted.

CUDA graphs can capture these without the rest.
"""

ROUTER_PASSES = 6.0
"""
Number of times that the router reads or writes the fp32 scores of all experts; counted in Megatron-Core's code.

They are the cast, the softmax, the top-k choice, the routing map, and the load-balancing loss.
"""

SCATTERED_PER_S = 5.8e11
"""
Elements of token copies that a GPU sorts by expert and sums up again in a second, beside the memory traffic.

Kernels that gather rows are bound by their instructions, so faster memory does not help: one constant for L40S, H100,
B200 and GB200. For a GPU left out, TensorRT-LLM's experts are 3 to 13 % off in the median with it, 7 to 44 % without it
(``benchmarks/results/silicon.md``). Megatron-Core's kernels were not measured.
"""

BIAS_PASSES = (6.0, 8.0)
"""
Number of times that all token copies are read or written for biases, forward and backward, in parameter format.
Counted.

Forward: the product is written, read with the results, the sum written, then read and written in one buffer. Backward:
the parts' gradients are concatenated (2); times the probabilities, then summed over tokens (3); times the biases, then
summed over the width (3). With probabilities in fp32 it is more.
"""

BIAS_KERNELS = (2, 4)
"""Launches for the biases of one expert, forward and backward, besides one to concatenate the results. Counted."""


def expert_kernels(model: ModelSpec, config: ParallelConfig) -> int:
    """Return the number of kernel launches of a forward pass beyond those of a dense layer."""
    return EXPERT_KERNELS + (_bias_kernels(model, config)[0] if model.add_bias_linear else 0)


def _bias_kernels(model: ModelSpec, config: ParallelConfig) -> tuple[int, int]:
    local, _ = local_experts(model, config)
    return BIAS_KERNELS[0] * local + 1, BIAS_KERNELS[1] * local + 1


def _copied(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> float:
    """Return the number of tokens and copies that sorting by expert reads and writes on a rank, in one direction."""
    local, _ = local_experts(model, config)
    arrived = local * rows_of_expert(model, training, config)
    if training.moe_token_dispatcher_type == "flex" and config.expert_model_parallel_size > 1:
        return arrived * (1.0 + float(distinct_shares(model, training, config)[1]))
    sorted_twice = local > 1 and expert_block(config) > 1
    return tokens_of_rank(training, config) * (1.0 + model.moe_router_topk) + (2.0 * arrived if sorted_twice else 0.0)


def activation_again_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> float:
    """Return the seconds of the routed experts' activation on the busiest rank, and of the cast of its output."""
    form, (local, width) = linear_format(gpu, training, rates), local_experts(model, config)
    up = 2 * width if model.gated_linear_unit else width
    pairs = local * rows_of_expert(model, training, config)
    moved = pairs * (up + width) * training.parameter_bytes * rates.elementwise
    streamed = moved / (gpu.memory_bytes_per_s * rates.streaming)
    return streamed + cast_s(pairs * width, form, gpu, rates) + rates.kernel_s


def _latent_times_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> tuple[float, float]:
    """
    Return the forward and backward time of projecting a rank's tokens to the experts' width and back, seconds.

    0 if the width is the hidden size. Every tensor rank holds the projections whole (``fc1_latent_proj``,
    ``fc2_latent_proj`` in ``moe/moe_layer.py``).
    """
    latent, h, form = model.moe_latent_size, model.hidden_size, linear_format(gpu, training, rates)
    if latent is None:
        return 0.0, 0.0
    own, found = tokens_of_rank(training, config), []
    for n, k in ((latent, h), (h, latent)):
        times = product_times_s(own, n, k, form=form, gpu=gpu, rates=rates, gradient_bytes=training.gradient_bytes)
        forward, backward = frozen_s(times, n * k, model.adapters, gpu, rates).passes_s
        found.append((forward + cast_s(own * k, form, gpu, rates), backward + cast_s(own * n, form, gpu, rates)))
    return found[0][0] + found[1][0], found[0][1] + found[1][1]


def expert_times_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> tuple[float, float]:
    """
    Return the forward and backward time of a layer's router and routed experts on the busiest rank, seconds.

    Communication is not included.
    """
    assert model.num_experts is not None
    form, element, h = linear_format(gpu, training, rates), training.parameter_bytes, model.expert_hidden_size
    local, width = local_experts(model, config)
    up = 2 * width if model.gated_linear_unit else width
    rows = rows_of_expert(model, training, config)
    own, height = tokens_of_rank(training, config), max(1, round(rows))

    def products_s(n: int, k: int) -> tuple[float, float]:
        """Return the forward and backward time of one grouped product, seconds."""
        times = product_times_s(
            height, n, k, form=form, gpu=gpu, rates=rates, gradient_bytes=training.gradient_bytes, count=local
        )
        return frozen_s(times, local * n * k, model.adapters, gpu, rates).passes_s

    router_times = product_times_s(
        own,
        model.num_experts,
        model.hidden_size,
        form=plain_format(gpu, training, rates),
        gpu=gpu,
        rates=rates,
        gradient_bytes=training.gradient_bytes,
    )
    router = frozen_s(router_times, 0.0, model.adapters, gpu, rates).passes_s
    first, second = products_s(up, h), products_s(h, width)
    latent = _latent_times_s(model, training, config, gpu, rates)
    memory = gpu.memory_bytes_per_s * rates.streaming
    scores = ROUTER_PASSES * own * model.num_experts * 4.0 / memory
    copied = _copied(model, training, config)
    # Sorting and back, each a read or a write of every copy.
    permuted = 2.0 * copied * h * element / memory + own * model.moe_router_topk * h / SCATTERED_PER_S
    activation = local * rows * (up + width) * element * rates.elementwise / memory
    casts = (
        cast_s(local * rows * (h + width), form, gpu, rates),
        cast_s(local * rows * (up + h), form, gpu, rates),
    )
    fixed = EXPERT_KERNELS * rates.kernel_s
    biases = (0.0, 0.0)
    if model.add_bias_linear:
        once = local * rows * h * element / memory
        kernels = _bias_kernels(model, config)
        biases = (
            BIAS_PASSES[0] * once + kernels[0] * rates.kernel_s,
            BIAS_PASSES[1] * once + kernels[1] * rates.kernel_s,
        )
    parts = (latent, first, second, router, biases, casts)
    forward, backward = (sum(part[way] for part in parts) + scores + permuted + fixed for way in (0, 1))
    return forward + activation, backward + 1.5 * activation
