"""The factor that all runs share."""

import numpy as np
import pytest

from pipette_opt.calibrate.common import RATES, SECONDS, common_factor, slowed
from pipette_opt.read.stack import read_stack


def test_few_runs_move_the_factor_less() -> None:
    """One run that takes twice as long tells 0.8 of it, many all; one spoiled row of five does not decide."""
    assert common_factor(np.array([2.0]), np.array([1.0])) == pytest.approx(2**0.8)
    assert common_factor(np.full(100, 2.0), np.ones(100)) == pytest.approx(2.0, rel=0.01)
    spoiled = common_factor(np.array([2.0, 2.0, 2.0, 2.0, 90.0]), np.ones(5))
    assert spoiled == pytest.approx(2 ** (5 / 5.25))


def test_everything_takes_as_much_longer() -> None:
    """Rates fall and seconds grow by the factor; shares stay at most 1 where it is faster."""
    stack = read_stack()
    slow, fast = slowed(stack, 2.0), slowed(stack, 0.5)
    for name in RATES:
        assert getattr(slow, name) == pytest.approx(getattr(stack, name) / 2)
    for name in SECONDS:
        assert getattr(slow, name) == pytest.approx(2 * getattr(stack, name))
    assert (fast.streaming, fast.intra_node) == (1.0, 1.0)
    assert fast.matmul_speed == 2 * stack.matmul_speed
