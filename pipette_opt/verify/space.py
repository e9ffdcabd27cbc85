"""Search space of a plan, enumerated again: configurations that are legal and fit, and lower bounds on their times."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.candidates import Enumeration, SearchSpace, enumerate_with_reasons, space_of
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.filter import MemoryCheck
from pipette_opt.memory.predictor import stack_predictor
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Plan
from pipette_opt.simulate.least_times import may_win
from pipette_opt.specs import Instance
from pipette_opt.verify.bounds import cheap_bounds_s, fastest_placement_s
from pipette_opt.verify.common import CHEAP, CLOSED_GAP, REPRODUCED
from pipette_opt.verify.memory import accepted_risk

MAX_PLACEMENTS = 10_000
"""Most placements that are simulated one by one; about two seconds. Chosen: seven hosts have 5,040 placements."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Searched:
    """
    Search space of a plan, enumerated again.

    Parameters
    ----------
    memory
        Memory check of every legal configuration.
    claimed_s
        The certificate's lower bound, less rounding, seconds.
    enough_s
        Largest recorded bound of the proof steps ``CHEAP``, at least ``claimed_s``, seconds.
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
        Return the search space that the plan's inputs record, enumerated again; ``InputError`` if they record none.

        If links of single GPUs are known, the cluster is replaced by :meth:`ClusterSpec.relaxed`, on which no order of
        GPUs is slower.
        """
        instance = replace(instance, cluster=instance.cluster.relaxed())
        space = recorded_space(plan)
        enumeration = enumerate_with_reasons(instance, space, may_win(WorkBounds(instance), space))
        risk = accepted_risk(plan.inputs)
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
        """
        Lower bound on the time of all placements of each configuration that fits, seconds, shape ``(num_fitting,)``.

        See :mod:`.bounds`.
        """
        return cheap_bounds_s(self.instance, self.memory.fitting, self.memory.capacity_bytes, self.enough_s)

    @cached_property
    def bounds_both_ways_s(self) -> FloatArray:
        """
        Bounds with all links as fast as the slower direction of the best host pair, seconds, shape ``(num_fitting,)``.

        The search may count messages this way. It does not bound rings, which use one direction, but shows how much of
        a bound can come from the difference between directions.
        """
        memory = self.memory
        both = cheap_bounds_s(self.instance, memory.fitting, memory.capacity_bytes, self.enough_s, both_ways=True)
        return np.maximum(self.bounds_s, both)

    def num_from(self, seconds: float, enough: int) -> int:
        """
        Return the number of configurations whose lower bound is at least ``seconds``.

        If fewer than ``enough`` reach it, they are counted by ``bounds_both_ways_s`` instead of ``bounds_s``.
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
        Configurations that are not shown to take at least ``claimed_s``, by cheap bounds or by simulating all
        placements.

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
    Configurations that fit but are not shown to take at least the certificate's lower bound.

    Parameters
    ----------
    open_configs
        Configurations whose lower bound only the search proves.
    faster
        Configurations with a placement faster than the certificate's lower bound, and its time in seconds.
    """

    open_configs: tuple[ParallelConfig, ...]
    faster: tuple[tuple[ParallelConfig, float], ...]


def recorded_space(plan: Plan) -> SearchSpace:
    """Return the search space that a plan records; ``InputError`` if it records none."""
    recorded = plan.inputs.get("search")
    if not isinstance(recorded, Mapping):
        raise InputError("inputs.search", "is missing: the searched space is not recorded; solve again.")
    return space_of(recorded)
