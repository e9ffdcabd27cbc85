"""Releases of Megatron-Core that a plan needs."""

from dataclasses import asdict, replace

from consoles import shown
from factories import LLAMA_8B, llama_plan, make_cluster, make_config, make_job

from pipette_opt.export.megatron import argument_arrays
from pipette_opt.job.read import Job
from pipette_opt.library.current import current_of
from pipette_opt.plans.releases import release_words
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.report.first_screen import first_screen

SHARED = "Megatron-Core 0.16 or later: 16 tensor ranks share 8 key-value heads"


def test_more_tensor_ranks_than_key_value_heads_need_a_release() -> None:
    """On both sides of the edge, for a model with eight heads of keys and values."""
    ends = (make_config(tp=tp, pp=1, dp=1, num_layers=32) for tp in (8, 16))
    assert [release_words(config, LLAMA_8B.num_query_groups) for config in ends] == ["", SHARED]


def test_screens_and_exports_say_the_release() -> None:
    """The screen of a plan and its arguments, and the screen of a launch; other plans need nothing."""
    plan = llama_plan()
    wide = replace(plan, inputs={**plan.inputs, "model": asdict(replace(LLAMA_8B, num_query_groups=1))})
    for found in (shown(*first_screen(wide)), argument_arrays(wide)):
        assert "Megatron-Core 0.16 or later: 2 tensor ranks share 1 key-value head" in found
    for found in (shown(*first_screen(plan)), argument_arrays(plan)):
        assert "Megatron-Core 0.16" not in found
    job = Job(instance=make_job(make_cluster(2), LLAMA_8B, 32, 4096), num_gpus=None, inputs={})
    launch = "--tensor-model-parallel-size 16 --sequence-parallel --micro-batch-size 1 --bf16"
    assert SHARED in shown(*current_of(replace(job, launch=parse_megatron_args(launch)), None).screen())
