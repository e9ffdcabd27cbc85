"""Hosts that no cluster file describes, on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]

HOSTS = ("--nodes", "2", "--gpu", "h100", "--nics", "8x400")
JOB = ("--model", "llama-3-8b", "--global-batch-size", "32", "--seq-length", "2048")
PINNED = ("--tensor-parallel", "8", "--pipeline-parallel", "1", "--micro-batch-size", "1", "--recompute", "none")
NO_LINK = "No link was measured"


def test_a_plan_for_hosts_without_a_file_serves_every_command(command: Run) -> None:
    """Solved, verified, estimated, exported and replanned: the plan itself records the hosts."""
    code, out, err = command("solve", *HOSTS, *JOB, *PINNED, "--time-limit", "2", "--workers", "1", "-o", "plan.json")
    assert code in (0, 4), err
    assert "no link was measured" in " ".join(out.split())
    plan = json.loads(Path("plan.json").read_text())
    assert any(note.startswith(NO_LINK) for note in plan["notes"])
    recorded = plan["inputs"]["cluster"]
    assert recorded["document"]["nodes"] == [{"hosts": "node[1-2]", "gpu": "h100-80gb", "gpus_per_node": 8}]
    assert recorded["document"]["inter_node"]["bandwidth_gb_per_s"] == 45
    assert recorded["assumed"][0].startswith(NO_LINK)
    assert command("verify", "plan.json")[0] == 0
    code, out, _ = command("estimate", "plan.json", "--json")
    estimated = json.loads(out)
    assert estimated["estimate"]["iteration_time_s"] == pytest.approx(plan["estimate"]["iteration_time_s"])
    assert estimated["notes"][: len(recorded["assumed"])] == recorded["assumed"]
    for notes in (plan["notes"], estimated["notes"]):
        assert any(note.startswith("Assumed: ") and "links between hosts" in note for note in notes)
    assert estimated["verdict"].endswith("; no link was measured.")
    code, out, err = command("export", "plan.json", "--format", "slurm")
    assert code == 0
    assert "#SBATCH --nodes=2\n" in out
    assert "--nodelist" not in out
    assert "node1" not in out + err
    assert "The hosts of this plan have no names" in err
    code, _, err = command("replan", "plan.json", "--lost", "node2", "--time-limit", "1", "-o", "less.json")
    assert code in (0, 4), err
    assert json.loads(Path("less.json").read_text())["inputs"]["cluster"] == recorded
    code, _, err = command("verify", "plan.json", "--cluster", "other.yaml")
    assert (code, "--cluster: has no effect: plan.json was made with --nodes" in err) == (2, True)


def test_estimates_say_that_no_link_was_measured(command: Run) -> None:
    """Whoever takes --cluster takes the hosts, too."""
    code, out, err = command("estimate", *HOSTS, *JOB, "--launch", "--tensor-model-parallel-size 8", "--json")
    assert code == 0, err
    assert json.loads(out)["notes"][0].startswith(NO_LINK)


@pytest.mark.parametrize("words", [("solve",), ("estimate",), ("explain",), ("benchmark", "solve")])
def test_every_command_with_a_cluster_has_the_options(command: Run, words: tuple[str, ...]) -> None:
    """They are one dataclass."""
    code, out, _ = command(*words, "--help")
    assert code == 0
    for option in ("--cluster", "--nodes", "--gpu ", "--nics", "--gpus-per-node", "--precision"):
        assert option in out
