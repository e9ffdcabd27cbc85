"""Ranges and odds of memory beside runs whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest
from factories import make_regressors

from benchmarks.memory.odds import Odds, between_and_within, odds_of, page, refused_and_passed
from pipette_opt.calibrate.memory_runs import MemoryRun
from pipette_opt.specs.memory_constants import MemoryConstants


def runs(factor: float, count: int = 6) -> list[MemoryRun]:
    """Runs on 80 GiB of a stack that takes ``factor`` times the predicted memory."""
    found = []
    for tensors in np.linspace(30, 70, count).tolist():
        need = factor * tensors
        run = MemoryRun(
            regressors=make_regressors(counted=tensors, activations=tensors / 2)[None],
            measured_rows=np.array([0]),
            capacity_gib=80.0,
            peak_gib=need if need < 79 else None,
            ran_out=need >= 79,
        )
        found.append(run)
    return found


def test_errors_and_odds_of_a_stack() -> None:
    """A stack that takes 1.2 times as much lies inside the range; the run that ran out has the largest risk."""
    found = odds_of(MemoryConstants(), runs(1.2, 3))
    assert found.error[:2] == pytest.approx(np.log(1.2), abs=0.01)
    assert np.isnan(found.error[2])
    assert found.ran_out.tolist() == [0, 0, 1]
    assert (found.spread[:2] > 0.2).all()
    assert found.chance[2] > 0.2 > found.chance[:2].max()


def test_refused_and_passed() -> None:
    """Of two runs that ran one has a higher risk, of three that ran out one a lower; a run without outcome is none."""
    empty = np.zeros(6)
    found = Odds(
        error=empty,
        spread=empty,
        chance=np.array([0.05, 0.2, 0.1, 0.3, 0.9, 0.5]),
        ran_out=np.array([0, 0, 1, 1, 1, np.nan]),
    )
    assert refused_and_passed([found], 0.1) == (1 / 2, 1 / 3)


def test_deviations_between_and_within() -> None:
    """Two publishers at +-0.2 whose own runs differ by 0.1."""
    between, within = between_and_within([np.array([0.1, 0.2, 0.3] * 9), np.array([-0.1, -0.2, -0.3] * 9)])
    assert within == pytest.approx(np.sqrt(2 / 3) * 0.1)
    assert between == pytest.approx(0.2, abs=0.002)


def test_the_page_says_what_each_range_holds() -> None:
    """Its answer comes first, and a publisher has a row in every table."""
    lines = page({"as shipped": runs(1.0), "a fifth more": runs(1.2), "less": [*map(_fitted, runs(0.9))]}).splitlines()
    assert lines[0] == "# Memory of stacks that nobody fitted"
    assert lines[2].startswith("- `--max-oom-risk 0.1`, the default, refuses")
    assert "100% do" in lines[3]
    assert sum(line.startswith("| a fifth more |") for line in lines) >= 3
    assert any(line.startswith("| 0% to 1% |") for line in lines)


def _fitted(run: MemoryRun) -> MemoryRun:
    return replace(run, ran_out=False)
