"""A stack left out, on made-up stacks whose truth is known, and measured peaks with nothing fitted."""

import os
from pathlib import Path

import numpy as np
import pytest
from factories import make_regressors

from benchmarks.memory.stacks import SIMUMAX, leave_each_out, log_ratios, stack_peaks, stack_rows
from pipette_opt.calibrate.memory_runs import MemoryRun
from pipette_opt.specs.memory_constants import MemoryConstants

pytestmark = pytest.mark.search

FOLDER = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[3].parent / "shared")) / "measured"


def stack(seed: int, truth: MemoryConstants, count: int = 20) -> list[MemoryRun]:
    """Runs that take what these constants say."""
    rng = np.random.default_rng(seed)
    runs = []
    for _ in range(count):
        saved = rng.uniform(1, 30)
        regressors = make_regressors(counted=saved + rng.uniform(2, 30), base_gib=1.0, activations=saved)[None]
        taken = float((regressors @ truth.vector())[0])
        runs.append(MemoryRun(regressors=regressors, measured_rows=np.array([0]), capacity_gib=80.0, peak_gib=taken))
    return runs


def test_what_all_stacks_share_is_learnt_and_what_one_has_alone_is_not() -> None:
    """Three stacks that keep a third more activations; a fourth that does not: the formula is right about that one."""
    fat, lean = MemoryConstants(activations=0.33), MemoryConstants()
    stacks = {"a": stack(0, fat), "b": stack(1, fat), "c": stack(2, fat), "lean": stack(3, lean)}
    *same, other = leave_each_out(stacks)
    assert all(one.others < one.formula for one in same)
    assert all(one.formula > 0.05 for one in same)
    assert other.formula < 1e-6 < other.others
    assert [one["stack left out"] for one in stack_rows([*same, other])] == list(stacks)


@pytest.mark.skipif(not (FOLDER / "simumax.csv").is_file(), reason="no measured runs here")
def test_dense_rows_of_megatron_are_right_with_nothing_fitted() -> None:
    """SimuMax's eight peaks on B200: none more than half a percent off."""
    found = log_ratios(stack_peaks(FOLDER)[SIMUMAX])
    assert len(found) == 8
    assert found == pytest.approx(0.0, abs=0.005)
