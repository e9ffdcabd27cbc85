"""``explain``."""

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipette_opt.cli import main

Command = Callable[..., tuple[int, str, str]]

PINS = ("--tensor-parallel", "8", "--pipeline-parallel", "1,2", "--context-parallel", "1", "--virtual-pipeline", "1")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Solved once."""
    path = tmp_path_factory.mktemp("explain") / "plan.json"
    arguments = ["pipette-opt", "solve", "--example", "lab-2x8", *PINS, "--time-limit", "3", "-o", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        with contextlib.suppress(SystemExit):
            main()
    return path


def test_slower_than_the_plan_and_where(command: Command, plan: Path) -> None:
    """Placed, cause by cause; the causes add up to the times."""
    code, out, _ = command("explain", "tp=8,pp=2,mbs=1,recompute=full", "--plan", str(plan), "--json")
    found = json.loads(out)
    assert code == 0
    assert found["verdict"] in ("slower", "not faster", "may win")
    placed = found["placed"]
    for name, total in (("asked_s", "iteration_time_s"), ("plan_s", "plan_iteration_time_s")):
        assert sum(one[name] for one in placed["causes"].values()) == pytest.approx(placed[total])
    assert placed["plan_iteration_time_s"] == pytest.approx(
        json.loads(plan.read_text())["estimate"]["iteration_time_s"]
    )
    code, out, _ = command("explain", "tp8 pp2 mbs1 full", "--plan", str(plan))
    assert code == 0
    assert "where the time goes" in out


def test_illegal_too_big_and_the_plan_itself(command: Command, plan: Path) -> None:
    """Each has an answer; Megatron arguments are a configuration, too."""
    code, out, _ = command("explain", "tp=3", "--plan", str(plan))
    assert (code, out.splitlines()[0]) == (0, "tp=3: illegal; legal with --tensor-parallel 8")
    code, out, _ = command("explain", "tp=1,pp=1,cp=1,dopt=off,recompute=none", "--plan", str(plan))
    assert (code, ": too big: it may need" in out) == (0, True)
    config = json.loads(plan.read_text())["parallel"]
    text = f"--tensor-model-parallel-size {config['tensor_model_parallel_size']} --micro-batch-size 1 "
    code, out, err = command("explain", "--args", text + "--pipeline-model-parallel-size 2", "--plan", str(plan))
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rules", "tp=8"], "--rules: checks the whole job"),
        (["pq=1"], "Known: tp, pp"),
        (["tp=1", "--args", "--tensor-model-parallel-size 1"], "--args: cannot be combined with configurations"),
    ],
)
def test_wrong_questions(command: Command, options: list[str], message: str) -> None:
    """One clear message."""
    code, _, err = command("explain", *options, "--example", "lab-2x8")
    assert code == 2
    assert message in err
