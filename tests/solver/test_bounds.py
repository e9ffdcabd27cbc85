"""Bounds without search are below every enumerated optimum, and notice what has no placement."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from instances import SMALL_SHAPES, SPANS, Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.plans.clock import Clock
from pipette_opt.problem.best_links import has_room, optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS, Paths, ProblemData
from pipette_opt.solver.bounds import candidate_bound, least_cost, lower_bounds

VARIANTS = [
    Variant(directed=directed, missing_share=missing, num_kinds=kinds, num_capacities=kinds)
    for directed in (False, True)
    for missing in (0.0, 0.3)
    for kinds in (1, 2)
]


@pytest.mark.search
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_bound_is_below_the_optimum(variant: Variant) -> None:
    """Enumeration of every placement of one candidate per shape, on five hosts."""
    rng = np.random.default_rng(3)
    for shape in SMALL_SHAPES:
        data = random_problem(rng, [shape], 5, variant)
        bound = candidate_bound(data, data.candidates[0])
        assert optimistic_ticks(data, data.candidates[0]) <= best_by_enumeration(data, data.candidates[0])
        optimum = best_by_enumeration(data, data.candidates[0])
        assert bound <= optimum
        assert bound > 0


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("kinds", [1, 2])
def test_bound_of_paths_is_below_the_optimum(directed: bool, kinds: int) -> None:
    """140 problems, with and without a last link, all hosts needed or some to spare; a known bound is kept."""
    rng = np.random.default_rng(30)
    tight = 0
    for trial in range(35):
        shape = SMALL_SHAPES[trial % len(SMALL_SHAPES)]
        missing = 0.2 * (trial % 2)
        spans = SPANS[trial // len(SMALL_SHAPES)]
        variant = Variant(directed=directed, missing_share=missing, num_kinds=kinds, spans=spans)
        data = random_problem(rng, [shape], 4 + trial % 2 if np.prod(shape) < 5 else 5, variant)
        optimum = best_by_enumeration(data, data.candidates[0])
        bound = candidate_bound(data, data.candidates[0])
        assert bound <= optimum
        tight += optimum < UNUSABLE_TICKS and bound > 0.9 * optimum
        known = replace(data.candidates[0], least_ticks=optimum)
        assert max(optimistic_ticks(data, known), candidate_bound(data, known)) >= min(optimum, UNUSABLE_TICKS)
    assert tight > 5


def test_bound_of_paths_counts_every_link_and_the_slowest() -> None:
    """
    A path over all three links of a ring of three hosts, three times over the last one, both ways.

    The pairs of hosts cost 5, 20 and 24, there and back; each order uses all three, and the best has the 5 last.
    """
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (3, 1, 1), num_microbatches=3)
    links = np.array([[0, 2, 10], [3, 0, 12], [10, 12, 0]])
    np.fill_diagonal(links, UNUSABLE_TICKS)
    config = replace(data.candidates[0].config, layers_per_stage=(2, 2, 2), virtual_pipeline_model_parallel_size=2)
    nothing = np.zeros((1, 3))
    paths = Paths(
        stage=np.zeros(1),
        work_ticks=np.full((1, 1, 3), 100),
        forward_layers=nothing,
        backward_layers=nothing,
        up=np.array([[1, 1, 3]]),
        down=np.array([[1, 1, 3]]),
    )
    candidate = replace(data.candidates[0], config=config, p2p_ticks=links, paths=paths)
    assert best_by_enumeration(data, candidate) == 300 + 49 + 2 * 5
    assert 300 + 49 <= candidate_bound(data, candidate) <= 300 + 59


def test_least_cost_against_enumeration() -> None:
    """Distinct senders, distinct hearers, some arcs missing."""
    rng = np.random.default_rng(31)
    for _ in range(150):
        n = int(rng.integers(1, 5))
        ticks = rng.integers(0, 10, size=(n, n))
        ticks[rng.random((n, n)) < 0.4] = UNUSABLE_TICKS
        for number in range(n + 1):
            best = min(
                sum(int(ticks[u, v]) for u, v in zip(senders, receivers, strict=True))
                for senders in itertools.combinations(range(n), number)
                for receivers in itertools.permutations(range(n), number)
            )
            assert least_cost(ticks, number) == min(best, UNUSABLE_TICKS)


def test_bound_is_exact_where_all_links_are_equal() -> None:
    """
    With one kind of host and one speed of link every placement is optimal, and the bound knows it.

    Rings beside compute are left out: of their levels, the bound counts the first.
    """
    rng, exact = np.random.default_rng(4), 0
    for shape in SMALL_SHAPES * 2:
        data = random_problem(rng, [shape], 5, Variant(levels=1))
        candidate = data.candidates[0]
        if not candidate.ring_level.size:
            assert candidate_bound(data, candidate) == best_by_enumeration(data, candidate)
            exact += 1
    assert exact > len(SMALL_SHAPES)


def test_slow_hosts_that_must_be_used_raise_the_bound() -> None:
    """All hosts are needed, one is slow: its best link is a transfer somewhere."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 1, 1), num_microbatches=8)
    slow = data.candidates[0].p2p_ticks.copy()
    slow[3, :3] *= 10
    slow[:3, 3] *= 10
    candidate = replace(data.candidates[0], p2p_ticks=slow)
    assert candidate_bound(data, candidate) >= 7 * int(slow[3, :3].min())
    spare = one_candidate_cluster(np.random.default_rng(0), "unif", (3, 1, 1), num_nodes=4, num_microbatches=8)
    candidate = replace(spare.candidates[0], p2p_ticks=slow)
    assert candidate_bound(spare, candidate) < 7 * int(slow[3, :3].min())


@pytest.mark.parametrize(("capacity", "fits"), [((10, 10, 20, 20), True), ((10, 10, 10, 20), False)])
def test_room(capacity: tuple[int, ...], fits: bool) -> None:
    """Two rows of two hosts, the second needs twice the memory: two large hosts are enough, one is not."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 2, 1))
    data = ProblemData(
        candidates=(replace(data.candidates[0], memory_need_mib=np.array([10, 20])),),
        p2p="blocking",
        tick_s=1.0,
        kind_of_node=np.zeros(4),
        capacity_mib=np.array(capacity),
    )
    assert has_room(data, data.candidates[0]) is fits
    assert bool(lower_bounds(data)[0] < UNUSABLE_TICKS) is fits


def test_levels_are_looked_at_where_they_can_matter() -> None:
    """Below the cutoff the full bound, above it (or out of time) the one of the best links; both hold."""
    rng = np.random.default_rng(8)
    data = random_problem(rng, list(SMALL_SHAPES), 5, Variant())
    quick = [optimistic_ticks(data, candidate) for candidate in data.candidates]
    full = [max(one, candidate_bound(data, candidate)) for one, candidate in zip(quick, data.candidates, strict=True)]
    cutoff = sorted(quick)[len(quick) // 2]
    expected = [whole if one < cutoff else one for one, whole in zip(quick, full, strict=True)]
    assert lower_bounds(data).tolist() == full
    assert lower_bounds(data, cutoff).tolist() == expected
    assert lower_bounds(data, clock=Clock(ends_s=0.0)).tolist() == quick
