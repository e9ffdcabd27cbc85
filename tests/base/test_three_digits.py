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
    [
        (0.0, ("0.00 %", "0.0 %")),
        (4e-5, ("less than 0.01 %", "less than 0.1 %")),
        (0.0312, ("3.12 %", "3.1 %")),
        (0.09996, ("10.0 %", "10 %")),
        (0.6112, ("61.1 %", "61 %")),
        (0.9996, ("100 %", "100 %")),
        (1.337, ("134 %", "134 %")),
        (-0.2, ("-20.0 %", "-20 %")),
    ],
)
def test_percent(share: float, said: tuple[str, str]) -> None:
    """With two decimals at most, or one; what is not 0 is not shown as 0."""
    assert (percent(share), percent(share, decimals=1)) == said


def test_order_is_kept() -> None:
    """A larger number never reads as a smaller one."""
    values = [0.0012 * 1.07**step for step in range(300)]
    said = [float(three_digits(value).replace(",", "")) for value in values]
    assert said == sorted(said)
    assert all(abs(one / value - 1) < 5.1e-3 for one, value in zip(said, values, strict=True))
