"""Kinds of jobs, by which public runs are counted."""

from dataclasses import replace

from factories import LLAMA_8B, TINY, make_cluster, make_job
from llama_jobs import OTHER_GPU, job

from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.worlds.jobs import GENERATIONS, job_kind
from pipette_opt.worlds.prior import shipped_priors


def test_kinds() -> None:
    """Shape, size, precision and generation; GPUs that nobody measured, or of several kinds, stand for themselves."""
    mixture = replace(LLAMA_8B, num_experts=8, moe_router_topk=2)
    assert job_kind(job()) == "dense, 16 bit, Ampere or older"
    assert job_kind(job("h100-80gb", fp8=True)) == "dense, fp8, Hopper"
    assert job_kind(job("h100-80gb", precision="fp32")) == "dense, fp32, Hopper"
    assert job_kind(replace(job(), model=TINY)) == "dense, small model, 16 bit, Ampere or older"
    assert job_kind(replace(job("gb200"), model=mixture)) == "mixture of experts, 16 bit, Blackwell"
    assert job_kind(make_job(make_cluster(2, kinds=(OTHER_GPU,)), LLAMA_8B)) == "dense, 16 bit, mi300x"
    a100 = read_gpu_catalogue()["a100-80gb"].gpu
    both = make_job(make_cluster(2, kinds=(a100, OTHER_GPU)), LLAMA_8B)
    assert job_kind(both) == "dense, 16 bit, several kinds of GPU"


def test_counted_runs_are_of_kinds_that_jobs_have() -> None:
    """Every counted kind ends with a generation of GPUs, and has a run."""
    counts = shipped_priors().runs
    assert {kind.rsplit(", ", 1)[-1] for kind in counts} == set(GENERATIONS)
    assert min(counts.values()) > 0
