"""Kinds of jobs, by which public runs are counted."""

from pipette_opt.specs import Instance, ModelSpec
from pipette_opt.worlds.terms import AMPERE, BLACKWELL, HOPPER

SMALL = 2048
"""Hidden size below which a model counts as small: kernel launches take a large share of its time. Chosen."""

WIDE, FP8, FP32 = "16 bit", "fp8", "fp32"
"""Precisions of matrix products in the names of job kinds."""

GENERATIONS = {"Ampere or older": ("v100", "t4", "l4", *AMPERE), "Hopper": HOPPER, "Blackwell": BLACKWELL}
"""GPU families by generation; a family is the part of a catalogue name before the first hyphen."""


def job_kind(instance: Instance) -> str:
    """Return the kind of a job: dense or experts, model size, precision and GPU generation."""
    gpus = [kind.name for kind in instance.cluster.gpu_kinds]
    training = instance.training
    precision = FP8 if training.fp8 else FP32 if training.precision == FP32 else WIDE
    return kind_of(instance.model, precision, gpus[0] if len(gpus) == 1 else "several kinds of GPU")


def kind_of(model: ModelSpec, precision: str, gpu: str) -> str:
    """Return the kind of a job, such as ``dense, 16 bit, Hopper``; a GPU without runs is its own generation."""
    family = gpu.lower().split("-")[0]
    generation = next((name for name, families in GENERATIONS.items() if family in families), gpu)
    shape = "mixture of experts" if model.num_experts is not None else "dense"
    size = ", small model" if model.hidden_size < SMALL else ""
    return f"{shape}{size}, {precision}, {generation}"
