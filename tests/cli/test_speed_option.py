"""Slow hosts on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

from pipette_opt.report.plan_file import read_plan

JOB = ("--example", "lab-2x8", "--tensor-parallel", "8", "--pipeline-parallel", "2", "--micro-batch-size", "1")
QUICK = ("--virtual-pipeline", "1", "--recompute", "none", "--time-limit", "4", "--gap-limit", "0.5")


def test_a_slow_host_gets_fewer_layers(command: Callable[..., tuple[int, str, str]]) -> None:
    """The plan records it, so that all that read the plan see the same hosts."""
    code, _, err = command("solve", *JOB, *QUICK, "--speed", "gpu02=0.5", "-o", "plan.json")
    assert code == 0, err
    plan = read_plan(Path("plan.json"))
    assert plan.inputs["speed"] == {"gpu02": 0.5}
    first, last = plan.config.layers_per_stage
    assert (first < last) == (plan.hosts[plan.placement.node[0]] == "gpu02")
    assert first != last
    assert command("verify", "plan.json")[0] == 0
    code, out, _ = command("estimate", "plan.json", "--json")
    assert code == 0
    assert json.loads(out)["estimate"]["iteration_time_s"] == plan.estimate.iteration_time_s
    assert command("export", "plan.json", "--format", "megatron", "-o", "launch")[0] == 0
    assert f"--decoder-first-pipeline-num-layers {first}\n" in Path("launch/megatron_args.sh").read_text()
    _is_still_slow_after(command, lost="gpu01", left="gpu02", speed=0.5)


def _is_still_slow_after(command: Callable[..., tuple[int, str, str]], *, lost: str, left: str, speed: float) -> None:
    """A plan for the host that is left knows its speed: it is simulated, verified and exported with it."""
    code, _, err = command("replan", "plan.json", "--lost", lost, "--time-limit", "2", "-o", "again.json")
    assert code == 0, err
    again = read_plan(Path("again.json"))
    assert again.inputs["speed"] == {left: speed}
    assert set(again.hosts) == {left}
    assert command("verify", "again.json")[0] == 0
    assert command("export", "again.json", "--format", "slurm", "-o", "launch-again")[0] == 0
    code, out, _ = command("estimate", "again.json", "--json")
    assert json.loads(out)["estimate"]["iteration_time_s"] == again.estimate.iteration_time_s
