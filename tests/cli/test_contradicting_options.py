"""Options of ``solve`` that other options of the job contradict."""

from collections.abc import Callable

import pytest

Command = Callable[..., tuple[int, str, str]]

JOB = ("solve", "--model", "llama-3-8b", "--nodes", "2", "--gpu", "a100-80gb")
JOB += ("--global-batch-size", "8", "--seq-length", "2048")


@pytest.mark.parametrize("option", ["--checkpoint-seconds", "--recovery-seconds", "--host-mean-days"])
def test_failures_count_for_progress_only(command: Command, option: str) -> None:
    """Seconds of a loss are refused where no host is lost."""
    code, _, err = command(*JOB, option, "7")
    assert code == 2
    assert f"{option} has no effect with --objective time" in err.replace(":", "")


def test_groups_that_no_replicas_make(command: Command) -> None:
    """Three groups of replicas on sixteen GPUs."""
    words = ("--data-parallel-sharding-strategy", "optim_grads_params", "--num-distributed-optimizer-instances", "3")
    code, _, err = command(*JOB, *words)
    assert code == 2
    assert "--num-distributed-optimizer-instances 3" in err
    assert "replicas do not divide into 3 groups" in err


def test_a_quantile_of_another_objective_is_refused(command: Command) -> None:
    """``--regret-quantile`` needs the objective that it belongs to, and lies between 0 and 1."""
    code, _, err = command(*JOB, "--regret-quantile", "0.9")
    assert code == 2
    assert "--regret-quantile has no effect with --objective time" in err.replace(":", "")
    code, _, err = command(*JOB, "--objective", "regret", "--regret-quantile", "90")
    assert code == 2
    assert "must be in (0, 1), got 90.0" in " ".join(err.split())
