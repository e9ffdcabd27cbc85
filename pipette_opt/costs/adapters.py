"""Time of low-rank adapters beside the frozen matrices of a layer."""

from pipette_opt.costs.products import plain_format, product_times_s
from pipette_opt.layers.adapters import adapted
from pipette_opt.layers.branch import Branch
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, StackSpec, TrainingSpec
from pipette_opt.specs.activations import micro_batch_tokens, tokens_of_rank


def adapters_s(
    branch: Branch, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> tuple[float, float]:
    """
    Return the forward and backward time of a branch's adapters for one micro-batch, seconds.

    Each adapter has two products in 16 bits, both with gradients of weights. Forward it reads and writes the outputs of
    the frozen matrix five times: its own outputs are scaled and added. Backward it scales their gradient, and adds its
    gradient of the inputs: twice the outputs, three times the inputs (``Linear.forward`` of PEFT's LoRA).
    """
    model, adapters, tp = branch.model, branch.model.adapters, config.tensor_model_parallel_size
    forward = backward = 0.0
    form = plain_format(gpu, training, rates)
    for product, count in adapted(branch):
        assert adapters is not None
        if count == 1:
            tokens, local = micro_batch_tokens(training, config), 1
            outputs, inputs = product.on_rank(tp)
        else:
            local = max(count // config.expert_model_parallel_size, 1)
            arrived = tokens_of_rank(training, config) * model.moe_router_topk
            tokens = max(1, round(arrived * training.imbalance(config.expert_model_parallel_size) / local))
            outputs, inputs = product.on_rank(config.expert_tensor_size)
        for n, k in ((adapters.rank, inputs), (outputs, adapters.rank)):
            times = product_times_s(
                tokens, n, k, form=form, gpu=gpu, rates=rates, gradient_bytes=training.gradient_bytes, count=local
            ).passes_s
            forward, backward = forward + times[0], backward + times[1]
        stream = local * tokens * training.parameter_bytes / (gpu.memory_bytes_per_s * rates.streaming)
        forward += 5.0 * outputs * stream
        backward += (2.0 * outputs + 3.0 * inputs) * stream
    return forward, backward
