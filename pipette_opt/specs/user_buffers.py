"""
Tensor-parallel communication beside products (``--tp-comm-overlap``): who has it, and where it can be.

Transformer Engine sends pieces of a product's input or output through user buffers, which the GPUs of a tensor-parallel
group map into each other's memory: over NVLink, so inside an NVLink domain. Megatron-LM makes them with Transformer
Engine's default type, bf16 (``_initialize_tp_communicators``, ``initialize_ub``).
"""

from pipette_opt.specs.activations import Degrees
from pipette_opt.specs.cluster import ClusterSpec
from pipette_opt.specs.training import TrainingSpec


def has_user_buffers(training: TrainingSpec, config: Degrees) -> bool:
    """Whether tensor-parallel ranks send beside products, be it chosen by the search or given by the job."""
    return config.sequence_parallel and (config.tp_comm_overlap or training.tp_comm_overlap)


def may_have_user_buffers(training: TrainingSpec, cluster: ClusterSpec) -> bool:
    """Whether a job can have user buffers at all: hosts with NVLink, bf16, and layers of Transformer Engine."""
    is_local = ("--transformer-impl", "local") in (training.other_arguments or ())
    return cluster.has_nvlink and training.precision == "bf16" and not is_local


def user_buffers_reach(cluster: ClusterSpec, tensor_model_parallel_size: int) -> bool:
    """Whether a tensor-parallel group of several GPUs is inside an NVLink domain."""
    return 1 < tensor_model_parallel_size <= cluster.scale_up_gpus
