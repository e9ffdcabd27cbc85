"""
Ranges of the ratio of two plans' times.

Most of what nobody knows of a stack changes the times of all its plans alike, so a ratio is surer than either time.
"""

from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.specs import Instance
from pipette_opt.worlds.bands import SHARE
from pipette_opt.worlds.factor import anchored, unmoved
from pipette_opt.worlds.terms import described_plan

Placed = tuple[Instance, ParallelConfig, Placement]
"""Job, configuration and placement of a plan."""


def ratio_ends(plan: Placed, other: Placed) -> tuple[float, float]:
    """
    Return lower and upper end of the ratio of a plan's measured time to that of another plan of the same stack.

    In ``SHARE`` of the pairs of measured runs in the worlds that the measured runs of the stack leave. For different
    configurations: the noise of both runs would be all that the range of one configuration tells.
    """
    (plan_s, terms), (other_s, other_terms) = (
        described_plan(unmoved(instance), config, placement) for instance, config, placement in (plan, other)
    )
    low, _, high = anchored(plan[0]).ratio_bands(terms[None], other_terms, SHARE)[0].tolist()
    return low * plan_s / other_s, high * plan_s / other_s
