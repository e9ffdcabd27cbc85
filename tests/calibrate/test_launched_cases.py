"""Runs that say their launch: the same job as ``estimate`` reads."""

from dataclasses import replace
from pathlib import Path

from pipette_opt.calibrate.cases import Case, Skipped, make_cases
from pipette_opt.job.launch import as_trained
from pipette_opt.job.read import read_job
from pipette_opt.options.description import JobOptions
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.runs import read_runs
from pipette_opt.read.stack import read_stack

ARGS = (
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 "
    "--global-batch-size 64 --seq-length 4096 --fp8-format hybrid --bf16 --recompute-granularity selective"
)


def test_a_run_is_the_job_that_estimate_reads(tmp_path: Path) -> None:
    """Model, training and configuration, with the stack that is asked for; an illegal launch is left out."""
    path = tmp_path / "runs.csv"
    illegal = "--tensor-model-parallel-size 4 --global-batch-size 64 --seq-length 4096 --bf16"
    rows = [f'h100-80gb,16,llama-3-8b,"{ARGS}",5.0', f'h100-80gb,16,mixtral-8x7b,"{illegal}",30']
    path.write_text("gpu,num_gpus,model,args,iter_time_s\n" + "\n".join(rows) + "\n")
    stack = replace(read_stack(), name="mine")
    case, skipped = make_cases(read_runs(path), stack)
    assert isinstance(case, Case)
    given = parse_megatron_args(ARGS)
    options = JobOptions(
        model="llama-3-8b", global_batch_size=64, seq_length=4096, precision="bf16", fp8=True, nodes="2", gpu="h100"
    )
    expected = as_trained(read_job(options), given)
    assert case.instance.model == expected.model
    assert case.instance.training == expected.training
    assert case.instance.stack.name == "mine"
    assert case.config == given.parallel_config(32, 16)
    assert (case.config.sequence_parallel, case.config.recompute_granularity) == (True, "selective")
    assert isinstance(skipped, Skipped)
    assert "need sequence_parallel" in skipped.reason
