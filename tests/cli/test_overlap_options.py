"""What is sent beside compute, and context-parallel sizes, from the command line to the launch script."""

import json
from pathlib import Path

from typer.testing import CliRunner

from pipette_opt.cli.app import app
from pipette_opt.export.megatron import megatron_arguments
from pipette_opt.parallel import with_tensor_overlap
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.report.plan_file import read_plan

BESIDE = ("--overlap-grad-reduce", "--overlap-param-gather", "--ddp-bucket-size", "20000000")
TODAY = "--tensor-model-parallel-size 8 --micro-batch-size 1 --use-distributed-optimizer"


def invoke(*command: str) -> str:
    """Output of a command that ends well."""
    result = CliRunner().invoke(app, [*command])
    if result.exception is not None:
        raise result.exception
    return result.output


def estimate_s(*args: str) -> float:
    """Iteration time of two hosts."""
    shown = invoke("estimate", "--example", "lab-2x8", "--launch", " ".join((TODAY, *args)), "--json")
    return float(json.loads(shown)["estimate"]["iteration_time_s"])


def test_estimate_knows_the_flags() -> None:
    """A single stage hides its reduction and its gather; smaller buckets hide more."""
    plain, gradients, both, small = (
        estimate_s(*flags) for flags in ((), BESIDE[:1], BESIDE[:2], (*BESIDE[:2], "--ddp-bucket-size", "5000000"))
    )
    assert plain > gradients > both > small


def test_interleaved_sends() -> None:
    """Waiting for every send takes longer."""
    chunks = ("--pipeline-model-parallel-size", "2", "--num-virtual-stages-per-pipeline-rank", "2")
    assert estimate_s(*chunks, "--no-overlap-p2p-communication") > estimate_s(*chunks)


def test_from_solve_to_the_launch(tmp_path: Path) -> None:
    """A plan made with the flags keeps them, proves what it did, and says them to Megatron-LM."""
    path, job = tmp_path / "plan.json", tmp_path / "job.yaml"
    job.write_text("parallel: {ddp_bucket_size: 20000000}\n")
    shown = json.loads(
        invoke(
            *("solve", str(job), "--example", "lab-2x8", "--tensor-parallel", "4,8", "--micro-batch-size", "1,2"),
            *("--virtual-pipeline", "1", "--context-parallel", "1,2", "--recompute", "none,selective"),
            *("--time-limit", "4", "--gap-limit", "0.1", "-o", str(path), "--json", *BESIDE[:2]),
        )
    )
    plan = read_plan(path)
    assert plan.config.overlap_grad_reduce
    assert plan.config.overlap_param_gather
    assert plan.config.ddp_bucket_size == 20_000_000
    proof = shown["certificate"]
    assert proof["lower_bound_s"] <= proof["objective_s"] == shown["estimate"]["iteration_time_s"]
    arguments = megatron_arguments(plan)
    assert set(BESIDE) <= set(arguments)
    degrees = " ".join(arguments[: arguments.index("--num-layers")])
    again = parse_megatron_args(degrees)
    assert again.parallel_config(32, 16) == with_tensor_overlap(plan.config, False)
    assert (
        again.training_fields.get("tp_comm_overlap", False) == plan.config.tp_comm_overlap
    )  # of a script the job has it
    invoke("verify", str(path))


def test_context_parallel_sizes_are_searched() -> None:
    """Candidates have the sizes asked for, and Megatron-Core's rule about the sequence."""
    listed = json.loads(invoke("explain", "tp=4,pp=1,cp=2,mbs=1", "--example", "lab-2x8", "--json"))
    assert "cp2" in json.dumps(listed)
