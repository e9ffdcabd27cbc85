"""A fine-tuning job that fits nowhere: what would have to go, with its price."""

import re

import pytest

from pipette_opt import solve
from pipette_opt.base.errors import InfeasibleError

pytestmark = pytest.mark.search

JOB = {"nodes": "1", "gpu": "rtx-4090", "gpus_per_node": 2, "global_batch_size": 4, "seq_length": 2048}


def refusal(**options: object) -> str:
    """Error of a job that does not fit."""
    with pytest.raises(InfeasibleError) as caught:
        solve(**JOB, **options)  # type: ignore[arg-type]
    return str(caught.value)


def test_single_changes_that_fit_are_named_with_their_price() -> None:
    """Fewer bits of frozen weights do, and shards on the host; other states do not; the fastest comes first."""
    text = refusal(model="qwen3-14b", finetune="lora", framework="accelerate")
    assert text.startswith("Each of these alone makes it fit:\n  --")
    ways = [line.strip() for line in text.splitlines()[1:] if line.startswith("  --")]
    seconds = [float(re.search(r": ([0-9.]+) s, ([0-9.]+) GiB, tp1 pp1 dp2", way)[1]) for way in ways]  # type: ignore[index]
    assert seconds == sorted(seconds)
    assert sum(way.startswith("--finetune qlora: ") for way in ways) == 1
    assert sum(way.startswith("--offload none,parameters: ") for way in ways) == 1
    assert not any("--optimizer" in way for way in ways)
    assert "These requirements cannot be met together" in text


def test_each_change_is_what_solve_then_finds() -> None:
    """The same memory and layout."""
    text = refusal(model="qwen3-14b", finetune="lora", framework="accelerate")
    gib, label = re.search(r"--finetune qlora: [0-9.]+ s, ([0-9.]+) GiB, (.+)", text).groups()  # type: ignore[union-attr]
    plan = solve(**JOB, model="qwen3-14b", finetune="qlora", framework="accelerate")  # type: ignore[arg-type]
    assert plan.config.label() == label
    assert f"{plan.memory[0].predicted_bytes / 2**30:.3g}" == gib


def test_training_from_scratch_has_no_such_list() -> None:
    """Adapters are no advice for it."""
    assert "alone makes it fit" not in refusal(model="llama-2-70b")
