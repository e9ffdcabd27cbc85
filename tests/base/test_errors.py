"""How error messages show what they found."""

import pytest

from pipette_opt.base.errors import Errors, InputError, shown, together


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


def test_errors_together() -> None:
    """All problems in one error; the file is named once, a problem twice is one."""
    errors = Errors()
    assert errors.of(int, "3") == 3
    assert not errors
    for where, problem in (("a.sh, line 2", "one."), ("a.sh, line 3", "two."), ("a.sh", "three."), ("a.sh", "three.")):
        assert errors.fails(raise_error, InputError(where, problem))
    assert str(together(errors)) == "a.sh, line 2: one. Also: line 3: two. Also: three."


def raise_error(error: InputError) -> None:
    """Raise an error."""
    raise error
