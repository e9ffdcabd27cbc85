"""The judge: how long one iteration takes when the real schedule runs on the placed times."""

from pipette_opt.estimator.closed_form import lower_s, period_s, upper_s
from pipette_opt.estimator.critical_path import critical_path
from pipette_opt.estimator.estimate import Judged, estimate, judge_times
from pipette_opt.estimator.schedule import Schedule, build_schedule, check_schedule, max_in_flight

__all__ = [
    "Judged",
    "Schedule",
    "build_schedule",
    "check_schedule",
    "critical_path",
    "estimate",
    "judge_times",
    "lower_s",
    "max_in_flight",
    "period_s",
    "upper_s",
]
