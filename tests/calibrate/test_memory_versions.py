"""Factors of versions of a stack."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import kept_in_file

from pipette_opt.calibrate.memory_runs import MemoryRun, predict_memory
from pipette_opt.calibrate.memory_spread import fit_with_errors
from pipette_opt.specs.memory_constants import REGRESSORS, MemoryConstants

pytestmark = pytest.mark.search


def sweep(factors: dict[str, float], count: int) -> list[MemoryRun]:
    """So many runs of each version in turn; each takes the counted tensors times 1.04 and times its factor."""
    rng = np.random.default_rng(1)
    runs = []
    for version, factor in factors.items():
        for index in range(count):
            regressors = np.zeros((1, len(REGRESSORS)))
            regressors[0, REGRESSORS.index("counted")] = size = rng.uniform(5, 60)
            peak = 1.04 * factor * size * np.exp(rng.normal(0, 0.01))
            runs.append(MemoryRun(regressors=regressors, measured_rows=np.array([0]), capacity_gib=200.0, peak_gib=peak,
                                  group=str(index), version=version))  # fmt: skip
    return runs


def test_versions_are_told_apart() -> None:
    """The older version takes an eighth more: found within a hundredth, and the constants are those of the newer."""
    runs = sweep({"1.0": 1.125, "2.0": 1.0}, 20)
    fitted = fit_with_errors(runs, MemoryConstants())
    assert dict(fitted.versions).keys() == {"1.0"}
    assert fitted.factor("1.0") == pytest.approx(1.125, abs=0.01)
    assert fitted.factor("2.0") == fitted.factor("of the future") == 1.0
    assert fitted.counted == pytest.approx(1.04, abs=0.01)
    old, new = predict_memory(fitted, runs[0]), predict_memory(fitted, replace(runs[0], version=""))
    assert old.taken_gib / new.taken_gib == pytest.approx(fitted.factor("1.0"))
    assert old.needed_gib / new.needed_gib == pytest.approx(fitted.factor("1.0"))


def test_without_versions_nothing_changes() -> None:
    """One version, or a second one with three runs: no factor but 1."""
    runs = sweep({"1.0": 1.0}, 20)
    assert fit_with_errors(runs, MemoryConstants()).versions == {}
    few = sweep({"0.9": 1.3}, 3) + runs
    assert fit_with_errors(few, MemoryConstants()).versions == {}


def test_versions_go_through_a_file(tmp_path: Path) -> None:
    """Their names may have dots; factors beyond e are refused."""
    versions = {"2.1": 0.05, "a b": -0.1}
    assert kept_in_file(MemoryConstants(versions=versions), tmp_path).versions == versions
    with pytest.raises(ValueError, match=r"versions.3 must be within 1 of 0, got 1.5"):
        MemoryConstants(versions={"3": 1.5})
