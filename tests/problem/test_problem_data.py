"""The problem in integers."""

from dataclasses import replace

import numpy as np
from instances import Variant, random_problem


def test_memory_decides_which_hosts_a_row_may_have() -> None:
    """A host with exactly the memory needed is allowed, one with less is not."""
    data = random_problem(np.random.default_rng(0), [(3, 1, 1)], 3, Variant(), max_block=1)
    candidate = replace(data.candidates[0], memory_need_mib=np.array([10, 20, 30]))
    data = replace(data, candidates=(candidate,), capacity_mib=np.array([10, 20, 30]))
    assert data.allowed(candidate).tolist() == [[True, True, True], [False, True, True], [False, False, True]]
