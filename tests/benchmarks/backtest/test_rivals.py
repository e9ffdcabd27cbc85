"""The closed forms of others, by hand."""

import numpy as np
import pytest
from factories import make_run

from benchmarks.backtest.rivals import RIVALS, by_form, form_rows
from pipette_opt.calibrate.predict import predict_runs
from pipette_opt.costs.placed import PlacedTimes
from pipette_opt.specs import DEFAULT_STACK


def times(forward: float = 1.0, backward: float = 2.0, send: float = 0.5, reduction: float = 4.0) -> PlacedTimes:
    """Four equal stages, one replica."""
    stage = np.ones((1, 4, 1))
    sends = np.full((4, 1), send)
    return PlacedTimes(
        forward_s=forward * stage,
        backward_s=backward * stage,
        tensor_forward_s=0 * stage,
        tensor_backward_s=0 * stage,
        send_forward_s=sends,
        send_backward_s=sends,
        reduction_s=np.array([reduction, 1.0, 1.0, 1.0]),
        optimizer_s=0.1,
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # f + b = 3, messages of a round trip 6 * 0.5 = 3, m = 8, pp = 4
        ("pipette", 2 * (4 * 3 + 3) + 3 * 3 + 4),
        ("amp", 3 * (4 + 7) + 3 + 4),
        ("varuna", 12 + 7 * 3 + 3 + 4),
        ("megatron", (8 + 3) * 3),
    ],
)
def test_equal_stages(name: str, expected: float) -> None:
    """Eight micro-batches through four stages."""
    assert RIVALS[name](times(), 8) == pytest.approx(expected)


def test_few_micro_batches() -> None:
    """Pipette's other case: fewer micro-batches than stages."""
    assert RIVALS["pipette"](times(), 2) == pytest.approx(4 * 3 + 3 + 1 * 3 + 4)


def test_only_amp_takes_three_forwards() -> None:
    """With a backward of three forwards the others grow, AMP does not."""
    slow, usual = times(backward=3.0), times()
    assert RIVALS["amp"](slow, 8) == RIVALS["amp"](usual, 8)
    assert all(RIVALS[name](slow, 8) > RIVALS[name](usual, 8) for name in ("pipette", "varuna", "megatron"))


def test_errors_by_form() -> None:
    """Each formula has an entry; a run that cannot be predicted is in none."""
    predictions = predict_runs([make_run(row=0, iter_time_s=10.0), make_run(row=1, hidden=None)], DEFAULT_STACK)
    forms = by_form(predictions, DEFAULT_STACK)
    assert [row["form"] for row in form_rows(forms)] == ["ours", *RIVALS]
    assert [len(found) for found in forms.values()] == [1] * 5
    assert forms["ours"] == predictions[:1]
