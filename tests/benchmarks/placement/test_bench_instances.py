"""Instances: what the sets hold, and what filters leave."""

from dataclasses import replace

import pytest

from benchmarks.placement.clusters import GENERATED, MEASURED
from benchmarks.placement.instances import (
    JOBS,
    SHAPES,
    WEIGHTS,
    BenchInstance,
    instances,
    target_of,
)


def test_shapes_fill_their_sizes() -> None:
    """Every shape of a size has as many cells; the shapes of real jobs are there."""
    assert all(size == P * D for size, shapes in SHAPES.items() for P, D in shapes)
    assert set(SHAPES[16]) == {(4, 4), (8, 2), (2, 8), (16, 1)}
    assert SHAPES[1280] == ((32, 40),)


def test_reach_set() -> None:
    """Every generated cluster with every shape and send mode, five seeds up to 128 hosts; no instance twice."""
    reach = instances("reach")
    assert len(set(reach)) == len(reach)
    for cluster in GENERATED:
        for size, shapes in SHAPES.items():
            for shape in shapes:
                seeds = [
                    one.seed
                    for one in reach
                    if (one.cluster, one.shape, one.weights, one.p2p) == (cluster, shape, "balanced", "async")
                ]
                assert seeds == list(range(5 if size <= 128 else 1))
    assert {one.weights for one in reach if one.shape is not None} == set(WEIGHTS)
    assert all(one.p2p == "blocking" for one in reach if one.weights in JOBS)
    assert sum(one.shape is None for one in reach) == 8 * 5
    assert not any(one.num_used > one.num_listed for one in reach)


def test_full_set() -> None:
    """One seed of every goal up to 128 hosts, ended as soon as it is met; more hosts on two clusters, briefly."""
    full = instances("full")
    assert len(set(full)) == len(full)
    assert {one.seed for one in full} == {0}
    goals = [replace(one, stops_at_goal=True) for one in instances("reach", seeds=1) if one.target is not None]
    assert {one for one in goals if one.num_used <= 128} == {one for one in full if one.num_used <= 128}
    assert {one.num_used for one in full} == set(SHAPES)
    assert {one.cluster for one in full} == {*GENERATED, *MEASURED}
    assert {one.cluster for one in full if one.num_used > 128} == {"tree", "unif"}
    assert all(one.stops_at_goal or one.limit_s <= 30 for one in full)


def test_quick_set_is_short() -> None:
    """Solver and both annealings together stay under two minutes; every cluster is there."""
    quick = instances("quick")
    assert 2 * sum(one.limit_s for one in quick) < 80
    assert {one.cluster for one in quick} >= set(GENERATED)
    assert any(one.shape is None for one in quick)


def test_filters() -> None:
    """Each option narrows the set; ``joint`` names the joint choice."""
    only = instances("full", clusters=["tree", "joint"], sizes=[16], modes=["blocking"])
    assert {one.cluster for one in only if one.shape is not None} == {"tree"}
    assert any(one.shape is None for one in only)
    assert {one.num_used for one in only} == {16}
    assert all(one.shape is not None for one in instances("full", clusters=["tree"]))
    assert {one.weights for one in instances("full", weights=["gpt-3-175b"])} == {"gpt-3-175b"}
    assert not instances("quick", sizes=[1280])


def test_seeds_and_seconds() -> None:
    """So many seeds of each; a target holds for its own seconds and fewer."""
    given = instances("quick", clusters=["unif"], seeds=3, seconds=1.0)
    assert [one.seed for one in given] == [0, 1, 2]
    assert {(one.limit_s, one.target, one.target_s) for one in given} == {(1.0, 0.0, 20.0)}
    own = instances("reach", clusters=["unif"], sizes=[16, 32], weights=["balanced"], seconds=30)
    assert {(one.num_used, one.target) for one in own} == {(16, None), (32, 0.02)}


def test_targets() -> None:
    """Gap and seconds by size, and by whether there is structure; sizes between have none."""
    assert target_of("tree", 16) == (0.0, 5)
    assert target_of("unif", 16) == (0.0, 20)
    assert target_of("rail", 128) == (0.02, 120)
    assert target_of("unif", 128) == (0.06, 300)
    assert target_of("tree", 256)[0] is None


@pytest.mark.search
def test_joint_choice_has_all_candidates() -> None:
    """Hundreds of candidates of a 128-GPU job, all with a closed form, for the hosts of the cluster."""
    (instance,) = instances("quick", clusters=["joint"])
    data = instance.build()
    assert data.num_nodes == 16
    assert len(data.candidates) > 100
    assert all(one.has_analytical_model for one in data.candidates)
    assert len({one.grid for one in data.candidates}) == 4


def test_names() -> None:
    """A name says everything."""
    one = BenchInstance(
        cluster="spares", weights="balanced", shape=(4, 4), p2p="async", seed=2, limit_s=5.0, target=0.0
    )
    assert one.name == "spares 16 of 24 4x4 balanced async seed 2"
