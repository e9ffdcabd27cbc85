"""``whatif`` on a plan of the smallest example."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]


def test_a_list_of_questions(command: Command, lab_plan: Path) -> None:
    """A row for each, with its price; the old plan first."""
    code, out, _ = command(
        "whatif",
        str(lab_plan),
        *("--without", "each", "--link-speed", "2", "--global-batch-size", "64", "--gpu-price", "2.5"),
        *("--time-limit", "5", "--json"),
    )
    assert code == 0
    found = json.loads(out)
    names = [one["name"] for one in found["answers"]]
    assert names[-2:] == ["links 2 x as fast", "a batch of 64"]
    assert [name for name in names if name.startswith("without ")] == ["without gpu01", "without gpu02"]
    today = found["plan"]
    recorded = json.loads(lab_plan.read_text())
    assert today["simulated_s"] == pytest.approx(recorded["estimate"]["iteration_time_s"])
    for one in (today, *found["answers"]):
        if one["expected_s"] is not None:
            hourly = 2.5 * one["num_gpus"]
            expected = hourly / 3600 / one["tokens_per_s"] * 1e6
            assert one["price_per_million_tokens"] == pytest.approx(expected)
            assert one["bound_s"] <= one["expected_s"]
            assert one["simulated_bound_s"] / one["bound_s"] == pytest.approx(one["simulated_s"] / one["expected_s"])
            if one["as_it_is_s"] is not None:
                assert one["as_it_is_s"] >= one["expected_s"] * (1 - 1e-9)


def test_without_a_question_hosts_are_asked_about(command: Command, lab_plan: Path) -> None:
    """Tables, then sentences."""
    code, out, _ = command("whatif", str(lab_plan), "--time-limit", "4")
    text = " ".join(out.split())
    assert code == 0
    assert "One host less, the most expensive loss first" in text
    assert "One more host brings" in text
    assert "The column 'at best' is a lower bound: no plan of the search space is faster" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu-price", "gpu99=2"], "--gpu-price: host 'gpu99'"),
        (["--gpu-price", "a100-80gb=0"], "--gpu-price: a price of a GPU-hour must be > 0"),
        (["--without", "gpu99"], "--without: host 'gpu99'"),
        (["--link-speed", "fast"], "--link-speed: must be numbers"),
        (["--precision", "int8"], "--precision: must be one of"),
        (["--precision", "fp8"], "in fp8: the precision of this change is not for a100"),
        (["--num-gpus", "12x"], "--num-gpus: must be whole numbers"),
        (["--num-gpus", "12"], "--num-gpus: must fill whole hosts of 8 GPUs (or part of one), got 12; 8 or 16 would"),
        (["--num-gpus", "8,24"], "--num-gpus: must be at most the 2 x 8 = 16 GPUs of the cluster, got 24"),
        (["--num-gpus", "0"], "--num-gpus: must be whole numbers >= 1"),
    ],
)
def test_wrong_options(command: Command, lab_plan: Path, options: list[str], message: str) -> None:
    """Refused before anything is searched."""
    code, _, err = command("whatif", str(lab_plan), *options)
    assert code == 2
    assert message in err


def test_a_plan_of_other_costs_is_said(command: Command, lab_plan: Path, tmp_path: Path) -> None:
    """Its own time, the time by this version, and no bound, as what it proved was of other costs."""
    changed = json.loads(lab_plan.read_text())
    changed["estimate"]["iteration_time_s"] *= 1.01
    other = tmp_path / "other.json"
    other.write_text(json.dumps(changed))
    code, out, err = command("whatif", str(other), "--num-gpus", "8", "--time-limit", "2")
    assert code == 0, err
    assert "the plan's proof is not used here" in out
