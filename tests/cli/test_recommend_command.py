"""``recommend``."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]

JOB = ("--model", "llama-3-8b", "--global-batch-size", "64", "--seq-length", "4096")
HOSTS = ("--nodes", "2", "--gpu", "h100,a100-80gb")
PINS = "parallel: {tensor_parallel: [4, 8], virtual_pipeline: 1, context_parallel: 1, micro_batch_size: 1}"


def test_kinds_and_numbers(command: Command) -> None:
    """A row for each; a choice for each question, and a kind without a price has none."""
    options = ("--tokens", "1e9", "--deadline", "30d", "--gpu-price", "h100=3", "--time-limit", "4", "--json")
    Path("job.yaml").write_text(PINS)
    code, out, err = command("recommend", "job.yaml", *HOSTS, *JOB, *options)
    assert code == 0, err
    found = json.loads(out)
    rows = [(one["hosts"], one["num_hosts"]) for one in found["offers"]]
    assert rows == [("h100-80gb", 1), ("h100-80gb", 2), ("a100-80gb", 1), ("a100-80gb", 2)]
    assert [one["price"] is None for one in found["offers"]] == [False, False, True, True]
    assert found["choices"]["fastest"] == 1
    assert set(found["choices"]) == {"fastest", "cheapest", "fewest GPUs in time", "cheapest in time"}
    for one in found["offers"]:
        assert one["run_s"] == pytest.approx(1e9 / one["tokens_per_s"])
