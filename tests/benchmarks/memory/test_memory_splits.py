"""Memory of measured runs: small jobs teach larger ones."""

import os
from pathlib import Path

import pytest

from benchmarks.memory.evaluation import SPLITS, coverage_of, evaluate_memory, evaluate_methods, split_cases
from pipette_opt.calibrate.memory_spread import fit_with_errors
from pipette_opt.specs.memory_constants import MemoryConstants

pytestmark = pytest.mark.search

FOLDER = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[3].parent / "shared")) / "measured"
needs_measurements = pytest.mark.skipif(not FOLDER.is_dir(), reason="no measured runs beside the project")


def test_an_absent_folder_is_said(tmp_path: Path) -> None:
    """Every split is named with its missing file, nothing else happens."""
    found = evaluate_memory(tmp_path)
    assert not found.methods
    assert len(found.notes) == len(SPLITS)


@needs_measurements
def test_small_jobs_teach_larger_ones() -> None:
    """H100 sweep, 8-16 GPUs to 32: median error below 6 %, at most one missed; and better than the formula."""
    known, tested = split_cases(SPLITS[0], FOLDER)
    fitted = fit_with_errors([run for _, run in known], MemoryConstants())
    ours, formula, *_ = evaluate_methods("h100", fitted, tested, 0.01)
    assert ours.median_error < 0.06
    assert ours.verdicts.missed <= 1
    assert ours.mean_error < 0.5 * formula.mean_error
    assert formula.verdicts.missed > 5
    assert all(one.holds for one in coverage_of("h100", fitted, [run for _, run in tested]))


@needs_measurements
def test_labels_of_one_size_judge_the_others() -> None:
    """WANT 13B, 64 GPUs to the rest, without one peak: nearly nothing missed, and 96 % right at even odds."""
    known, tested = split_cases(SPLITS[1], FOLDER)
    fitted = fit_with_errors([run for _, run in known], MemoryConstants())
    at_default = evaluate_methods("want", fitted, tested, 0.01)[0].verdicts
    even = evaluate_methods("want", fitted, tested, 0.5)[0].verdicts
    assert at_default.missed <= 1
    assert even.accuracy > 0.96


@needs_measurements
def test_stages_of_uneven_pipelines() -> None:
    """Mist's stages, calibrated on L4: those on A10G within 6 % in the mean."""
    split = next(one for one in SPLITS if "Aceso" in one.name)
    known, tested = split_cases(split, FOLDER)
    fitted = fit_with_errors([run for _, run in known], MemoryConstants())
    assert len(tested) > 100
    assert evaluate_methods("mist", fitted, tested, 0.01)[0].mean_error < 0.06


@needs_measurements
def test_tuned_plans_without_any_fit() -> None:
    """Mist's own plans on L4, Megatron-Core's constants: within 6 % in the mean."""
    split = next(one for one in SPLITS if "Mist's own" in one.name)
    known, tested = split_cases(split, FOLDER)
    assert not known
    assert len(tested) >= 18
    assert evaluate_methods("mist", MemoryConstants(), tested, 0.01)[0].mean_error < 0.06
