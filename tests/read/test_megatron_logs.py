"""Training logs as measured runs."""

import json
import os
import re
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GIB
from pipette_opt.read import log_lines
from pipette_opt.read.megatron_args import read_megatron_args
from pipette_opt.read.megatron_logs import WARM_UP, Reports, import_runs, read_as_log, reports_of
from pipette_opt.read.runs import MeasuredRun, read_runs
from pipette_opt.specs import TrainingSpec

FORMATS = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared")) / "formats"

ARGUMENTS: dict[str, str] = table(__file__, "ARGUMENTS")
MIXTURE: dict[str, str] = table(__file__, "MIXTURE")
"""Arguments as Megatron prints them, of a dense model and of the experts of a mixture."""


def log(arguments: dict[str, str], times_ms: list[float], more: str = "") -> str:
    """What Megatron prints; a single time is of the tenth iteration."""
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    lines += [
        f" iteration {index:8d}/ 500000 | consumed samples: 64 | elapsed time per iteration (ms): {time:.1f} | "
        "learning rate: 1.0E-04 | global batch size:    64 | lm loss: 1.0E+01 |"
        for index, time in enumerate(times_ms, start=1 if len(times_ms) > 1 else 10)
    ]
    return "\n".join([*lines, more]) + "\n"


def imported(tmp_path: Path, text: str) -> MeasuredRun:
    """The only run of a folder with this log."""
    folder = tmp_path / "logs"
    folder.mkdir(parents=True)
    (folder / "run1.log").write_text(text)
    table = tmp_path / "runs.csv"
    table.write_text(import_runs([folder], gpu="h100-80gb")[0])
    (run,) = read_runs(table)
    return run


def printed(row: dict[str, Any]) -> str:
    """The log of a row: arguments that differ, null ones are missing; times, six of 2.5 s unless the row has others."""
    arguments = ARGUMENTS | (MIXTURE if row.get("mixture") else {}) | row.get("arguments", {})
    given = {name: value for name, value in arguments.items() if value is not None}
    text = log(given, row.get("times_ms", [2500.0] * 6), row.get("more", ""))
    return text.replace("iteration       10/", "iteration        1/") if row.get("first") else text


SIDES: dict[str, Callable[[MeasuredRun], Any]] = {
    "label": lambda run: run.launch.parallel_config(24, 16).label(),
    "layers": lambda run: run.launch.layers_per_stage(attrgetter("launch.model.num_layers")(run)),
    "attention_kernel": lambda run: (
        run.launch.training(TrainingSpec(global_batch_size=64, seq_length=2048)).attention_kernel
    ),
    "fp8_recipe": lambda run: run.launch.training_fields["fp8_recipe"],
}
"""Names of a row that are no fields of a measured run."""


@pytest.mark.parametrize("row", table(__file__, "RUNS"), ids=lambda row: row["shows"])
def test_runs(tmp_path: Path, row: dict[str, Any]) -> None:
    """Each log is the run that stands beside it; notes are matched."""
    run = imported(tmp_path, printed(row))
    for name, expected in row["means"].items():
        found = SIDES.get(name, attrgetter(name))(run)
        if name == "notes":
            assert re.search(expected, found)
        else:
            assert json.loads(json.dumps(found)) == expected, name


@pytest.mark.parametrize("row", table(__file__, "LEFT_OUT"), ids=lambda row: row["shows"])
def test_left_out(tmp_path: Path, row: dict[str, Any]) -> None:
    """Each log gives no run, and the error says why."""
    (tmp_path / "a.log").write_text(printed(row))
    with pytest.raises(InputError, match=row["error"]):
        import_runs([tmp_path], gpu="h100-80gb")


def test_an_impossible_log_does_not_cost_the_others(tmp_path: Path) -> None:
    """Its own line is named, and no unit that a person would mistake: a program printed the numbers."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, text in (
        ("a.log", log(ARGUMENTS, [2500.0] * 6)),
        ("b.log", log(ARGUMENTS, [25.0] * 6)),
        ("c.log", log(ARGUMENTS | {"data_parallel_size": "3"}, [2500.0] * 6)),
        ("d.log", log(ARGUMENTS, [2600.0] * 6)),
        ("e.log", log(ARGUMENTS, [2600.0] * 6, "[Rank 0] (after 2 iterations) memory (MB) | max reserved: 190000.0")),
    ):
        (folder / name).write_text(text)
    text, notes = import_runs([folder], gpu="h100-80gb")
    (tmp_path / "runs.csv").write_text(text)
    assert [run.iter_time_s for run in read_runs(tmp_path / "runs.csv")] == [2.5, 2.6]
    left_out = [note for note in notes if "left out" in note]
    assert left_out[0].startswith(
        f"b.log, line {len(ARGUMENTS) + 7}: left out, iter_time_s=0.025 is impossible: 16 h100"
    )
    assert left_out[0].endswith("check the times of the log, and its GPU.")
    assert left_out[1].startswith("c.log: left out, tp * cp * pp * dp = 2 * 1 * 2 * 3 = 12 must be num_gpus = 16")
    assert left_out[2].startswith("e.log: left out, peak_mem_gib=185.547 is more than a h100-80gb has")
    assert left_out[2].endswith("check the GPU of the log.")
    for name in ("a.log", "d.log"):
        (folder / name).unlink()
    with pytest.raises(InputError, match=r"no log could be used\. b\.log, line [0-9]+: left out, iter_time_s"):
        import_runs([folder], gpu="h100-80gb")


def test_logs_without_arguments_are_left_out(tmp_path: Path) -> None:
    """A folder in which nothing can be used is an error that says why."""
    (tmp_path / "other.log").write_text("hello\n")
    with pytest.raises(InputError, match=r"other\.log: left out, no Megatron arguments"):
        import_runs([tmp_path])


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    """So is one that is not there."""
    with pytest.raises(InputError, match="has no logs"):
        import_runs([tmp_path])
    with pytest.raises(InputError, match="does not exist"):
        import_runs([tmp_path / "nowhere"])


def test_a_log_that_breaks_off(tmp_path: Path) -> None:
    """The last number is cut in two, and says nothing: 2500.0 is not 2 milliseconds, 30720.0 MB not 3."""
    text = log(ARGUMENTS, [2500.0] * 3).rstrip("\n") + "\n"
    text += "[Rank 0] (after 2 iterations) memory (MB) | max allocated: 1.0 | reserved: 1.0 | max reserved: 1024.0\n"
    text += "[Rank 8] (after 2 iterations) memory (MB) | max allocated: 1.0 | reserved: 1.0 | max reserved: 3"
    run = imported(tmp_path, text)
    assert run.peak_mem_bytes == GIB
    shorter = log(ARGUMENTS, [2500.0, 2500.0]) + " iteration 3/ 50 | elapsed time per iteration (ms): 2"
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "run.log").write_text(shorter)
    table = import_runs([tmp_path / "short"], gpu="h100-80gb")[0]
    assert ",2.5," in table
    assert "2 reports of time" in table


def test_ranks_that_write_at_once(tmp_path: Path) -> None:
    """Prefixes of torchrun, and two reports in one line."""
    lines = log(ARGUMENTS, [2500.0] * 6).splitlines()
    mixed = [f"[default{index % 2}]:{line}" for index, line in enumerate(lines)]
    mixed[-1] += "[default1]:[Rank 8] (after 2 iterations) memory (MB) | max allocated: 1.0 | max reserved: 2048.0 |"
    run = imported(tmp_path, "\n".join(mixed) + "\n")
    assert run.iter_time_s == 2.5
    assert run.peak_mem_bytes == 2 * GIB
    assert run.launch.tensor_model_parallel_size == 2


def test_a_restarted_job_counts_from_its_last_start(tmp_path: Path) -> None:
    """Arguments and times of the last start only."""
    first = log(ARGUMENTS, [9000.0] * 8)
    second = log(ARGUMENTS | {"micro_batch_size": "1"}, [2500.0] * 4)
    run = imported(tmp_path, first + second)
    assert (run.iter_time_s, run.launch.micro_batch_size) == (2.5, 1)


def test_broken_bytes_cost_nothing(tmp_path: Path) -> None:
    """Logs have them where a progress bar was cut."""
    (tmp_path / "run.log").write_bytes(b"\xff\xfe\n" + log(ARGUMENTS, [2500.0] * 4).encode())
    assert ",2.5," in import_runs([tmp_path], gpu="h100-80gb")[0]


def test_the_gpu_is_named_before_the_arguments(tmp_path: Path) -> None:
    """As jobs that begin with nvidia-smi print it."""
    (tmp_path / "a.log").write_text("NVIDIA A100-SXM4-80GB\n" + log(ARGUMENTS, [2500.0]))
    assert ",A100-SXM4-80GB," in import_runs([tmp_path])[0].splitlines()[1] + ","


@pytest.mark.parametrize(
    "tag", [" 7: ", "[1,7]<stdout>:", "[prterun-a-1@1,7]<stdout>: ", "2026-06-10T11:02:13.000Z ", "gpu1: "]
)
def test_tags_do_not_matter(tmp_path: Path, tag: str) -> None:
    """A log behind a launcher's tags has the row of the log alone."""
    text = log(ARGUMENTS, [9000.0, 4000.0, 3000.0, 2400.0, 2500.0, 2700.0])
    run = imported(tmp_path, "".join(f"{tag}{line}\n" for line in text.splitlines()))
    launch = run.launch
    assert (run.iter_time_s, launch.tensor_model_parallel_size, launch.global_batch_size) == (2.5, 2, 64)
    assert launch.model is not None
    assert launch.model.vocab_size == 50304


PRIMUS = "\x1b[32m[20260610 11:02:13][rank-7/8][INFO ] \x1b[0m [---------trainer.py:1553] : "


def test_primus(tmp_path: Path) -> None:
    """Its prefix, its mean beside the time, and memory that is used on the device, in GB that are GiB."""
    report = (
        " [2026-06-10 11:02:13.123456] iteration        2/      50 | elapsed time per iteration (ms): 6048.6/6050.2 | "
        "hip mem usage/free/total/usage_ratio: 75.20GB/4.79GB/79.98GB/94.24% | global batch size:   64 |"
    )
    lines = ["AMD Instinct MI300X", *log(ARGUMENTS, []).splitlines(), report, report.replace("75.20GB", "74.10GB")]
    (tmp_path / "run.log").write_text("".join(f"{PRIMUS}{line}\n" for line in lines))
    table, notes = import_runs([tmp_path])
    assert ",MI300X," in table
    assert ",6.0486,75.2000,False," in table
    assert "memory: used on the device" in table
    assert not any("left out" in note for note in notes)


def test_a_batch_that_is_ramped_up(tmp_path: Path) -> None:
    """Only times of the last batch count."""
    text = log(ARGUMENTS, [1000.0] * 8 + [2500.0] * 4)
    head, rest = text.split(" iteration        9/", 1)
    run = imported(tmp_path, head.replace("batch size:    64", "batch size:    32") + " iteration        9/" + rest)
    assert (run.iter_time_s, run.launch.global_batch_size) == (2.5, 64)


@pytest.mark.parametrize("cut", range(40, 1500, 60))
def test_a_log_cut_anywhere(tmp_path: Path, cut: int) -> None:
    """What is there is used, or the message says what is missing; never another row."""
    text = log(ARGUMENTS, [2500.0] * 6)
    (tmp_path / "run.log").write_text(text[:cut])
    try:
        table = import_runs([tmp_path], gpu="h100-80gb")[0]
    except InputError as error:
        problem, known = str(error), ("break off", "no Megatron arguments", "neither times", "only its first iteration")
        assert any(part in problem for part in known)
    else:
        assert ",2.5," in table


def test_other_files_of_a_folder_are_named(tmp_path: Path) -> None:
    """With what they look like; a log of another program as well."""
    (tmp_path / "run.log").write_text(log(ARGUMENTS, [2500.0] * 6))
    (tmp_path / "titan.log").write_text("[rank0]:[titan] step: 10 loss: 8.5 tps: 1,103 mfu: 39\n")
    (tmp_path / "history.jsonl").write_text('{"_step": 2, "iteration-time": 23.0}\n')
    (tmp_path / "metrics.prom").write_bytes(b"\x1f\x8b\x00")
    notes = " ".join(import_runs([tmp_path], gpu="h100-80gb")[1])
    assert "titan.log: left out, no Megatron arguments" in notes
    assert "It looks like a log of torchtitan, which no command reads" in notes
    assert "history.jsonl: not read, a log ends in .log, .out, .txt, .err." in notes
    assert "metrics.prom: not read" in notes
    assert "It looks like a gzip archive" in notes
    for log_file in tmp_path.glob("*.log"):
        log_file.unlink()
    with pytest.raises(InputError, match=r"has no logs; they end in .* history\.jsonl: not read"):
        import_runs([tmp_path])


def test_unused_lines_of_logs_are_counted(tmp_path: Path) -> None:
    """Those of a job around it."""
    (tmp_path / "run.log").write_text("module load cuda\n" + log(ARGUMENTS, [2500.0] * 6) + "bye\n")
    notes = import_runs([tmp_path], gpu="h100-80gb")[1]
    assert "run.log: 2 of 29 lines were not used: first, line 1: 'module load cuda'." in notes


@pytest.mark.parametrize("part", ["[Rank 1] memory (MB) max allocated: 1 ", "a:a:", "x ... ", "memory (MB) "])
def test_hostile_logs_take_linear_time(tmp_path: Path, part: str) -> None:
    """Sixteen kilobytes of what reports begin with."""
    (tmp_path / "run.log").write_text(part * (16_384 // len(part)) + "\n" + log(ARGUMENTS, [2500.0] * 6))
    start = time.process_time()
    import_runs([tmp_path], gpu="h100-80gb")
    assert time.process_time() - start < 2


@pytest.mark.skipif(not FORMATS.is_dir(), reason=f"{FORMATS} is not here")
def test_formats_of_megatron_logs() -> None:
    """Time and memory of each as its description has them."""
    table = import_runs([FORMATS / "megatron-log"], gpu="mi300x")[0].splitlines()
    assert len(table) == 5
    for row, said in zip(
        table[1:], ("23.0449,49.0234,False", "5.3616,,False", ",,True", "6.0531,150.2000,"), strict=True
    ):
        assert said in row


@pytest.mark.parametrize(
    ("line", "times_ms", "oom"),
    [
        ("hint: CUDA out of memory? lower the micro-batch size", [900.0] * 6, False),
        ("hint: CUDA out of memory? lower the micro-batch size", [], True),
        ("RuntimeError: CUDA error: out of memory", [900.0] * 6, True),
        ("HIP out of memory. Tried to allocate 2.00 GiB.", [900.0] * 6, True),
        ("[rank9]: torch.OutOfMemoryError: CUDA out of memory.", [900.0] * 6, True),
    ],
)
def test_a_hint_is_no_error(line: str, times_ms: list[float], oom: bool) -> None:
    """Words about memory after good iterations are a hint; an error of PyTorch counts wherever it is."""
    reports = reports_of(read_as_log(log(ARGUMENTS, times_ms, line).encode(), "run.log"))
    assert reports.oom is oom


def test_reports_without_a_batch_size_take_linear_time() -> None:
    """A hundred thousand reports take milliseconds; with a look at all reports for each they took minutes."""
    began = time.perf_counter()
    assert len(Reports(times=[(0.25, "")] * 100_000).steady_s) == 100_000 - WARM_UP
    assert time.perf_counter() - began < 1


def test_a_huge_log_is_read_up_to_a_cap_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The start has the arguments, the end the last iterations; what lies between is left out with its size."""
    monkeypatch.setattr(log_lines, "MAX_LINES", 100)
    text = log(ARGUMENTS, [900.0 + step for step in range(500)])
    reports = reports_of(read_as_log(text.encode(), "run.log"))
    assert reports.arguments["world_size"]
    assert reports.times[-1][0] == pytest.approx(1.399)
    assert len(reports.times) < 100
    assert "run.log: 1 of its 1 MB, in the middle, are not read" in caplog.text


@pytest.mark.parametrize("text", ["", "a", "\n" * 50, "a\n" * 50, "a" * 500, "a\n" * 5 + "b" * 500 + "\nc" * 5])
@pytest.mark.parametrize(("lines", "characters"), [(10, 10**6), (10**6, 100), (10, 40)])
def test_caps_hold_for_any_text(text: str, lines: int, characters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read begins and ends as the text, within both caps; a text within them is unchanged."""
    monkeypatch.setattr(log_lines, "MAX_LINES", lines)
    monkeypatch.setattr(log_lines, "MAX_CHARACTERS", characters)
    kept, left_out = log_lines.within_caps(text)
    assert len(kept) <= characters + 1
    assert kept.count("\n") <= lines + 2
    assert len(text) == len(kept) + left_out - bool(left_out)
    assert (kept[:5], kept[-5:]) == (text[:5], text[-5:])


def test_words_of_a_fork_are_not_dropped(tmp_path: Path) -> None:
    """A fork prints arguments of its own: those that size the job are named; a launch or a log with them is refused."""
    path = tmp_path / "run.log"
    path.write_text(log(ARGUMENTS | {"lora_rank": "8", "lora_alpha": "16", "zero_stage": "0"}, [1000.0] * 9))
    with pytest.raises(InputError, match=r"left out, sets --lora_rank 8, which changes the size of the job"):
        import_runs([path], gpu="h100-80gb")
    with pytest.raises(InputError, match=r"sets --lora_rank 8, which changes the size of the job and is not read"):
        read_megatron_args(str(path), "--launch")
