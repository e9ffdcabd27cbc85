"""
Predicted times of a set of runs for many stacks in turn, as a fit needs them; repeated parts are computed once.

``iteration_s`` is added to the simulated time, so the simulator runs again only if another constant changes.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, with_stack
from pipette_opt.calibrate.predict import KnownCosts, simulated_times_s, with_version_s
from pipette_opt.specs import ClusterSpec, StackSpec
from pipette_opt.specs.stack import CONSTANTS

REMEMBERED = 4
"""Number of stacks whose simulated times are cached; a descent returns to the last one or two. Chosen."""

_Key = tuple[object, ...]


class RunTimes:
    """
    Predicted times of runs as a function of the stack.

    Parameters
    ----------
    cluster
        Hosts of the runs; ``None`` for assumed hosts.
    known
        Cache of costs that do not depend on the constants; subsets of the runs share it.
    """

    def __init__(self, cases: Sequence[Case], cluster: ClusterSpec | None, known: KnownCosts) -> None:
        self.cases, self.cluster, self.known = cases, cluster, known
        self._judged: dict[_Key, FloatArray] = {}

    def subset(self, rows: Sequence[int]) -> "RunTimes":
        """Return the predicted times of the runs at these indices, as an object of this class."""
        if len(rows) == len(self.cases):
            return self
        return RunTimes([self.cases[row] for row in rows], self.cluster, self.known)

    def predicted_s(self, stack: StackSpec) -> FloatArray:
        """Return the predicted seconds of each run."""
        plain = replace(stack, iteration_s=0.0)
        key = tuple(getattr(plain, name) for name in CONSTANTS)
        if key not in self._judged:
            judged = simulated_times_s(with_stack(self.cases, plain, self.cluster), self.known)
            self._judged = dict([*self._judged.items(), (key, judged)][-REMEMBERED:])
        judged_s = self._judged[key] + stack.iteration_s
        cases = with_stack(self.cases, stack, self.cluster)
        return with_version_s(cases, np.asarray(judged_s, dtype=np.float64))
