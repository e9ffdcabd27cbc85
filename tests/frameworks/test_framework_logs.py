"""Logs of torchtitan, DeepSpeed and Hugging Face's trainers as results of a launch."""

import os
from pathlib import Path

import pytest
from tables import table

from pipette_opt.job.read import read_job
from pipette_opt.library.measured import with_measured
from pipette_opt.options.description import JobOptions
from pipette_opt.read.frameworks import report_in
from pipette_opt.tune.logs import LogResult, read_result

FORMATS = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared")) / "formats"

SIZES = {"global_batch_size": "512", "seq_length": "8192", "world_size": "128"}


def result(path: Path, **sizes: str) -> LogResult:
    """The result in a log of a run of these sizes."""
    found = read_result([path], {**SIZES, **sizes})
    assert isinstance(found, LogResult), found
    return found


@pytest.mark.parametrize(("line", "numbers"), table(__file__, "LINES"))
def test_lines(line: str, numbers: dict[str, float] | None) -> None:
    """The last report of a line; lines of others have none."""
    found = report_in(line)
    if numbers is None:
        assert found is None
    else:
        assert found is not None
        assert {name: getattr(found, name) for name in numbers} == numbers


@pytest.mark.skipif(not FORMATS.exists(), reason=f"{FORMATS} is not here")
@pytest.mark.parametrize(("name", "sizes", "seconds", "peak_gib"), table(__file__, "FILES"))
def test_public_forms_of_logs(name: str, sizes: dict[str, str], seconds: float, peak_gib: float | None) -> None:
    """Seconds of an iteration after warm-up, and the memory that PyTorch reserved."""
    found = result(FORMATS / name, **sizes)
    assert found.time_s == pytest.approx(seconds, rel=5e-3)
    assert (found.peak_bytes or 0) / 2**30 == pytest.approx(peak_gib or 0.0, rel=1e-3)


def test_a_launch_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of tokens become seconds by the sizes of the launch; JSON of DeepSpeed is a launch, not a plan."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(
        '{"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, '
        '"zero_optimization": {"stage": 3}}'
    )
    rates = (10.1, 12.8, 12.8, 12.8, 12.8, 12.8)
    (tmp_path / "run.log").write_text("".join(f"global_step=1, CurrSamplesPerSec={rate}, \n" for rate in rates))
    job = read_job(JobOptions(nodes="1", gpu="h100", model="llama-3.1-8b", seq_length=4096, launch="ds.json"))
    assert job.instance.training.global_batch_size == 64
    (anchor,) = with_measured(job, ["ds.json=run.log"]).instance.stack.anchors
    assert anchor.run == "ds.json: 5.00 s"
