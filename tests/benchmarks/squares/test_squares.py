"""Linear layers on squares of ranks: equal to the unpartitioned ones, and sent is what the cost model says."""

import pytest

from benchmarks.squares.costs import square_traffic
from benchmarks.squares.processes import SquareCheck, check_squares
from pipette_opt.base.errors import InputError

pytestmark = pytest.mark.search

WIDTHS = (32, 64, 32, 96)
"""Three layers: plain, skewed, plain."""


def assert_exact(found: SquareCheck) -> None:
    """Output and all gradients to rounding; every rank sent what the model says, to the element."""
    assert set(found.errors) == {"output", "input", *(f"weights {index + 1}" for index in range(len(found.products)))}
    assert found.worst < 1e-5
    assert found.sent == tuple(square_traffic(product) for product in found.products)


@pytest.mark.parametrize(("side", "num_layers"), [(1, 1), (1, 3), (2, 2), (4, 1), (4, 3), (8, 1)])
def test_ranks_in_threads(side: int, num_layers: int) -> None:
    """Forward pass and both gradients of chains of layers, on 1 to 64 ranks."""
    assert_exact(check_squares(64, WIDTHS[: num_layers + 1], side, seed=num_layers, threads=True))


def test_processes_over_gloo() -> None:
    """The same between processes, on 4 ranks."""
    assert_exact(check_squares(64, WIDTHS, 2))


@pytest.mark.parametrize(
    ("tokens", "widths", "side", "message"),
    [
        (30, (32, 64), 4, "tokens"),
        (32, (30, 64), 4, "inputs"),
        (32, (32, 30), 4, "outputs"),
        (36, (36, 36), 3, "power of two"),
        (32, (32,), 2, "at least two"),
    ],
)
def test_sizes_that_do_not_divide(tokens: int, widths: tuple[int, ...], side: int, message: str) -> None:
    """One message with the place, before any rank starts."""
    with pytest.raises(InputError, match=message):
        check_squares(tokens, widths, side)


def test_an_error_of_a_rank_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference is reported as it is: a shifted gradient does not pass for equal."""
    from benchmarks.squares import processes

    whole = processes._unpartitioned
    monkeypatch.setattr(processes, "_unpartitioned", lambda x, w, dy: whole(x, w, dy + 1.0))
    assert check_squares(32, (32, 32), 2, threads=True).worst > 1e-2
