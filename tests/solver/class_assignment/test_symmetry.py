"""Classes that may change places: found where racks are equal, and swapping them changes no cost."""

import itertools
from dataclasses import replace

import numpy as np
from instances import one_candidate_cluster

from pipette_opt.problem.objective import placed_objective_ticks
from pipette_opt.solver.class_assignment.problem import Merged, merge, place_classes
from pipette_opt.solver.class_assignment.symmetry import interchangeable
from pipette_opt.solver.class_assignment.twins import HostClasses


def racks(number: int, slow: tuple[int, ...]) -> Merged:
    """Racks of three fast hosts, links across at 3, inside at 2; some racks also have a slow host, links at twice."""
    rack = np.repeat(np.arange(number), 3).tolist() + list(slow)
    kind = [0] * 3 * number + [1] * len(slow)
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 2, 1), num_nodes=len(rack))
    link = np.where(np.equal.outer(rack, rack), 200, 300) * (1 + np.maximum.outer(kind, kind))
    candidate = replace(data.candidates[0], p2p_ticks=link, ring_ticks=7 * link[None])
    of_host = np.unique(np.array([rack, kind]), axis=1, return_inverse=True)[1].ravel()
    return merge(replace(data, candidates=(candidate,)), candidate, HostClasses(of_host=of_host, tolerance=0.0))


def values(merged: Merged) -> dict[tuple[int, ...], int]:
    """What every pattern of eight cells out of a few random ones costs."""
    rng = np.random.default_rng(1)
    found = {}
    for _ in range(60):
        hosts = rng.permutation(len(merged.classes.of_host))[:8]
        pattern = merged.classes.of_host[hosts].reshape(4, 2, 1)
        placed = place_classes(merged, pattern)
        found[tuple(pattern.ravel().tolist())] = placed_objective_ticks(merged.candidate, placed)
    return found


def test_racks_that_are_equal() -> None:
    """Without slow hosts the racks; with one in each, those, since they are fewer."""
    assert interchangeable(racks(4, ())) == (0, 1, 2, 3)
    with_slow = racks(3, (0, 1, 2))
    found = interchangeable(with_slow)
    assert with_slow.classes.sizes[list(found)].tolist() == [1, 1, 1]


def test_racks_that_are_not() -> None:
    """Only those with a slow host each are equal to each other; links without structure have nothing equal."""
    one = racks(3, (0, 1))
    assert one.classes.sizes[list(interchangeable(one))].tolist() == [1, 1]
    assert interchangeable(racks(2, (0,))) == ()
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 2, 1))
    single = merge(data, data.candidates[0], HostClasses(of_host=np.arange(8), tolerance=0.0))
    assert interchangeable(single) == ()


def test_swaps_change_no_cost() -> None:
    """Slow hosts change places with their racks: each pattern costs what its image does."""
    merged = racks(3, (0, 1, 2))
    found = interchangeable(merged)
    rack_of = {}
    for one in found:
        rack_of[one] = int(np.argsort(merged.candidate.p2p_ticks[one], kind="stable")[0])
    for a, b in itertools.combinations(found, 2):
        image = np.arange(merged.classes.number)
        image[[a, b, rack_of[a], rack_of[b]]] = [b, a, rack_of[b], rack_of[a]]
        for pattern, value in values(merged).items():
            swapped = image[np.array(pattern)].reshape(4, 2, 1)
            placed = place_classes(merged, swapped)
            assert placed_objective_ticks(merged.candidate, placed) == value
