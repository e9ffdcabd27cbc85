"""Relaxations with the critical paths of one placement: equal to its simulated time where hops decide."""

from pipette_opt.base.types import IntArray
from pipette_opt.costs.placed import placed_times
from pipette_opt.parallel import tile_placement
from pipette_opt.problem.build import with_paths
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.specs import Instance

TICKS = 1e-5
"""Largest relative difference that the rounding of times to ticks makes."""


def learned(job: Instance, data: ProblemData, candidate: CandidateData, nodes: IntArray) -> float:
    """Return the objective with a placement's critical paths, relative to its simulated time."""
    times = placed_times(job, candidate.config, tile_placement(candidate.config, candidate.tile, nodes))
    counts = critical_counts(times, candidate.num_microbatches, job.p2p, deciding_starts=True)
    form_s = objective_ticks(data, with_paths(job, data, candidate, [counts]), nodes) * data.tick_s
    return form_s / simulate_times(times, candidate.num_microbatches, job.p2p).iteration_time_s
