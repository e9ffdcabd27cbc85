"""Llama 3 8B on GPUs of the catalogue, and on a GPU that nobody measured."""

from dataclasses import replace

from factories import LLAMA_8B, make_cluster, make_job

from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.specs import GpuSpec, Instance

OTHER_GPU = GpuSpec(name="mi300x", memory_bytes=10**11, peak_flops={"bf16": 1e15}, memory_bytes_per_s=5e12)
"""A kind of GPU of which no run was measured."""


def job(gpu: str = "a100-80gb", **training: object) -> Instance:
    """Llama 3 8B on two hosts of a GPU from the catalogue."""
    given = make_job(make_cluster(2, kinds=(read_gpu_catalogue()[gpu].gpu,)), LLAMA_8B)
    return replace(given, training=replace(given.training, **training))
