"""What a job loses where its memory is nearly full; how likely that is, others say."""

from pipette_opt.costs.compute import stage_parameters
from pipette_opt.costs.experts import stage_expert_parameters
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance

BILLION = 1e9


def edge_times_s(instance: Instance, config: ParallelConfig) -> tuple[float, float]:
    """
    Seconds in one iteration at the edge of memory, and near it.

    At the edge the stack's ``flush_s`` in every micro-batch, also in those that fill the pipeline, of all stages but
    the last in the mean. Near it ``refill_s_per_billion`` for the parameters of the largest stage's rank.
    """
    stack, pp = instance.stack, config.pipeline_model_parallel_size
    num_microbatches = config.num_microbatches(instance.training.global_batch_size)
    parameters = stage_parameters(instance.model, config) + stage_expert_parameters(instance.model, config)
    return (
        stack.flush_s * (1.0 - 1.0 / pp) * (num_microbatches + pp - 1),
        stack.refill_s_per_billion * float(parameters.max()) / BILLION,
    )
