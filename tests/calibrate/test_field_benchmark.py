"""Predictions of runs out of threads: rows that name a model and degrees, and little more."""

from types import ModuleType

import pytest
from benchmark_modules import loaded


@pytest.fixture(scope="module")
def field() -> ModuleType:
    """The module, where there are rows to judge."""
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
    assert sum(field.says_oom(one) == one.run.oom for one in found) == 14
    text = field.page(found)
    assert "15 of 15 rows have a predicted time" in text
    assert "right for 14 of 15" in text
