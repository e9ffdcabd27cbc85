"""The software stack of a job, by name or by file, and launches of other software."""

from pathlib import Path

import pytest
from factories import LLAMA_8B, make_cluster, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.job.launch import as_trained
from pipette_opt.job.read import Job, read_job
from pipette_opt.options.description import JobOptions
from pipette_opt.read.megatron_args import read_megatron_args
from pipette_opt.read.stack import read_stack

STACKS = ("megatron-core", "torchtitan")
OPTIONS = {"nodes": "1", "gpu": "h100", "model": "llama-3-8b", "global_batch_size": 64, "seq_length": 4096}
LAUNCH = "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1"


@pytest.mark.parametrize("name", ["megatron-core-tuned", "torchtitan"])
def test_a_name_brings_its_stack(name: str) -> None:
    """And without one, Megatron-Core as most launch it."""
    assert read_job(JobOptions(**OPTIONS, software=name)).instance.stack == read_stack(name)
    assert read_job(JobOptions(**OPTIONS)).instance.stack.family == "megatron"


def test_torchtitan_has_the_attention_of_pytorch() -> None:
    """FlashAttention 2, where Megatron-Core has the fastest kernels of the GPU; and torchao's scales of fp8."""
    versions = [read_job(JobOptions(**OPTIONS, software=name)).instance.training.flash_version for name in STACKS]
    assert versions == [3, 2]
    given = [{"fp8": True}, {"fp8": True, "fp8_recipe": "delayed"}, {}]
    trained = [read_job(JobOptions(**OPTIONS, **more, software="torchtitan")).instance.training for more in given]
    assert [training.fp8_recipe for training in trained] == ["tensorwise", "delayed", "delayed"]


def test_an_unknown_name_is_answered_with_those_that_exist() -> None:
    """A file is another way to name a stack."""
    with pytest.raises(InputError, match=r"neither a .yaml file nor shipped.*Shipped: deepspeed, internevo, megatron"):
        read_job(JobOptions(**OPTIONS, software="fsdp2"))


def test_a_launch_of_other_software_is_refused(tmp_path: Path) -> None:
    """A script of Megatron-LM is not torchtitan's; typed options are a configuration of any software."""
    job = Job(instance=make_job(make_cluster(1), LLAMA_8B, stack=read_stack("torchtitan")), num_gpus=8, inputs={})
    script = tmp_path / "train.sh"
    script.write_text(LAUNCH)
    with pytest.raises(InputError, match=r"train.sh: is a launch of Megatron-LM, but the software is torchtitan"):
        as_trained(job, read_megatron_args(str(script), "--launch"))
    typed = as_trained(job, read_megatron_args(LAUNCH.partition("pretrain_gpt.py ")[2], "--launch"))
    assert typed.stack.family == "fsdp"
