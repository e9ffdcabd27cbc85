"""Numbers for people."""

import pytest

from pipette_opt.base.units import percent, three_digits


@pytest.mark.parametrize(
    ("value", "said"),
    [(66.0, "66.0"), (55.4225, "55.4"), (0.012345, "0.0123"), (7936.2, "7,940"), (99.96, "100"), (0.0, "0.00")],
)
def test_three_digits(value: float, said: str) -> None:
    """No exponent, zeros where they tell how exact it is, rounded once."""
    assert three_digits(value) == said


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.0, "0.00 %"), (4e-5, "< 0.01 %"), (0.0312, "3.12 %"), (0.6112, "61.1 %"), (1.337, "134 %"), (-0.2, "-20.0 %")],
)
def test_percent(share: float, said: str) -> None:
    """Three digits; what is not 0 is not shown as 0."""
    assert percent(share) == said


def test_order_is_kept() -> None:
    """A larger number never reads as a smaller one."""
    values = [0.0012 * 1.07**step for step in range(300)]
    said = [float(three_digits(value).replace(",", "")) for value in values]
    assert said == sorted(said)
    assert all(abs(one / value - 1) < 5.1e-3 for one, value in zip(said, values, strict=True))
