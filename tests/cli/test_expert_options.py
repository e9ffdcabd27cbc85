"""Models with experts on the command line: solve, verify, export, estimate, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pipette_opt.cli.app import app
from pipette_opt.job.read import read_job
from pipette_opt.options.description import JobOptions

JOB = ["--example", "lab-2x8", "--model", "mixtral-8x7b", "--global-batch-size", "32", "--seq-length", "4096"]
NARROW = ["--tensor-parallel", "2", "--pipeline-parallel", "2", "--micro-batch-size", "1", "--recompute", "none"]
UNEVEN = "training: {expert_imbalance: 1.25}\n"
"""A job file that says what no option says."""


def invoke(command: list[str]) -> Result:
    """A command; what it raises is in the result."""
    return CliRunner().invoke(app, command)


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of a model with experts, without interleaving."""
    path = tmp_path_factory.mktemp("experts") / "plan.json"
    path.with_name("job.yaml").write_text(UNEVEN)
    limits = ["--virtual-pipeline", "1", "--time-limit", "2", "--gap-limit", "0.5"]
    result = invoke(["solve", str(path.with_name("job.yaml")), *JOB, *NARROW, *limits, "-o", str(path)])
    assert result.exit_code == 0, result.output
    assert "expert parallel" in result.output
    return path


def test_plan_says_how_experts_are_spread(solved: Path) -> None:
    """Sizes, map, scope and note of the plan; verify has nothing against it."""
    plan: dict[str, Any] = json.loads(solved.read_text())
    size = plan["parallel"]["expert_model_parallel_size"]
    assert size > 1
    assert plan["inputs"]["training"]["expert_imbalance"] == 1.25
    assert plan["estimate"]["breakdown"]["expert_parallel"] > 0
    assert "expert-parallel groups" in plan["certificate"]["scope"]
    assert any("1.25 times the mean tokens" in note for note in plan["notes"])
    result = invoke(["verify", str(solved)])
    assert result.exit_code == 0, result.output


def test_export_starts_the_same_experts(solved: Path, tmp_path: Path) -> None:
    """Megatron's arguments, read back as today's launch, are the plan's configuration and cost the same."""
    plan = json.loads(solved.read_text())
    assert invoke(["export", str(solved), "--format", "megatron", "-o", str(tmp_path)]).exit_code == 0
    text = (tmp_path / "megatron_args.sh").read_text()
    for option in (
        f"--expert-model-parallel-size {plan['parallel']['expert_model_parallel_size']}",
        "--num-experts 8",
        "--moe-router-topk 2",
        "--moe-token-dispatcher-type alltoall",
        "--moe-grouped-gemm",
    ):
        assert option in text
    hosts = ",".join(dict.fromkeys(row["host"] for row in plan["placement"]))
    arguments = (
        text[text.index("MEGATRON_ARGS=(") : text.index(")")].removeprefix("MEGATRON_ARGS=(") + " --vocab-size 32000"
    )
    current = invoke(
        ["estimate", str(solved.with_name("job.yaml")), *JOB, "--launch", arguments, "--host-order", hosts, "--json"]
    )
    assert current.exit_code == 0, current.output
    found = json.loads(current.stdout)
    assert found["parallel"]["expert_model_parallel_size"] == plan["parallel"]["expert_model_parallel_size"]
    assert found["estimate"]["iteration_time_s"] == pytest.approx(plan["estimate"]["iteration_time_s"])


@pytest.mark.parametrize(
    ("said", "option", "expected"),
    [
        ("", None, "alltoall"),
        ("--moe-token-dispatcher-type allgather", None, "allgather"),
        ("--moe-token-dispatcher-type flex", None, "flex"),
        ("--moe-token-dispatcher-type allgather", "alltoall", "alltoall"),
    ],
)
def test_the_dispatcher_of_a_script_is_the_jobs(said: str, option: str | None, expected: str) -> None:
    """A launch brings its dispatcher; the command line counts more."""
    script = (
        "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --max-position-embeddings 512 --vocab-size 1000 "
        f"--seq-length 512 --global-batch-size 16 --num-experts 8 --moe-router-topk 2 {said}"
    )
    job = read_job(JobOptions(launch=script, nodes="2", gpu="h100", moe_token_dispatcher=option))
    assert job.instance.training.moe_token_dispatcher_type == expected


def test_default_dispatcher_of_today_is_megatrons() -> None:
    """Without a word Megatron gathers all tokens, which takes longer than an all-to-all."""
    degrees = (
        "--tensor-model-parallel-size 2 --expert-model-parallel-size 8 --sequence-parallel --recompute-granularity full"
    )
    seconds = []
    for said in ("", " --moe-token-dispatcher-type allgather", " --moe-token-dispatcher-type alltoall"):
        result = invoke(["estimate", *JOB, "--launch", degrees + " --recompute-method uniform" + said, "--json"])
        assert result.exit_code == 0, result.output
        seconds.append(json.loads(result.stdout)["estimate"]["breakdown"]["expert_parallel"])
    assert seconds[0] == seconds[1] > seconds[2]
