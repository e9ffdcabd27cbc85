"""Which stages can decide an iteration."""

from dataclasses import replace

import numpy as np
import pytest
from instances import Variant, random_problem

from pipette_opt.certify.opening import _deciding_stages


@pytest.mark.parametrize(("last", "decides"), [(20, False), (21, True)])
def test_stage_decides_if_its_reduction_outlasts_the_way_back(last: int, decides: bool) -> None:
    """Without rings: the first stage takes 10 ticks; the second is below that, the third at it, 10 ticks earlier."""
    data = random_problem(np.random.default_rng(0), [(3, 1, 1)], 4, Variant(), max_block=1)
    candidate = replace(data.candidates[0], ring_floor_ticks=np.array([10, 12, last]))
    assert _deciding_stages(candidate, np.array([5.0, 5.0, 5.0])).tolist() == [True, False, decides]
