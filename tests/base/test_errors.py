"""How error messages show what they found."""

import pytest

from pipette_opt.base.errors import shown


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "nothing"),
        ("x", "'x'"),
        ("x" * 58, f"'{'x' * 58}'"),
        ("x" * 59, f"'{'x' * 56}..."),
        (10**4300, "a number of thousands of digits"),
    ],
    ids=["empty", "short", "60 characters", "61 characters", "4301 digits"],
)
def test_values_are_shown_short(value: object, expected: str) -> None:
    """At most 60 characters, also of what Python does not print."""
    assert shown(value) == expected
