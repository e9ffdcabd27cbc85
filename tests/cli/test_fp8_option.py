"""Training with products in fp8 on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pipette_opt.base.errors import InputError
from pipette_opt.cli.app import app
from pipette_opt.job.read import read_job
from pipette_opt.options.description import JobOptions

JOB = ["--model", "llama-3-8b", "--global-batch-size", "32", "--seq-length", "4096"]
NARROW = ["--tensor-parallel", "4", "--pipeline-parallel", "2", "--micro-batch-size", "1", "--recompute", "none"]


def invoke(command: list[str]) -> Result:
    """A command; what it raises is in the result."""
    return CliRunner().invoke(app, command)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hosts of H100."""
    path = tmp_path_factory.mktemp("fp8") / "cluster.yaml"
    path.write_text(
        "name: two\nnodes:\n- {hosts: 'h[1-2]', gpu: h100-80gb, gpus_per_node: 8}\n"
        "intra_node: {bandwidth_gb_per_s: 360, latency_us: 8}\n"
        "inter_node: {latency_us: 12, nics_per_node: 8, bandwidth_gb_per_s: 45}\n"
    )
    return path


def planned(hosts: Path, plan: Path, *more: str) -> dict[str, Any]:
    """The plan of the job."""
    limits = ["--virtual-pipeline", "1", "--time-limit", "2", "--gap-limit", "0.5"]
    result = invoke(["solve", "--cluster", str(hosts), *JOB, *NARROW, *limits, *more, "-o", str(plan)])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(plan.read_text())
    return found


def test_fp8_is_faster_and_said_everywhere(hosts: Path, tmp_path: Path) -> None:
    """In the plan, in what verify computes again, in the launch; and memory is predicted for it."""
    plain, narrow = tmp_path / "bf16.json", tmp_path / "fp8.json"
    wide, quick = planned(hosts, plain), planned(hosts, narrow, "--fp8")
    assert quick["inputs"]["training"]["fp8"] is True
    ratio = quick["estimate"]["iteration_time_s"] / wide["estimate"]["iteration_time_s"]
    assert 0.5 < ratio < 0.95  # launches of kernels take as long
    assert quick["memory"] != wide["memory"]
    assert invoke(["verify", str(narrow)]).exit_code == 0
    assert invoke(["export", str(narrow), "--format", "megatron", "-o", str(tmp_path / "run")]).exit_code == 0
    assert "--fp8-format hybrid" in (tmp_path / "run" / "megatron_args.sh").read_text()


def test_scales_are_those_that_are_said() -> None:
    """By the option, by the launch, or Megatron's default; both that differ are refused."""
    script = (
        "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 1000 --bf16 "
        "--micro-batch-size 1 --global-batch-size 16 --fp8-format hybrid"
    )
    machines = {"nodes": "2", "gpu": "h100"}

    def recipe(**said: Any) -> str:
        return read_job(JobOptions(**machines, **said)).instance.training.fp8_recipe

    job = {"model": "llama-3-8b", "global_batch_size": 32, "seq_length": 4096, "fp8": True}
    assert recipe(**job) == "delayed"
    assert recipe(**job, fp8_recipe="blockwise") == "blockwise"
    assert recipe(launch=script, fp8_recipe="blockwise") == "blockwise"
    assert recipe(launch=f"{script} --fp8-recipe tensorwise") == "tensorwise"
    with pytest.raises(InputError, match="--fp8-recipe: is blockwise, but the launch has"):
        recipe(launch=f"{script} --fp8-recipe tensorwise", fp8_recipe="blockwise")
