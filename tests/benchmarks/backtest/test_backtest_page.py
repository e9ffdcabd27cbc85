"""Tables of the back-test's page."""

from types import ModuleType

import pytest
from benchmark_modules import loaded
from factories import make_run

from pipette_opt.calibrate.predict import Prediction


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """The module."""
    return loaded("page")


def predicted(seconds: float, measured: float) -> Prediction:
    """A run and what was said of it."""
    return Prediction(run=make_run(iter_time_s=measured), iter_time_s=seconds)


def test_row_of_an_experiment(page: ModuleType) -> None:
    """Errors of a tenth and of a fifth; a rank needs three runs, and then the best is found."""
    row = page.result_row("some", 5, [predicted(1.1, 1.0), predicted(2.4, 2.0)], "<= 20 %")
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells == [
        "some",
        "5",
        "2",
        "15.0%",
        "19.0%",
        "",
        "0.0%",
        "",
        "<= 20 %",
    ]
    ranked = page.result_row("some", 5, [predicted(time, time) for time in (1.0, 2.0, 3.0)], "")
    assert "| 1.000 |" in ranked


def test_an_experiment_without_predictions_does_not_stop_the_others(page: ModuleType) -> None:
    """Its row says that none was tested, its section why."""
    lost = [Prediction(run=make_run(), reason="gbs not given")] * 2
    unmeasured = Prediction(run=make_run(iter_time_s=None), reason="gbs not given")
    assert page.result_row("some", 5, lost, "").split("|")[3].strip() == "0"
    assert page.left_out([*lost, unmeasured, predicted(1.0, 1.0)]) == ["Not predicted: 2 (gbs not given).\n"]
    assert page.left_out([predicted(1.0, 1.0)]) == []
