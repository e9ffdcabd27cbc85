"""Kinds of jobs, by which public runs are counted."""

from dataclasses import replace

from factories import LLAMA_8B, TINY, make_cluster, make_job
from llama_jobs import OTHER_GPU, job

from pipette_opt.read.gpus import gpu_generations, read_gpu_catalogue
from pipette_opt.worlds.jobs import job_kind, unmeasured_gpus
from pipette_opt.worlds.prior import shipped_priors


def test_kinds() -> None:
    """Shape, size, precision and generation; a GPU without generation stands for itself."""
    mixture = replace(LLAMA_8B, num_experts=8, moe_router_topk=2)
    assert job_kind(job()) == "dense, 16 bit, ampere"
    assert job_kind(job("h100-80gb", fp8=True)) == "dense, fp8, hopper"
    assert job_kind(job("h100-80gb", precision="fp32")) == "dense, fp32, hopper"
    assert job_kind(replace(job("gb200"), training=replace(job().training, fp4=True))) == "dense, fp4, blackwell"
    assert job_kind(replace(job(), model=TINY)) == "dense, small model, 16 bit, ampere"
    assert job_kind(replace(job("gb200"), model=mixture)) == "mixture of experts, 16 bit, blackwell"
    assert job_kind(make_job(make_cluster(2, kinds=(OTHER_GPU,)), LLAMA_8B)) == "dense, 16 bit, mi300x"
    a100 = read_gpu_catalogue()["a100-80gb"].gpu
    both = make_job(make_cluster(2, kinds=(a100, OTHER_GPU)), LLAMA_8B)
    assert job_kind(both) == "dense, 16 bit, several generations of GPUs"


def test_counted_runs_are_of_kinds_that_jobs_have() -> None:
    """Every counted kind ends with a generation of the catalogue, and has a run."""
    counts = shipped_priors().runs
    assert {kind.rsplit(", ", 1)[-1] for kind in counts} <= set(gpu_generations())
    assert min(counts.values()) > 0


def test_gpus_that_no_public_run_used() -> None:
    """The priors have no run on V100 or MI300X; equal generations are named once."""
    gpu = {name: entry.gpu for name, entry in read_gpu_catalogue().items()}
    assert unmeasured_gpus(make_cluster(2, kinds=(gpu["a100-80gb"], gpu["t4"]))) == ""
    strange = (gpu["v100-16gb"], gpu["h100-80gb"], gpu["mi300x"], gpu["v100-32gb"], replace(OTHER_GPU, name="mine"))
    said = "a GPU of generation volta and a GPU of generation cdna3"
    assert unmeasured_gpus(make_cluster(4, kinds=strange[:4])) == said
    said += " and mine, a GPU without `generation` in the cluster file"
    assert unmeasured_gpus(make_cluster(5, kinds=strange)) == said
