"""Rules of finished packings, on both sides of their edges."""

from dataclasses import replace
from typing import Any

import pytest

from pipette_opt.base.errors import PlanError
from pipette_opt.verify.packing import PackingClaims, arithmetic_bound, step_time, verify_packing

CLAIMS = PackingClaims(
    lengths=(6, 4, 3, 2),
    works=(60, 40, 30, 20),
    places=((0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 1, 1)),
    bin_tokens=10,
    num_replicas=2,
    num_microbatches=2,
    num_stages=1,
    waits_each_microbatch=False,
    step_times=(100,),
    bound=75,
    is_arithmetic=True,
)
"""Replica 0 has a full bin and an empty one, replica 1 has two; half of the work of 150 is the bound."""


def test_a_right_packing_passes() -> None:
    """A full bin is within its capacity; the bound is half of the work, or any smaller number."""
    verify_packing(CLAIMS)
    verify_packing(replace(CLAIMS, bound=0))
    verify_packing(replace(CLAIMS, bound=100, is_arithmetic=False))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"places": CLAIMS.places[:3]}, "every document has a place: 4 documents, 3 places"),
        ({"places": (*CLAIMS.places[:3], (0, 2, 0))}, "document 3 is at .0, 2, 0., outside"),
        ({"places": (*CLAIMS.places[:3], (1, 0, 0))}, "document 3 is at .1, 0, 0., outside"),
        ({"places": (*CLAIMS.places[:3], (0, 0, -1))}, "document 3 is at .0, 0, -1., outside"),
        ({"bin_tokens": 9}, "bins hold their documents: the bin .0, 0, 0. has 10 tokens, at most 9"),
        ({"step_times": (99,)}, "times of steps: step 0 takes 100, not 99"),
        ({"num_stages": 2}, "times of steps: step 0 takes 200, not 100"),
        ({"bound": 76}, "lower bound: 76 is claimed, but only 75 is shown"),
        ({"bound": 101, "is_arithmetic": False}, "lower bound: 101 is claimed, but only 100 is shown"),
    ],
)
def test_each_rule(changed: dict[str, Any], message: str) -> None:
    """A step beyond each edge is refused, with the figures."""
    with pytest.raises(PlanError, match=message):
        verify_packing(replace(CLAIMS, **changed))


def test_time_of_a_step() -> None:
    """Each replica alone, or the slowest of each micro-batch; further stages add the largest."""
    works = [[5, 1], [3, 4]]
    assert [step_time(works, stages, False) for stages in (1, 3)] == [7, 6 + 2 * 5]
    assert [step_time(works, stages, True) for stages in (1, 3)] == [5 + 4, 9 + 2 * 5]


def test_bound_counts_long_documents() -> None:
    """Of three bins of 10, two have a document of 6; the largest two rounds of one replica take 60 each at least."""
    claims = replace(CLAIMS, lengths=(6, 6, 3), works=(60, 60, 6), num_replicas=1, num_microbatches=3)
    assert arithmetic_bound(replace(claims, num_stages=1)) == 126
    assert arithmetic_bound(replace(claims, num_stages=3)) == 126 + 2 * 60
    two = replace(claims, num_replicas=3, num_microbatches=1, waits_each_microbatch=True)
    assert arithmetic_bound(two) == 60
