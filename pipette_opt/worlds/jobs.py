"""Kinds of jobs, by which public runs are counted."""

from pipette_opt.specs import ClusterSpec, GpuSpec, Instance, ModelSpec, TrainingSpec
from pipette_opt.worlds.prior import shipped_priors

SMALL = 2048
"""Hidden size below which a model counts as small: kernel launches take a large share of its time. Chosen."""

SMALL_MODEL = ", small model"
"""Words for a small model in the names of job kinds."""

ADAPTERS = ", adapters"
"""Words for a frozen model with adapters in the names of job kinds."""

WIDE, FP4, FP8, FP32 = "16 bit", "fp4", "fp8", "fp32"
"""Precisions of matrix products in the names of job kinds."""


def job_kind(instance: Instance) -> str:
    """Return the kind of a job: dense or experts, model size, precision and GPU generation."""
    generations = {generation_of(gpu) for gpu in instance.cluster.gpu_kinds}
    generation = generations.pop() if len(generations) == 1 else "several generations of GPUs"
    return kind_of(instance.model, kind_precision(instance.training), generation)


def kind_precision(training: TrainingSpec) -> str:
    """Return the precision of a job's matrix products in the name of its kind."""
    narrow = FP4 if training.fp4 else FP8 if training.fp8 else ""
    return narrow or (FP32 if training.precision == FP32 else WIDE)


def kind_of(model: ModelSpec, precision: str, generation: str) -> str:
    """Return the kind of a job, such as ``dense, 16 bit, hopper``."""
    shape = "mixture of experts" if model.num_experts is not None else "dense"
    size = SMALL_MODEL if model.hidden_size < SMALL else ""
    frozen = "" if model.adapters is None else ADAPTERS
    return f"{shape}{size}{frozen}, {precision}, {generation}"


def generation_of(gpu: GpuSpec) -> str:
    """Return the generation of a GPU type; a type without a known generation is its own."""
    return gpu.generation or gpu.kind


def unmeasured_gpus(cluster: ClusterSpec) -> str:
    """Return the GPUs of a cluster whose generation no public run used, such as ``a GPU of generation cdna3``."""
    measured = {kind.rpartition(", ")[2] for kind in shipped_priors().runs}
    found = [gpu for gpu in cluster.gpu_kinds if gpu.generation not in measured]
    return " and ".join(dict.fromkeys(map(_unmeasured, found)))


def _unmeasured(gpu: GpuSpec) -> str:
    if gpu.generation:
        return f"a GPU of generation {gpu.generation}"
    return f"{gpu.kind}, a GPU without `generation` in the cluster file"
