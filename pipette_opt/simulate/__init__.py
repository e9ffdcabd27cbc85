"""Simulator: iteration time of a schedule on the operation times of a placement."""

from pipette_opt.parallel.schedule import Schedule, build_schedule, in_flight, max_in_flight
from pipette_opt.simulate.critical_path import critical_path
from pipette_opt.simulate.estimate import Simulated, estimate, simulate_times
from pipette_opt.simulate.many import estimate_many, simulate_many
from pipette_opt.simulate.orders import SCHEDULES, named_schedule, parse_order
from pipette_opt.simulate.schedule import check_schedule
from pipette_opt.simulate.trace import trace_events, write_trace

__all__ = [
    "SCHEDULES",
    "Simulated",
    "Schedule",
    "build_schedule",
    "check_schedule",
    "critical_path",
    "estimate",
    "estimate_many",
    "in_flight",
    "simulate_many",
    "simulate_times",
    "max_in_flight",
    "named_schedule",
    "parse_order",
    "trace_events",
    "write_trace",
]
