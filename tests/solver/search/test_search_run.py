"""What threads and processes have in common."""

from dataclasses import replace

import numpy as np
from instances import one_candidate_cluster

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.base.backends import JoblibBackend
from pipette_opt.solver.search.params import SearchParams
from pipette_opt.solver.search.run import search


def test_known_placements_are_kept() -> None:
    """The incumbent is never worse than what was known; one that breaks a rule is ignored."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (8, 4, 1))
    good = anneal(data, AnnealingParams(time_limit_s=None, max_moves=500_000)).solution
    assert good is not None
    bad = replace(good, nodes=np.zeros((8, 4, 1), dtype=np.int64), objective_ticks=1)
    for backend in (None, JoblibBackend(1)):
        result = search(data, SearchParams(time_limit_s=0.3), known=[bad, good], backend=backend)
        assert result.solution is not None
        assert 1 < result.solution.objective_ticks <= good.objective_ticks
