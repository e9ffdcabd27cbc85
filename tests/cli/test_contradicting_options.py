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
