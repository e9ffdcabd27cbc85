"""Best public MFU of each kind, from measured runs."""

from pathlib import Path

import pytest
from factories import make_run

from benchmarks.best_mfu import MIN_RUNS, by_kind, mfu_of, text_of
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.read.stack import read_stack
from pipette_opt.worlds.best_mfu import read_best_runs


def cases_of(*changes: dict[str, object]) -> list[Case]:
    """Return a measured run of a GPT of 24 layers for each set of changes."""
    cases = make_cases(
        [make_run(**{"iter_time_s": 2.0, "source": "DGXC-benchmarking-25.05"} | own) for own in changes], read_stack()
    )
    assert all(isinstance(case, Case) for case in cases)
    return [case for case in cases if isinstance(case, Case)]


def test_mfu_by_hand() -> None:
    """
    FLOPs of a GPT of 24 layers of width 2,048, over 2 s of 16 A100.

    A layer has 12 h^2 weights, and a token sees 1,024.5 tokens on average: 12 h FLOPs for each.
    """
    (case,) = cases_of({"vocab": 51200})
    per_token = 6 * (24 * 12 * 2048**2 + 51200 * 2048) + 24 * 12 * 2048 * 1024.5
    assert mfu_of(case) == pytest.approx(per_token * 64 * 2048 / (2.0 * 16 * 312e12), rel=1e-3)


def test_the_best_of_each_kind(tmp_path: Path) -> None:
    """The shortest of equal jobs; small models and rare kinds are left out; the file is read as written."""
    slow, fast, small, fp4, eight = cases_of(
        {},
        {"iter_time_s": 1.0},
        {"iter_time_s": 0.7, "hidden": 1024},
        {"iter_time_s": 0.5, "gpu": "b200", "precision": "nvfp4"},
        {"gpu": "h100-80gb", "precision": "fp8", "source": "a page"},
    )
    assert fp4.instance.training.fp4
    cases = (*[slow] * (MIN_RUNS - 1), fast, *[small] * MIN_RUNS, *[fp4] * (MIN_RUNS - 1), *[eight] * MIN_RUNS)
    kinds = by_kind(("ABC", case) for case in cases)
    assert list(kinds) == ["dense, 16 bit, ampere", "dense, fp8, hopper"]
    best, other, *_ = kinds["dense, 16 bit, ampere"]
    assert best.mfu == pytest.approx(2 * other.mfu, abs=2e-4)
    assert (best.runs, best.model, best.num_gpus, best.gpu) == (MIN_RUNS, "gpt", 16, "a100-80gb")
    assert best.source == "DGXC-benchmarking-25.05, NVIDIA/dgxc-benchmarking@c5c765f"
    assert kinds["dense, fp8, hopper"][0].source == "a page"
    path = tmp_path / "best.csv"
    path.write_text(text_of(runs[0] for runs in kinds.values()), encoding="utf-8")
    assert read_best_runs(path) == {kind: runs[0] for kind, runs in kinds.items()}
