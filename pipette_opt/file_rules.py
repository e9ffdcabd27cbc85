"""Rules on what a plan file says beyond the plan: its verdict, and how far off its time may be."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pipette_opt.plan import Band, Plan
from pipette_opt.read.bands import job_band
from pipette_opt.report.plan_file import plan_verdict
from pipette_opt.specs import Instance
from pipette_opt.verify.common import REPRODUCED, same

FILE_RULES = ("verdict_is_reproduced", "band_is_reproduced")
"""Names of the rules, in the order in which they are checked."""


def broken_file_rules(content: Mapping[str, Any], instance: Instance, plan: Plan) -> list[str]:
    """
    Every broken rule by name, with what is said and what is right.

    Parameters
    ----------
    content
        Of the plan file. One without a verdict, of an older version, says nothing wrong.
    """
    said, right = content.get("verdict"), plan_verdict(plan)
    problems = [] if said in (None, right) else [f"verdict_is_reproduced: verdict is {said!r}, the plan says {right!r}"]
    band = job_band(instance, plan.config, plan.estimate.iteration_time_s)
    if plan.estimate.band is None or band is None:
        if plan.estimate.band is not band:
            problems.append(f"band_is_reproduced: band is {plan.estimate.band}, of runs like this it is {band}")
        return problems
    for field in fields(Band):
        given, expected = getattr(plan.estimate.band, field.name), getattr(band, field.name)
        if not same(given, expected, REPRODUCED):
            problems.append(f"band_is_reproduced: {field.name} is {given}, of runs like this it is {expected}")
    return problems
