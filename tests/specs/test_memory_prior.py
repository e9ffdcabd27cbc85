"""What is unknown about a stack's memory constants, against hand counts."""

from dataclasses import replace

import numpy as np
import pytest
from factories import make_regressors

from pipette_opt.base.types import FloatArray
from pipette_opt.specs.memory_constants import NEEDED, MemoryConstants
from pipette_opt.specs.memory_prior import MAX_UNKNOWN, SPREADS, STATE, unknown_widths, with_figures

BASE = MemoryConstants()


def slope(name: str, value: float) -> FloatArray:
    """Derivatives of one figure, which depends on one constant."""
    row = np.zeros((1, len(STATE)))
    row[0, STATE.index(name)] = value
    return row


def width(constants: MemoryConstants, **parts: float) -> float:
    """Deviation of one row."""
    return float(unknown_widths(constants, make_regressors(**parts)[None], NEEDED)[0])


def of_logarithm(relative: float) -> float:
    """Deviation of the logarithm of the log-normal variable with this relative deviation."""
    return float(np.sqrt(np.log1p(relative**2)))


def test_independent_constants_add_as_squares() -> None:
    """40 GiB of tensors, and 10 GiB of activations that a stack may store again: 3 % of 40, and 0.4 times 10."""
    assert width(BASE, counted=40.0) == pytest.approx(of_logarithm(SPREADS["counted"]))
    expected = np.hypot(0.03 * 40, 0.4 * 10) / 40
    assert width(BASE, counted=40.0, activations=10.0) == pytest.approx(of_logarithm(expected))


def test_no_range_is_wider_than_those_of_public_peaks() -> None:
    """Logits alone, of which a stack may keep several copies: the deviation ends at the largest of public runs."""
    assert width(BASE, logit_bytes=10.0, counted=1.0) == MAX_UNKNOWN


def test_a_returned_block_does_not_count() -> None:
    """Blocks of the optimizer's step are returned before memory runs out."""
    assert width(BASE, counted=40.0, step_bytes=30.0) == pytest.approx(of_logarithm(SPREADS["counted"]))


def test_a_measured_figure_narrows_its_constants() -> None:
    """The precision of a normal prior and that of a measurement add; other constants stay as unknown as before."""
    known = with_figures(BASE, slope("activations", 5.0))
    deviation = 1 / np.sqrt(0.4**-2 + 5.0**2)
    assert width(known, counted=40.0, activations=10.0) == pytest.approx(
        of_logarithm(np.hypot(1.2, deviation * 10) / 40)
    )
    assert width(known, counted=40.0, score_bytes=2.0) == pytest.approx(width(BASE, counted=40.0, score_bytes=2.0))


def test_many_figures_are_kept_in_few_rows() -> None:
    """Their information is that of all of them; a figure that tells nothing adds no row."""
    known = BASE
    for _ in range(50):
        known = with_figures(known, slope("activations", 1.0))
    assert len(known.information) <= len(STATE)
    deviation = 1 / np.sqrt(0.4**-2 + 50)
    assert width(known, counted=40.0, activations=10.0) == pytest.approx(np.hypot(1.2, deviation * 10) / 40, rel=1e-3)
    assert with_figures(BASE, slope("activations", 0.0)).information == ()


def test_errors_of_held_out_runs_contain_it() -> None:
    """A stack that was calibrated on enough peaks has nothing more to add."""
    assert width(replace(BASE, activation_spread=0.1), counted=40.0) == 0.0


def test_rows_of_another_length_are_refused() -> None:
    """A file of another version cannot be mistaken."""
    with pytest.raises(ValueError, match="information must have"):
        replace(BASE, information=((1.0, 2.0),))
