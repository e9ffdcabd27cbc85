"""First lines of a plan for changed hosts."""

from dataclasses import replace

from factories import make_plan

from pipette_opt.base.units import three_digits
from pipette_opt.plans.plan import MEASURED_RUNS, Band, Plan
from pipette_opt.replan.load_tables import _headline


def expecting(plan: Plan, factor: float, source: str) -> Plan:
    """The plan with a band around a factor of its simulated time."""
    middle_s = factor * plan.estimate.iteration_time_s
    band = Band(low_s=0.9 * middle_s, middle_s=middle_s, high_s=1.1 * middle_s, share=0.9, source=source, runs=30)
    return replace(plan, estimate=replace(plan.estimate, band=band))


def test_both_times_are_the_plans_own() -> None:
    """The change is that of simulated times, the seconds are those that ``estimate`` gives each plan."""
    plan = make_plan()
    old = expecting(plan, 1.3, "public runs")
    fast = replace(plan, estimate=replace(plan.estimate, iteration_time_s=0.8 * plan.estimate.iteration_time_s))
    shown = _headline(old, expecting(fast, 1.3, f"2 runs {MEASURED_RUNS}")).plain
    assert "25.0 % more than before" in shown
    assert f"before ({three_digits(old.estimate.expected_s)} s with " in shown
