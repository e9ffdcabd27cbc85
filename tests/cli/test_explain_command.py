"""``explain``."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]

PINS = ("--tensor-parallel", "8", "--pipeline-parallel", "1,2", "--context-parallel", "1", "--virtual-pipeline", "1")


def test_slower_than_the_plan_and_where(command: Command, lab_plan: Path) -> None:
    """Placed, cause by cause; the causes add up to the times."""
    code, out, _ = command("explain", "tp=8,pp=2,mbs=1,recompute=full", "--plan", str(lab_plan), "--json")
    found = json.loads(out)
    assert code == 0
    assert found["verdict"] in ("slower", "not faster", "may win")
    placed = found["placed"]
    for name, total in (("asked_s", "iteration_time_s"), ("plan_s", "plan_iteration_time_s")):
        assert sum(one[name] for one in placed["causes"].values()) == pytest.approx(placed[total])
    assert placed["plan_iteration_time_s"] == pytest.approx(
        json.loads(lab_plan.read_text())["estimate"]["iteration_time_s"]
    )
    code, out, _ = command("explain", "tp8 pp2 mbs1 full", "--plan", str(lab_plan))
    assert code == 0
    assert "where the time goes" in out


def test_illegal_too_big_and_the_plan_itself(command: Command, lab_plan: Path) -> None:
    """Each has an answer; Megatron arguments are a configuration, too."""
    code, out, _ = command("explain", "tp=3", "--plan", str(lab_plan))
    assert (code, out.splitlines()[0]) == (0, "tp=3: illegal; legal with --tensor-parallel 8")
    code, out, _ = command("explain", "tp=1,pp=1,cp=1,dopt=off,recompute=none", "--plan", str(lab_plan))
    assert (code, ": too big: it may need" in out) == (0, True)
    config = json.loads(lab_plan.read_text())["parallel"]
    text = f"--tensor-model-parallel-size {config['tensor_model_parallel_size']} --micro-batch-size 1 "
    code, out, err = command("explain", "--launch", text + "--pipeline-model-parallel-size 2", "--plan", str(lab_plan))
    assert code == 0, err
    assert out.startswith(f"tp{config['tensor_model_parallel_size']} pp2 dp")


def test_without_a_configuration_the_job_is_explained(command: Command) -> None:
    """What cannot go together, or that nothing is wrong."""
    job = ("--model", "llama-3-8b", "--global-batch-size", "8", "--seq-length", "4096")
    hosts = ("--nodes", "1", "--gpu", "a100-80gb", "--gpus-per-node", "1")
    code, out, _ = command("explain", *hosts, *job)
    assert code == 0
    assert out.startswith("These requirements cannot be met together: 1 host of 1 GPU, ")
    code, _, err = command("solve", *hosts, *job)
    assert code == 3
    assert "error: These requirements cannot be met together: 1 host of 1 GPU, " in err
    assert "memory rules out" in err
    code, out, _ = command("explain", "--example", "lab-2x8", *PINS, "--json")
    assert json.loads(out) == {"feasible": True, "conflicts": []}


def test_several_configurations_at_once(command: Command) -> None:
    """A list in JSON, a paragraph each for people; one in two words is one."""
    code, out, _ = command("explain", "tp8 pp1 mbs1", "tp3", "--example", "lab-2x8", *PINS, "--json")
    assert code == 0
    assert [one["verdict"] for one in json.loads(out)][1] == "illegal"
    code, out, _ = command("explain", "tp=3", "pp=2", "--example", "lab-2x8", *PINS)
    assert code == 0
    assert out.startswith("tp=3 pp=2: illegal")
