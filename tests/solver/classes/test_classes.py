"""Racks and kinds of hosts, and the costs of classes."""

from dataclasses import replace

import numpy as np
import pytest
from instances import Variant, one_candidate_cluster, random_problem
from rack_cases import in_rails

from pipette_opt.base.types import P2PMode
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.solver.classes.costs import merge_levels, row_costs
from pipette_opt.solver.classes.racks import find_racks
from pipette_opt.solver.classes.twins import host_classes


def test_what_is_found_of_a_tree() -> None:
    """Four racks of eight hosts each, and two kinds: the slow hosts are few."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    racks = find_racks(data, data.candidates[0])
    assert racks is not None
    assert racks.sizes.sum() == 32
    assert racks.num_kinds == 2
    assert racks.sizes.sum(axis=0).max() > 20


def test_structureless_hosts_have_no_racks() -> None:
    """Hosts that all differ do not fall into a few classes."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1))
    assert find_racks(data, data.candidates[0]) is None


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_hosts_that_all_differ_are_in_the_racks_of_their_neighbours(p2p: P2PMode) -> None:
    """Slow hosts of rails are no twins, but near the other hosts of their unit; those slower by far are a kind."""
    data = in_rails(np.random.default_rng(0), p2p, (8, 8), 4, 6)
    racks = find_racks(data, data.candidates[0])
    assert racks is not None
    assert racks.sizes.sum(axis=1).tolist() == [16] * 4
    assert racks.num_kinds == 2
    assert 0 < racks.sizes[:, 1].sum() <= 6
    unit = racks.rack[racks.classes.of_host].reshape(4, 16)
    assert (unit == unit[:, :1]).all()


def test_neighbours_may_have_other_gpus_or_less_memory() -> None:
    """Then they are of other kinds."""
    rng, (P, D) = np.random.default_rng(1), (4, 6)
    data = in_rails(rng, "blocking", (P, D), 2, 0)
    candidate = data.candidates[0]
    candidate = replace(
        candidate,
        forward_ticks=np.tile(candidate.forward_ticks, (2, 1)),
        backward_ticks=np.tile(candidate.backward_ticks, (2, 1)),
        memory_need_mib=np.where(np.arange(candidate.num_stages) == 0, 60, 10),
    )
    gpu, memory = rng.integers(2, size=P * D), 40 * (1 + rng.integers(2, size=P * D))
    data = replace(data, candidates=(candidate,), kind_of_node=gpu, capacity_mib=memory)
    racks = find_racks(data, candidate, np.inf)
    assert racks is not None
    assert racks.num_racks == 2
    assert racks.num_kinds == 4
    told = np.stack([racks.kind[racks.classes.of_host], gpu, memory])
    assert len(np.unique(told, axis=1).T) == 4
    assert (racks.costs.room[0] == (memory[np.unique(racks.classes.of_host, return_index=True)[1]] >= 60)).all()


def test_too_many_racks_tell_nothing() -> None:
    """A model would be large; hosts without a link have no neighbours."""
    many = in_rails(np.random.default_rng(0), "blocking", (16, 8), 32, 40)
    assert find_racks(many, many.candidates[0]) is None
    data = in_rails(np.random.default_rng(0), "blocking", (8, 8), 4, 6)
    candidate = data.candidates[0]
    alone = candidate.ring_ticks.copy()
    alone[:, 3] = UNUSABLE_TICKS
    assert find_racks(data, candidate) is not None
    assert find_racks(data, replace(candidate, ring_ticks=alone)) is None


def test_merged_costs_are_never_above() -> None:
    """Levels are the least of those that they take the place of, and within the tolerance."""
    ticks = np.random.default_rng(0).integers(1000, 2000, (9, 9))
    merged = merge_levels(ticks, 0.05)
    assert (merged <= ticks).all()
    assert (ticks <= merged * 1.05).all()
    assert len(np.unique(merged)) < 20 < len(np.unique(ticks))
    assert (merge_levels(ticks, 0.0) == ticks).all()


def test_merged_costs_bound_the_exact_ones() -> None:
    """Every cost of a candidate with merged classes is at most the cost without."""
    data = random_problem(np.random.default_rng(5), [(3, 2, 1)], 7, Variant(directed=True, num_kinds=2))
    candidate = data.candidates[0]
    classes = host_classes(data, candidate, 7)
    assert classes is not None
    merged, exact = (row_costs(data, candidate, classes, tolerance) for tolerance in (0.3, 0.0))
    for name in ("window", "least_end", "mean_end", "end_arc", "period_arc", "hop"):
        assert (getattr(merged, name) <= getattr(exact, name)).all()
    assert (merged.window < exact.window).any()
