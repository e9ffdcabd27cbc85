"""First lines of a plan for changed hosts."""

from dataclasses import replace

from factories import make_plan

from pipette_opt.plans.plan import MEASURED_RUNS, Band, Plan
from pipette_opt.replan.load_tables import _headline


def expecting(plan: Plan, factor: float, source: str) -> Plan:
    """The plan with a band around a factor of its simulated time."""
    middle_s = factor * plan.estimate.iteration_time_s
    band = Band(low_s=0.9 * middle_s, middle_s=middle_s, high_s=1.1 * middle_s, share=0.9, source=source, runs=30)
    return replace(plan, estimate=replace(plan.estimate, band=band))


def test_the_old_time_is_that_of_measured_runs() -> None:
    """Own runs say how long the old plan takes; without any, it is off as the new plan is."""
    plan = make_plan()
    own = [expecting(plan, factor, f"2 runs {MEASURED_RUNS}") for factor in (1.0, 2.0)]
    assert "(-50.0%)" in _headline(*own).plain
    assert "(+0.0%)" in _headline(expecting(plan, 1.0, "public runs"), own[1]).plain
