"""Plans of several runs compared: what counts as the same answer."""

import copy
from typing import Any

import pytest
from benchmark_modules import loaded
from factories import make_plan

from pipette_opt.report.plan_file import plan_to_dict


@pytest.fixture
def plan() -> dict[str, Any]:
    """A plan that is proven optimal."""
    content = plan_to_dict(make_plan())
    content["certificate"]["status"] = "OPTIMAL"
    return content


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        (("created",), "2026-01-01T00:00:00", (True, True, [])),
        (("certificate", "wall_time_s"), 3.5, (True, True, [])),
        (("certificate", "lower_bound_s"), 0.125, (True, True, ["certificate.lower_bound_s"])),
        (("certificate", "status"), "FEASIBLE", (False, True, ["certificate.status"])),
        (("placement", 0, "host"), "other", (True, False, ["placement[].host"])),
        (("hosts",), ["other"], (True, False, ["hosts"])),
    ],
)
def test_what_is_the_same(
    plan: dict[str, Any], place: tuple[Any, ...], value: object, expected: tuple[bool, bool, list[str]]
) -> None:
    """Times do not count; bounds make other bytes, hosts another decision."""
    other = copy.deepcopy(plan)
    *way, last = place
    part: Any = other
    for step in way:
        part = part[step]
    part[last] = value
    assert loaded("same_answer", "hardening").compared(plan, other) == expected


def test_last_digits_are_the_same_decision(plan: dict[str, Any]) -> None:
    """A sum in another order is another text, and no other plan."""
    other = copy.deepcopy(plan)
    other["estimate"]["iteration_time_s"] *= 1 + 1e-14
    proven, decided, fields = loaded("same_answer", "hardening").compared(plan, other)
    assert (proven, decided, fields) == (True, True, ["estimate.iteration_time_s"])
    other["estimate"]["iteration_time_s"] *= 1 + 1e-9
    assert not loaded("same_answer", "hardening").compared(plan, other)[1]
