"""What a ring through a link takes at least, against every ring; no placement's objective changes."""

import itertools

import numpy as np
import pytest
from instances import Variant, random_problem

from pipette_opt.base.types import IntArray
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.solver.lifting import lift_rings, lifted


def best_rings(ticks: IntArray, length: int) -> IntArray:
    """The least that the slowest hop of a ring through each link is, by trying all rings."""
    best = np.full_like(ticks, UNUSABLE_TICKS)
    for hosts in itertools.permutations(range(len(ticks)), length):
        hops = [(hosts[at - 1], hosts[at]) for at in range(length)]
        slowest = max(int(ticks[hop]) for hop in hops)
        for hop in hops:
            best[hop] = min(best[hop], slowest)
    return best


@pytest.mark.search
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("length", [3, 4, 5, 6])
def test_never_above_the_best_ring(directed: bool, missing: float, length: int) -> None:
    """Ten matrices each; of three or four hosts, and the same both ways, it is the best ring."""
    rng = np.random.default_rng(length)
    raised = 0
    for _ in range(10):
        number = length + int(rng.integers(3))
        ticks = rng.integers(1, 60, (number, number))
        ticks = np.where(rng.random(ticks.shape) < missing, UNUSABLE_TICKS, ticks)
        ticks = ticks if directed else np.maximum(ticks, ticks.T)
        apart = ~np.eye(number, dtype=np.bool_)
        found, best = lifted(ticks, length)[apart], best_rings(ticks, length)[apart]
        assert (found >= ticks[apart]).all()
        assert (found <= best).all()
        if length <= 4 and not directed:
            assert (found == best).all()
        raised += int((found > ticks[apart]).sum())
    assert raised > 0


def test_group_without_enough_hosts() -> None:
    """Two groups of four, 10 inside: rings of four need nothing else, a ring of five or more has hops of 20."""
    group = np.arange(8) // 4
    ticks = np.where(group[:, None] == group[None, :], 10, 20)
    apart = ~np.eye(8, dtype=np.bool_)
    assert (lifted(ticks, 4) == ticks).all()
    assert (lifted(ticks, 5)[apart] == 20).all()


def test_dead_ends_are_not_counted() -> None:
    """A triangle of 10 with a tail of two: a ring of four has slower hops, though five hosts are joined by 10."""
    ticks = np.full((5, 5), 30)
    for i, j in ((0, 1), (1, 2), (2, 0), (2, 3), (3, 4)):
        ticks[i, j] = ticks[j, i] = 10
    assert lifted(ticks, 3)[0, 1] == 10
    for length in (4, 5):
        assert lifted(ticks, length)[0, 1] == 30


def test_objectives_stay() -> None:
    """Random placements of random candidates, with tensor groups over hosts and missing links, too."""
    rng = np.random.default_rng(5)
    changed = 0
    for number in range(40):
        variant = Variant(directed=number % 2 == 0, missing_share=0.1 * (number % 3))
        data = random_problem(
            rng, [(2, 3, 1), (1, 4, 1), (1, 3, 2), (2, 5, 1)][number % 4 : number % 4 + 1], 10, variant
        )
        raised = lift_rings(data)
        for before, after in zip(data.candidates, raised.candidates, strict=True):
            changed += int((before.ring_ticks != after.ring_ticks).any())
            for _ in range(5):
                nodes = rng.permutation(10)[: before.num_cells].reshape(before.grid)
                objective = objective_ticks(data, before, nodes)
                lifted_objective = objective_ticks(raised, after, nodes)
                assert lifted_objective == objective or min(objective, lifted_objective) >= UNUSABLE_TICKS
    assert changed > 20


def test_stops_in_time() -> None:
    """Without time nothing is raised."""
    data = random_problem(np.random.default_rng(5), [(2, 3, 1)], 10, Variant())
    assert lift_rings(data, Clock(ends_s=0.0)).candidates == data.candidates
    assert lift_rings(data).candidates != data.candidates
