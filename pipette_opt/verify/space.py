"""The searched space once more: what is legal, what fits, and what no placement can undercut."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from pipette_opt.candidates import Enumeration, SearchSpace, enumerate_with_reasons
from pipette_opt.errors import InputError
from pipette_opt.fullness import stack_predictor
from pipette_opt.memory.filter import MemoryCheck, keep_fitting
from pipette_opt.plan import Plan
from pipette_opt.specs import Instance
from pipette_opt.specs.recorded import recorded_spec
from pipette_opt.types import FloatArray
from pipette_opt.verify.bounds import cheap_bounds_s
from pipette_opt.verify.memory import accepted_risk


@dataclass(frozen=True, kw_only=True, eq=False)
class Searched:
    """
    What a plan says that it searched, enumerated again.

    Parameters
    ----------
    memory
        Of every legal configuration.
    """

    instance: Instance
    space: SearchSpace
    enumeration: Enumeration
    memory: MemoryCheck

    @classmethod
    def again(cls, instance: Instance, plan: Plan) -> Self:
        """From the plan's inputs. ``InputError`` if they do not say."""
        space = recorded_space(plan)
        enumeration, risk = enumerate_with_reasons(instance, space), accepted_risk(plan.inputs)
        memory = keep_fitting(instance, enumeration.candidates, stack_predictor(instance.stack), risk)
        return cls(instance=instance, space=space, enumeration=enumeration, memory=memory)

    @cached_property
    def bounds_s(self) -> FloatArray:
        """Of each fitting configuration: no placement of it is faster by the judge; see :mod:`.bounds`."""
        return cheap_bounds_s(self.instance, self.memory.fitting, self.memory.capacity_bytes)

    def num_below(self, seconds: float) -> int:
        """Configurations whose cheap bound is below."""
        return int(np.count_nonzero(self.bounds_s < seconds))


def recorded_space(plan: Plan) -> SearchSpace:
    """What the plan says that it searched. ``InputError`` if it does not."""
    recorded = plan.inputs.get("search_space")
    if recorded is None:
        raise InputError("inputs.search_space", "is missing, so what was searched is not known; solve again.")
    return recorded_spec(SearchSpace, recorded, "inputs.search_space")
