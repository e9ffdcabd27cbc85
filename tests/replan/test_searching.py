"""Short searches that begin with what earlier ones know."""

from dataclasses import replace

import numpy as np
import pytest
from factories import make_cluster, make_job, plan_of, small_config, small_instance

from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.first_plans import first_plan
from pipette_opt.certify.state import SearchState
from pipette_opt.optimize import OptimizeParams
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, Question, prepare, prunes
from pipette_opt.problem.solution import Solution
from pipette_opt.replan import changes as made
from pipette_opt.replan.searching import Searched, alike, certified, search, time_s, with_spares, without_hosts
from pipette_opt.simulate.solutions import simulate_solution
from pipette_opt.specs import Instance

pytestmark = pytest.mark.search

SPACE = SearchSpace(
    num_gpus=16, tensor_parallel=(1, 2), virtual_pipeline=(1,), recompute=(None,), context_parallel=(1,)
)


def searched(job: Instance, like: Prepared | None = None) -> Searched:
    """A few seconds of it, from the plan on the hosts as they are listed."""
    plan = plan_of(job, small_config())
    first = first_plan(job, plan.config, plan.placement, plan.estimate.iteration_time_s)
    return search(job, SPACE, first, 5.0, OptimizeParams(workers=1), Watcher(), like)


@pytest.fixture(scope="module")
def found() -> Searched:
    """Over five hosts, of which four are used."""
    return searched(small_instance())


def test_bounds_on_all_hosts_hold_on_fewer_with_the_same_answer(found: Searched) -> None:
    """Each configuration's bound holds for what is found without a host, and the answer is that without bounds."""
    for host in range(5):
        known = without_hosts(found, [host], 5.0, lambda fewer: [])
        assert known.bounds == found.state.bounds
        fresh = SearchState(known.prepared, [], known.params, Clock().after(5.0))
        best, plain = certified(known), certified(fresh)
        assert time_s(best) == pytest.approx(time_s(plain), rel=1e-9)
        assert max(fresh.bound_s, known.bound_s) <= time_s(plain) * (1 + 1e-9)
        assert found.state.reason(plain.candidate.config).bound_s <= time_s(plain) * (1 + 1e-9)


@pytest.mark.parametrize("change", ["links", "hosts"])
def test_a_job_with_other_links_or_more_equal_hosts_is_prepared_as_one_of_its_own(found: Searched, change: str) -> None:
    """What is legal and fits is taken over; bounds are of the new links."""
    job = small_instance()
    changed = (made.faster_links(job, 2.0) if change == "links" else made.more_hosts(job, 2)).instance
    assert alike(job, changed)
    plan = plan_of(changed, small_config())
    first = first_plan(changed, plan.config, plan.placement, plan.estimate.iteration_time_s)
    fresh, taken = (
        prepare(Question(changed, SPACE, 0.01, keep=prunes, first=first, like=like)) for like in (None, found.prepared)
    )
    assert taken.enumeration == fresh.enumeration
    assert [one.config for one in taken.memory.fitting] == [one.config for one in fresh.memory.fitting]
    assert [one.short_bytes for one in taken.memory.rejected] == [one.short_bytes for one in fresh.memory.rejected]
    assert np.array_equal(taken.memory.capacity_bytes, fresh.memory.capacity_bytes)
    assert taken.pruned is not None
    assert fresh.pruned is not None
    assert taken.pruned.bounds_s == fresh.pruned.bounds_s
    assert [one.config for one in taken.problem.candidates] == [one.config for one in fresh.problem.candidates]


def test_another_job_or_other_gpus_are_not_alike() -> None:
    """There other configurations may be legal or fit."""
    job = small_instance()
    assert not alike(job, made.other_training(job, "twice", {"global_batch_size": 128}).instance)
    assert not alike(job, made.other_gpu(job, "h200").instance)
    slower = replace(job.cluster.nodes[0], gpu=job.cluster.nodes[0].gpu.at_speed(0.5))
    mixed = replace(job, cluster=replace(job.cluster, nodes=(slower, *job.cluster.nodes[1:])))
    assert not alike(mixed, mixed)


def test_a_spare_host_goes_where_the_simulator_has_it_fastest(found: Searched) -> None:
    """Simulated together as one by one."""
    lost = int(found.best.nodes.flat[0])
    fewer = without_hosts(found, [lost], 1.0, lambda fewer: []).prepared
    (best,) = with_spares(fewer, found.best, [lost])
    (spare,) = set(range(5)) - set(found.best.nodes.ravel().tolist())
    times = []
    index = next(i for i, one in enumerate(fewer.problem.candidates) if one.config == found.best.candidate.config)
    for cell in np.ndindex(*found.best.nodes.shape):
        nodes = found.best.nodes.copy()
        nodes.flat[0], nodes[cell] = nodes[cell], spare
        solution = Solution(candidate=index, nodes=nodes, objective_ticks=0)
        times.append(time_s(simulate_solution(fewer.instance, fewer.problem, solution)))
    assert time_s(best) == min(times)
    assert len(set(times)) > 1


def test_the_bound_counts_every_split_of_the_layers() -> None:
    """The joint model says it; of a job that is alike, whose splits are taken over, the work of any split."""
    space = replace(SPACE, tensor_parallel=(2,), pipeline_parallel=(4,), micro_batch_size=(2,))
    job = make_job(make_cluster(2))
    found = search(job, space, None, 0.5, OptimizeParams(workers=1), Watcher())
    assert found.prepared.joined is not None
    again = search(job, space, None, 0.5, OptimizeParams(workers=1), Watcher(), found.prepared)
    assert again.prepared.joined is None
    assert again.bound_s <= again.prepared.other_splits_s <= time_s(again.best)
    pinned = search(job, replace(space, uneven_layers=False), None, 0.5, OptimizeParams(workers=1), Watcher())
    assert pinned.prepared.other_splits_s == float("inf")
