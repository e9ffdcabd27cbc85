"""
Tensor overlap (``--tp-comm-overlap``): which jobs use it, and which clusters allow it.

Transformer Engine sends parts of a matrix product's input or output through user buffers. The GPUs of a tensor-parallel
group map these buffers into each other's memory over NVLink. The group must be inside an NVLink domain. Megatron-LM
allocates the buffers with Transformer Engine's default type, bf16 (``_initialize_tp_communicators``,
``initialize_ub``).
"""

from pipette_opt.specs.activations import Degrees
from pipette_opt.specs.cluster import ClusterSpec
from pipette_opt.specs.training import TrainingSpec


def has_user_buffers(training: TrainingSpec, config: Degrees) -> bool:
    """Return whether tensor-parallel ranks send during matrix products, by the search's choice or the job's option."""
    return config.sequence_parallel and (config.tp_comm_overlap or training.tp_comm_overlap)


def may_have_user_buffers(training: TrainingSpec, cluster: ClusterSpec) -> bool:
    """Return whether a job can use user buffers: hosts with NVLink, bf16, and layers of Transformer Engine."""
    is_local = ("--transformer-impl", "local") in (training.other_arguments or ())
    return cluster.has_nvlink and training.precision == "bf16" and not is_local


def user_buffers_reach(cluster: ClusterSpec, tensor_model_parallel_size: int) -> bool:
    """Return whether a tensor-parallel group has several GPUs and fits an NVLink domain."""
    return 1 < tensor_model_parallel_size <= cluster.scale_up_gpus
