"""Results of trials, read from logs."""

import os
from pathlib import Path

import pytest
from factories import make_config

from pipette_opt.tune.logs import LogResult, NoResult, expected_arguments, read_result

CONFIG = make_config(tp=2, pp=2, dp=2, mbs=1)


def log(config: dict[str, str], times_s: list[float], more: str = "") -> str:
    """A log of Megatron-LM with these arguments and iterations."""
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in config.items()]
    lines += ["-------------------- end of arguments ---------------------"]
    lines += [
        f" iteration {step:8d}/ 12 | elapsed time per iteration (ms): {1e3 * time_s:.1f} | global batch size: 64 |"
        for step, time_s in enumerate(times_s, start=1)
    ]
    return "\n".join([*lines, more, ""])


EXPECTED = expected_arguments(CONFIG, 64, 1024)


def result(tmp_path: Path, text: str, **options: int) -> LogResult | NoResult:
    """The result in a single log."""
    (tmp_path / "a.log").write_text(text)
    return read_result([tmp_path / "a.log"], EXPECTED, **options)


def test_time_after_warm_up_and_peak(tmp_path: Path) -> None:
    """The median without the first iterations, and the largest reserved memory."""
    memory = "[Rank 0] (after 6 iterations) memory (MB) | allocated: 900.0 | max reserved: 2048.0"
    found = result(tmp_path, log(EXPECTED, [9.0, 3.0, 3.0, 1.0, 1.2, 1.1], memory))
    assert found == LogResult(time_s=pytest.approx(1.1), peak_bytes=2 * 2**30, num_reports=6)
    longer = result(tmp_path, log(EXPECTED, [9.0, 3.0, 3.0, 1.0, 1.2, 1.1]), warm_up=5)
    assert isinstance(longer, LogResult)
    assert longer.time_s == pytest.approx(1.1)


def test_out_of_memory(tmp_path: Path) -> None:
    """Before any iteration, or after some: the run does not fit."""
    for times_s in ([], [3.0, 1.0, 1.0, 1.0, 1.0]):
        found = result(tmp_path, log(EXPECTED, times_s, "torch.OutOfMemoryError: CUDA out of memory."))
        assert found == LogResult(ran_out=True, num_reports=len(times_s))


@pytest.mark.parametrize(
    ("name", "value"),
    [("tensor_model_parallel_size", "4"), ("micro_batch_size", "8"), ("seq_length", "2048"), ("world_size", "16")],
)
def test_another_layout_is_wrong(tmp_path: Path, name: str, value: str) -> None:
    """The message names the argument, its value and the exported one."""
    found = result(tmp_path, log({**EXPECTED, name: value}, [1.0] * 6))
    assert found == NoResult(
        problem=f"a.log is of another layout: {name} {value} instead of {EXPECTED[name]}", is_wrong=True
    )


def test_values_that_are_not_set_are_one(tmp_path: Path) -> None:
    """One chunk is printed as None or as 1, and arguments of older releases may be absent."""
    printed = {name: value for name, value in EXPECTED.items() if name != "expert_model_parallel_size"}
    found = result(tmp_path, log({**printed, "virtual_pipeline_model_parallel_size": "1"}, [1.0] * 6))
    assert isinstance(found, LogResult)


def test_logs_without_a_result(tmp_path: Path) -> None:
    """No file, no step, only the first step: each has its reason."""
    absent = read_result([tmp_path / "absent.log"], EXPECTED)
    assert absent == NoResult(problem="there is no log")
    assert result(tmp_path, log(EXPECTED, [])) == NoResult(problem="a.log reports no iteration")
    assert result(tmp_path, log(EXPECTED, [9.0])) == NoResult(problem="a.log reports only its first iteration")


def test_a_log_without_arguments_leaves_the_layout_open(tmp_path: Path) -> None:
    """Its result counts, and the note says so; a report may also end its line."""
    lines = [f"iteration {step}/12 | elapsed time per iteration (ms): 1500\n" for step in range(1, 7)]
    found = result(tmp_path, "".join(lines))
    note = "layout not checked, as a.log prints no arguments of Megatron-LM"
    assert found == LogResult(time_s=1.5, num_reports=6, note=note)
    assert result(tmp_path, "torch.OutOfMemoryError: CUDA out of memory.") == LogResult(ran_out=True, note=note)


@pytest.mark.parametrize("order", [("first.log", "last.log"), ("last.log", "first.log")])
def test_ranks_with_logs_of_their_own(tmp_path: Path, order: tuple[str, str]) -> None:
    """The first rank prints the arguments, the last one the iterations: the layout is checked, whichever is newer."""
    (tmp_path / "first.log").write_text(log(EXPECTED, []))
    (tmp_path / "last.log").write_text(log({}, [1.0] * 6))
    for age, name in enumerate(order):
        os.utime(tmp_path / name, (1e9 + age, 1e9 + age))
    assert read_result(tmp_path.glob("*.log"), EXPECTED) == LogResult(time_s=1.0, num_reports=6)
    (tmp_path / "first.log").write_text(log({**EXPECTED, "micro_batch_size": "8"}, []))
    found = read_result(tmp_path.glob("*.log"), EXPECTED)
    assert isinstance(found, NoResult)
    assert found.is_wrong


def test_the_log_with_a_result_counts(tmp_path: Path) -> None:
    """Output of the launcher beside the log does not matter, whichever is newer."""
    (tmp_path / "train.log").write_text(log(EXPECTED, [1.0] * 6))
    (tmp_path / "run.log").write_text("Submitted batch job 7\n")
    for newest in ("train.log", "run.log"):
        os.utime(tmp_path / newest, (2e9, 2e9))
        found = read_result(tmp_path.glob("*.log"), EXPECTED)
        assert isinstance(found, LogResult)
        os.utime(tmp_path / newest, (1e9, 1e9))
