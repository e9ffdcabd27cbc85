"""The searched space once more: what is legal, what fits, and what no placement can undercut."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.candidates import Enumeration, SearchSpace, enumerate_with_reasons, space_of
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.filter import MemoryCheck
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Plan
from pipette_opt.simulate.fullness import stack_predictor
from pipette_opt.specs import Instance
from pipette_opt.verify.bounds import cheap_bounds_s, fastest_placement_s
from pipette_opt.verify.common import CHEAP, CLOSED_GAP, REPRODUCED
from pipette_opt.verify.memory import accepted_risk

MAX_PLACEMENTS = 10_000
"""Placements that are simulated one by one; about two seconds. Chosen: seven hosts have 5,040."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Searched:
    """
    What a plan says that it searched, enumerated again.

    Parameters
    ----------
    memory
        Of every legal configuration.
    claimed_s
        No plan is faster, it is said; rounding is taken off.
    enough_s
        The largest time that cheap bounds are said to reach, or ``claimed_s`` if that is more.
    """

    instance: Instance
    space: SearchSpace
    enumeration: Enumeration
    memory: MemoryCheck
    claimed_s: float
    enough_s: float

    @classmethod
    def again(cls, instance: Instance, plan: Plan) -> Self:
        """
        From the plan's inputs. ``InputError`` if they do not say.

        Where links of single GPUs are known, on relaxed hosts: no order of slots is faster than there.
        """
        instance = replace(instance, cluster=instance.cluster.relaxed())
        space = recorded_space(plan)
        enumeration, risk = enumerate_with_reasons(instance, space), accepted_risk(plan.inputs)
        memory = check_memory(instance, enumeration.candidates, stack_predictor(instance.stack), risk)
        claimed_s = plan.certificate.lower_bound_s * (1 - CLOSED_GAP)
        said = [part.bound_s for part in plan.certificate.proof if part.by in CHEAP and part.bound_s is not None]
        return cls(
            instance=instance,
            space=space,
            enumeration=enumeration,
            memory=memory,
            claimed_s=claimed_s,
            enough_s=max([claimed_s, *said]),
        )

    @cached_property
    def bounds_s(self) -> FloatArray:
        """Of each fitting configuration: no placement of it is faster by the simulator; see :mod:`.bounds`."""
        return cheap_bounds_s(self.instance, self.memory.fitting, self.memory.capacity_bytes, self.enough_s)

    @cached_property
    def bounds_both_ways_s(self) -> FloatArray:
        """
        The same over the slower direction of the best pair of hosts, as bounds of the search may count messages.

        Of rings, which go one way, it is no bound: it tells how much of a bound can be the directions' difference.
        """
        memory = self.memory
        both = cheap_bounds_s(self.instance, memory.fitting, memory.capacity_bytes, self.enough_s, both_ways=True)
        return np.maximum(self.bounds_s, both)

    def num_from(self, seconds: float, enough: int) -> int:
        """Fitting configurations that take at least so long; the slower bound is asked if these are not ``enough``."""
        least = seconds * (1 - REPRODUCED)
        found = int(np.count_nonzero(self.bounds_s >= least))
        return found if found >= enough else int(np.count_nonzero(self.bounds_both_ways_s >= least))

    @property
    def all_measured(self) -> bool:
        """Whether every pair of hosts has a measurement in both directions."""
        cluster = self.instance.cluster
        return bool(cluster.usable_links.sum() == cluster.num_nodes * (cluster.num_nodes - 1))

    @cached_property
    def bounded(self) -> "Bounded":
        """
        Which configurations are shown here to take as long as is claimed: by the cheap bound, or by all of their few
        placements. At most ``MAX_PLACEMENTS`` are simulated, of all configurations together.
        """
        left, unknown, faster = MAX_PLACEMENTS, [], []
        for index in np.flatnonzero(self.bounds_s < self.claimed_s).tolist():
            one = self.memory.fitting[index]
            simulated = fastest_placement_s(self.instance, one, self.memory.capacity_bytes, left)
            if simulated is None:
                unknown.append(one.config)
                continue
            left -= simulated[1]
            if simulated[0] < self.claimed_s:
                faster.append((one.config, simulated[0]))
        return Bounded(open_configs=tuple(unknown), faster=tuple(faster))


class Bounded(NamedTuple):
    """
    What is left of the fitting configurations.

    Parameters
    ----------
    open_configs
        Only the search says that no placement of these is faster than is claimed.
    faster
        Those with a placement that is, and its time in seconds.
    """

    open_configs: tuple[ParallelConfig, ...]
    faster: tuple[tuple[ParallelConfig, float], ...]


def recorded_space(plan: Plan) -> SearchSpace:
    """What the plan says that it searched. ``InputError`` if it does not."""
    recorded = plan.inputs.get("search")
    if not isinstance(recorded, Mapping):
        raise InputError("inputs.search", "is missing, so what was searched is not known; solve again.")
    return space_of(recorded)
