"""What other tests compare with is itself right."""

import numpy as np
import pytest
from instances import SMALL_SHAPES, Variant, objectives, placements, random_problem

from pipette_opt.problem.objective import objective_ticks

pytestmark = pytest.mark.search


@pytest.mark.parametrize(
    "variant",
    [
        Variant(missing_share=0.2, num_kinds=2),
        Variant(directed=False, num_capacities=2),
        Variant(scale=10_000_000),
    ],
)
def test_many_placements_at_once_cost_what_each_costs_alone(variant: Variant) -> None:
    """Every shape of at most five hosts; links that may not be used are told from those that may."""
    rng = np.random.default_rng(5)
    for shape in SMALL_SHAPES:
        data = random_problem(rng, [shape], 5, variant)
        candidate = data.candidates[0]
        nodes = list(placements(data, candidate))
        if nodes:
            alone = [objective_ticks(data, candidate, one) for one in nodes]
            assert objectives(data, candidate, np.array(nodes)).tolist() == alone
