"""Classes are split where a pattern is luckier than most of its hosts."""

import numpy as np
from instances import Variant, one_candidate_cluster, random_problem

from pipette_opt.problem.objective import objective_ticks, placed_objective_ticks
from pipette_opt.solver.class_assignment.problem import merge, place_classes
from pipette_opt.solver.class_assignment.splits import finer
from pipette_opt.solver.class_assignment.twins import HostClasses


def test_a_pattern_of_hosts_costs_what_they_do() -> None:
    """Each class one host; with more in each, never more than any of their placements."""
    rng = np.random.default_rng(3)
    for shape in ((3, 2, 1), (2, 2, 2), (4, 1, 1), (1, 4, 1)):
        for number in range(20):
            data = random_problem(rng, [shape], 9, Variant(num_kinds=1 + number % 2))
            candidate = data.candidates[0]
            nodes = rng.permutation(9)[: candidate.num_cells].reshape(shape)
            single = merge(data, candidate, HostClasses(of_host=np.arange(9), tolerance=0.0))
            value = objective_ticks(data, candidate, nodes)
            assert placed_objective_ticks(single.candidate, place_classes(single, nodes)) == value
            of_host = np.unique(np.vstack([data.kind_of_node, rng.integers(0, 2, 9)]), axis=1, return_inverse=True)[1]
            merged = merge(data, candidate, HostClasses(of_host=of_host.ravel(), tolerance=0.0))
            pattern = place_classes(merged, merged.classes.of_host[nodes])
            assert placed_objective_ticks(merged.candidate, pattern) <= value


def test_it_splits_hosts_with_a_fast_partner_from_the_others() -> None:
    """A chain of two classes that only one pair of hosts is fast enough for: each of the two becomes a class."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 1, 1), num_nodes=10, compute=10)
    candidate = data.candidates[0]
    of_host = np.arange(10) // 5
    merged = merge(data, candidate, HostClasses(of_host=of_host, tolerance=0.0))
    pattern = np.array([0, 1]).reshape(2, 1, 1)
    ceiling = placed_objective_ticks(merged.candidate, place_classes(merged, pattern))
    found = finer(candidate, merged, pattern, ceiling)
    assert found is not None
    assert found.number == 4
    between = candidate.p2p_ticks[:5, 5:]
    tail, head = np.unravel_index(between.argmin(), between.shape)
    assert np.flatnonzero(found.of_host == found.of_host[tail]).tolist() == [tail]
    assert np.flatnonzero(found.of_host == found.of_host[5 + head]).tolist() == [5 + head]


def test_classes_only_ever_become_finer_until_all_are_single() -> None:
    """Whatever the pattern; then there is nothing to split."""
    rng = np.random.default_rng(5)
    for shape in ((3, 2, 1), (2, 2, 2), (6, 1, 1)):
        data = random_problem(rng, [shape], 8, Variant(levels=2))
        candidate = data.candidates[0]
        classes = HostClasses(of_host=np.zeros(8, dtype=np.int64), tolerance=0.0)
        for _ in range(8):
            merged = merge(data, candidate, classes)
            pattern = classes.of_host[rng.permutation(8)[: candidate.num_cells]].reshape(shape)
            value = placed_objective_ticks(merged.candidate, place_classes(merged, pattern))
            found = finer(candidate, merged, pattern, value + int(rng.integers(0, 200)))
            if found is None:
                break
            assert found.number > classes.number
            pairs = {(int(new), int(old)) for new, old in zip(found.of_host, classes.of_host, strict=True)}
            assert len(pairs) == found.number
            classes = found
        assert classes.number > 1
        if found is None:
            assert (classes.sizes[np.unique(pattern)] == 1).all()
