"""Regular expressions take time in proportion to the text, whatever the text is."""

import re

import pytest
from benchmark_modules import loaded

pytestmark = pytest.mark.search


def test_patterns_are_linear() -> None:
    """No pattern of the package grows faster than its text under the shorter list of attacks."""
    regexes = loaded("regexes", "hardening")
    places = list(regexes.patterns())
    assert len(places) > 200
    found = [(place, attack) for place, one, method in places if (attack := regexes.worse_than_linear(one, method, 5))]
    assert not found


@pytest.mark.parametrize(
    ("pattern", "method", "kind"),
    [
        (r"\d+\.?\d*x", "match", "ms"),
        (r"\s*(\S+:)?\s*a", "match", "ms"),
        (r"(?:[a-z]+ ?)+$", "match", "exponential"),
        (r"\d+x", "search", "ms"),
        (r"(?<!\d)\d+x", "search", None),
        (r"\[[^\]]*\]", "match", None),
    ],
)
def test_attacks_find_what_is_slow(pattern: str, method: str, kind: str | None) -> None:
    """Quadratic and exponential patterns are found, and linear ones are not."""
    attack = loaded("regexes", "hardening").worse_than_linear(re.compile(pattern), method)
    assert attack is None if kind is None else attack.endswith(kind)
