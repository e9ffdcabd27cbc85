"""Configuration in which a tensor group is a whole host, for the prices of slices and of unequal replicas."""

from pipette_opt.base.errors import InputError
from pipette_opt.candidates.legality import check_legal
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance


def whole_host_config(instance: Instance) -> ParallelConfig:
    """
    Return a configuration with all layers on one host as a tensor group, and a micro-batch of one sequence.

    Raises
    ------
    InputError
        If hosts differ in GPU type or speed, or the model cannot be split over the GPUs of a host.
    """
    cluster = instance.cluster
    if len(cluster.gpu_kinds) > 1:
        kinds = ", ".join(gpu.name for gpu in cluster.gpu_kinds)
        raise InputError(
            "--cluster", f"must have hosts of one kind and speed, got {kinds}; --exclude-hosts leaves out."
        )
    tp = cluster.gpus_per_node
    config = ParallelConfig(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=1,
        data_parallel_size=1,
        micro_batch_size=1,
        layers_per_stage=(instance.model.num_layers,),
        sequence_parallel=tp > 1,
    )
    if reasons := check_legal(instance.model, instance.training, config):
        problem = f"cannot be split over the {tp} GPUs of a host, which are one tensor group here: {reasons[0]}"
        raise InputError("--model", f"{instance.model.name} {problem}.")
    return config
