"""What a job loses where its memory is nearly full; how likely that is, others say."""

from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance


def edge_times_s(instance: Instance, config: ParallelConfig) -> tuple[float, float]:
    """
    Seconds in one iteration at the edge of memory, and near it.

    At the edge the stack's ``flush_s`` in every micro-batch, also in those that fill the pipeline, of all stages but
    the last in the mean; near it ``refill_s``.
    """
    stack, pp = instance.stack, config.pipeline_model_parallel_size
    num_microbatches = config.num_microbatches(instance.training.global_batch_size)
    return stack.flush_s * (1.0 - 1.0 / pp) * (num_microbatches + pp - 1), stack.refill_s
