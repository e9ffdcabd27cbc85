"""Predictions of runs out of threads: rows that name a model and degrees, and little more."""

from types import ModuleType

import pytest
from benchmark_modules import loaded

from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.predict import predicted_times_s
from pipette_opt.read.runs import read_runs
from pipette_opt.read.stack import read_stack
from pipette_opt.worlds.bands import job_band

pytestmark = pytest.mark.search


@pytest.fixture(scope="module")
def field() -> ModuleType:
    """The module, where there are rows to test on."""
    module = loaded("field")
    if not module.MEASURED.is_file():
        pytest.skip("the measured runs are not here")
    return module


def test_all_rows_are_predicted(field: ModuleType) -> None:
    """Time, peak and whether it fits, of every row; the page says how far off that is."""
    found = field.predictions()
    assert len(found) == 15
    for one in found:
        assert one.iter_time_s is not None, one.reason
        assert set(one.memory) >= {"predicted_peak_mem_gib", "upper_peak_mem_gib", "oom_probability"}
    ratios = [1 + one.error for one in found if one.error is not None]
    assert len(ratios) == 14
    # A fine-tuning loop takes longer than its iterations; all others are within a third.
    assert sum(not 0.7 < ratio < 1.3 for ratio in ratios) == 1
    assert sum(field.says_oom(one) == one.run.oom for one in found) == 15
    text = field.page(found)
    assert "15 of 15 rows have a predicted time" in text
    assert "right for 15 of 15" in text


def test_nine_in_ten_lie_in_their_band(field: ModuleType) -> None:
    """Measured times against the band of each prediction; the fine-tuning loop is the one outside."""
    cases = [one for one in make_cases(read_runs(field.MEASURED), read_stack()) if isinstance(one, Case)]
    timed = [one for one in cases if one.run.iter_time_s and not one.run.oom]
    inside = []
    for case, predicted_s in zip(timed, predicted_times_s(timed).tolist(), strict=True):
        band = job_band(case.instance, case.config, predicted_s)
        inside.append(band.low_s <= (case.run.iter_time_s or 0.0) <= band.high_s)
    assert (sum(inside), len(inside)) == (13, 14)
