"""Time that a job loses where its memory is nearly full (near-OOM slowdown); ``simulate/fullness.py`` has the risks."""

from pipette_opt.costs.compute import stage_parameters
from pipette_opt.costs.experts import stage_expert_parameters
from pipette_opt.parallel import ParallelConfig, microbatches_of
from pipette_opt.specs import Instance, ModelSpec, TrainingSpec

BILLION = 1e9


def edge_times_s(instance: Instance, config: ParallelConfig) -> tuple[float, float, float]:
    """
    Seconds lost per iteration at the edge of memory; near it; and near it where gradients are freed after each step.

    At the edge: the stack's ``flush_s`` in every micro-batch, including those that fill the pipeline, as mean over all
    stages but the last. Near it: ``refill_s``; with freed gradients ``refill_s_per_billion`` for the parameters of the
    largest stage's rank, times the chance that a job on so many GPUs loses that.
    """
    stack, pp = instance.stack, config.pipeline_model_parallel_size
    num_microbatches = microbatches_of(instance.training, config)
    flushes_s = stack.flush_s * (1.0 - 1.0 / pp) * (num_microbatches + pp - 1)
    regrown_s = 0.0
    if stack.refill_s_per_billion:
        parameters = stage_parameters(instance.model, config) + stage_expert_parameters(instance.model, config)
        regrown_s = stack.refill_s_per_billion * float(parameters.max()) / BILLION
    return flushes_s, stack.refill_s, losing_chance(stack.refill_half_gpus, config.world_size) * regrown_s


def losing_chance(half_gpus: float, num_gpus: int) -> float:
    """
    Chance that a job loses time near full memory: that any of its ranks does, each with the same chance.

    Parameters
    ----------
    half_gpus
        GPUs of a job that loses with a chance of a half; 0: every job does.
    """
    return 1.0 - 0.5 ** (num_gpus / half_gpus) if half_gpus else 1.0


def gradients_outgrow(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> bool:
    """
    Return whether the gradient of a layer's largest matrix fits into no block that activations leave.

    A cached block serves requests up to its size, and blocks from different driver requests are never joined (PyTorch,
    ``CUDACachingAllocator``). Where gradients of ``hidden x ffn / tp`` fit into blocks of activations, they reuse them.
    Otherwise both must exist at once, or go back to the driver and be requested again. The largest blocks of
    activations are the residual stream (tokens times hidden size, divided by the tensor ranks with sequence
    parallelism) and, unless everything is recomputed, the inputs of the MLP's last matrix (tokens times ``ffn / tp``).
    """
    tp = config.tensor_model_parallel_size
    tokens = config.micro_batch_size * training.seq_length / config.context_parallel_size
    split_ffn = model.ffn_hidden_size / tp
    stream = tokens * model.hidden_size / (tp if config.sequence_parallel else 1)
    inner = 0.0 if config.recomputed_per_chunk == config.layers_per_chunk else tokens * split_ffn
    return model.hidden_size * split_ffn > max(stream, inner)
