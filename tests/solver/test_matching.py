"""Levels of links that so many distinct senders and receivers need, against enumeration."""

import itertools

import numpy as np

from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.solver.matching import bottleneck_level


def test_bottleneck_level_against_enumeration() -> None:
    """The smallest level with enough arcs that share no sender and no receiver."""
    rng = np.random.default_rng(5)
    for _ in range(200):
        n = int(rng.integers(1, 5))
        ticks = rng.integers(0, 10, size=(n, n))
        ticks[rng.random((n, n)) < 0.4] = UNUSABLE_TICKS
        for number in range(n + 1):
            best = min(
                max((ticks[u, v] for u, v in zip(senders, receivers, strict=True)), default=0)
                for senders in itertools.combinations(range(n), number)
                for receivers in itertools.permutations(range(n), number)
            )
            assert bottleneck_level(ticks, number) == best
