"""Searched space of a plan, enumerated again: legal and fitting configurations, and bounds on their placements."""

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
"""Most placements simulated one by one; about two seconds. Chosen: seven hosts have 5,040."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Searched:
    """
    Searched space of a plan, enumerated again.

    Parameters
    ----------
    memory
        Memory check of every legal configuration.
    claimed_s
        The certificate's lower bound, less rounding, seconds.
    enough_s
        Largest recorded time of the cheap bounds, or ``claimed_s`` if that is more, seconds.
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
        Enumerate the space that the plan's inputs record. ``InputError`` if they do not.

        Where links of single GPUs are known the cluster is relaxed: no order of GPUs is faster than on the relaxed
        hosts.
        """
        instance = replace(instance, cluster=instance.cluster.relaxed())
        space = recorded_space(plan)
        enumeration, risk = enumerate_with_reasons(instance, space), accepted_risk(plan.inputs)
        memory = check_memory(instance, enumeration.candidates, stack_predictor(instance.stack), risk)
        claimed_s = plan.certificate.lower_bound_s * (1 - CLOSED_GAP)
        recorded = [part.bound_s for part in plan.certificate.proof if part.by in CHEAP and part.bound_s is not None]
        return cls(
            instance=instance,
            space=space,
            enumeration=enumeration,
            memory=memory,
            claimed_s=claimed_s,
            enough_s=max([claimed_s, *recorded]),
        )

    @cached_property
    def bounds_s(self) -> FloatArray:
        """Lower bounds on the simulated time of every placement of each fitting configuration; see :mod:`.bounds`."""
        return cheap_bounds_s(self.instance, self.memory.fitting, self.memory.capacity_bytes, self.enough_s)

    @cached_property
    def bounds_both_ways_s(self) -> FloatArray:
        """
        Bounds over the slower direction of the best pair of hosts, as bounds of the search may count messages.

        It is no bound for rings, which go one way. It shows how much of a bound can come from the two directions'
        difference.
        """
        memory = self.memory
        both = cheap_bounds_s(self.instance, memory.fitting, memory.capacity_bytes, self.enough_s, both_ways=True)
        return np.maximum(self.bounds_s, both)

    def num_from(self, seconds: float, enough: int) -> int:
        """
        Count the fitting configurations that take at least ``seconds``; uses the slower bound if fewer than
        ``enough``.
        """
        least = seconds * (1 - REPRODUCED)
        found = int(np.count_nonzero(self.bounds_s >= least))
        return found if found >= enough else int(np.count_nonzero(self.bounds_both_ways_s >= least))

    @property
    def all_measured(self) -> bool:
        """Return whether every pair of hosts has a measurement in both directions."""
        cluster = self.instance.cluster
        return bool(cluster.usable_links.sum() == cluster.num_nodes * (cluster.num_nodes - 1))

    @cached_property
    def bounded(self) -> "Bounded":
        """
        Configurations that the cheap bounds, or all of their placements, do not show to take at least ``claimed_s``.

        At most ``MAX_PLACEMENTS`` placements are simulated, of all configurations together.
        """
        left, unknown, faster = MAX_PLACEMENTS, [], []
        for index in np.flatnonzero(self.bounds_s < self.claimed_s).tolist():
            candidate = self.memory.fitting[index]
            simulated = fastest_placement_s(self.instance, candidate, self.memory.capacity_bytes, left)
            if simulated is None:
                unknown.append(candidate.config)
                continue
            left -= simulated[1]
            if simulated[0] < self.claimed_s:
                faster.append((candidate.config, simulated[0]))
        return Bounded(open_configs=tuple(unknown), faster=tuple(faster))


class Bounded(NamedTuple):
    """
    Fitting configurations that are not bounded here.

    Parameters
    ----------
    open_configs
        Configurations whose bound only the search proves.
    faster
        Configurations with a placement faster than the claimed bound, and its time in seconds.
    """

    open_configs: tuple[ParallelConfig, ...]
    faster: tuple[tuple[ParallelConfig, float], ...]


def recorded_space(plan: Plan) -> SearchSpace:
    """Return the space that the plan records as searched. ``InputError`` if it records none."""
    recorded = plan.inputs.get("search")
    if not isinstance(recorded, Mapping):
        raise InputError("inputs.search", "is missing, so what was searched is not known; solve again.")
    return space_of(recorded)
