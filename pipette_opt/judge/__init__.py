"""The judge: how long one iteration takes when the real schedule runs on the placed times."""

from pipette_opt.judge.closed_form import closed_s, period_s
from pipette_opt.judge.critical_path import critical_path
from pipette_opt.judge.estimate import Judged, estimate, judge_times
from pipette_opt.judge.many import estimate_many, judge_many
from pipette_opt.judge.orders import SCHEDULES, named_schedule, parse_order
from pipette_opt.judge.schedule import Schedule, build_schedule, check_schedule, in_flight, max_in_flight
from pipette_opt.judge.trace import trace_events, write_trace

__all__ = [
    "SCHEDULES",
    "Judged",
    "Schedule",
    "build_schedule",
    "check_schedule",
    "closed_s",
    "critical_path",
    "estimate",
    "estimate_many",
    "in_flight",
    "judge_many",
    "judge_times",
    "max_in_flight",
    "named_schedule",
    "parse_order",
    "period_s",
    "trace_events",
    "write_trace",
]
