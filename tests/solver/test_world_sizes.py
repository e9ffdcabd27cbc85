"""Numbers of GPUs that are searched: chosen by time, the others with a bound."""

from dataclasses import replace

import pytest
from factories import TINY, make_cluster, make_job

from pipette_opt.candidates import SearchSpace, choose_num_gpus, left_out, space_of
from pipette_opt.costs.work import WorkBounds
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, Question, prepare, prunes
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.solver.world_sizes import WorldSizes, choose_world_sizes
from pipette_opt.specs import Instance
from pipette_opt.verify import verify_content
from pipette_opt.verify.certificate import other_numbers_are_bounded
from pipette_opt.verify.space import Searched

pytestmark = pytest.mark.search

FAST = OptimizeParams(time_limit_s=20.0, gap_limit=0.005, workers=1)
"""Ends soon, as gaps close."""


@pytest.fixture(scope="module")
def job() -> Instance:
    """Three hosts of four GPUs and a batch of 32, which 12 GPUs share in odd parts: 8 are faster."""
    return make_job(make_cluster(3, 50.0, gpus=4), TINY, 32, 2048)


@pytest.fixture(scope="module")
def plan(job: Instance) -> Plan:
    """The plan of the search over all numbers of GPUs."""
    return optimize(job, SearchSpace(), FAST)


def chosen(job: Instance, *, is_over: bool = False) -> WorldSizes:
    """What is searched of the whole space."""
    clock = Clock(ends_s=0.0) if is_over else Clock()

    def fastest(sizes: tuple[int, ...]) -> FirstPlan | None:
        return prepare(Question(job, SearchSpace(world_sizes=sizes), 0.01, keep=prunes)).pruned.first  # type: ignore[union-attr]

    return choose_world_sizes(WorkBounds(job), SearchSpace(), clock, fastest)


def test_the_fastest_number_is_used_and_not_the_busiest(job: Instance, plan: Plan) -> None:
    """Before, 12 GPUs were searched alone, as they keep more GPUs busy in the best case without a time."""
    assert choose_num_gpus(job, SearchSpace()) == 12
    assert plan.config.world_size == 8
    for num_gpus in (4, 12):
        other = optimize(job, SearchSpace(num_gpus=num_gpus), FAST)
        assert plan.estimate.iteration_time_s < other.estimate.iteration_time_s


def test_others_are_left_out_with_a_bound(job: Instance) -> None:
    """Those whose bound is no better than a plan that was simulated; the fastest known plan's number is first."""
    found = chosen(job)
    assert found.first is not None
    assert found.space.world_sizes[0] == found.first.config.world_size == 8
    assert set(found.bounds_s) == {4, 8, 12}
    assert found.space.narrowed == ()
    for num_gpus in {4, 12} - set(found.space.world_sizes):
        assert found.bounds_s[num_gpus] >= found.first.seconds
    without = replace(found.space, world_sizes=(12,))
    assert found.left_out_s(without) == min(found.bounds_s[4], found.bounds_s[8])


def test_numbers_without_a_bound_are_said_to_be_left_out(job: Instance) -> None:
    """No time: the largest number alone has a bound, and the certificate names what was searched."""
    found = chosen(job, is_over=True)
    assert set(found.bounds_s) == {12}
    assert found.space.narrowed == ("world_sizes",)


def test_a_plan_of_few_configurations_comes_first(job: Instance) -> None:
    """It is a plan of a narrowed space, which says what it leaves out, and the search of the whole space beats it."""
    passed: list[Prepared] = []
    whole = prepare(Question(job, SearchSpace(), 0.01, keep=prunes, chooses_sizes=True, on_first=passed.append))
    (few,) = passed
    assert {"world_sizes", "context_parallel", "micro_batch_size"} <= set(few.space.narrowed)
    assert len(few.enumeration.candidates) < len(whole.enumeration.candidates)
    assert [candidate.config for candidate in few.problem.candidates] == [few.pruned.first.config]  # type: ignore[union-attr]
    assert whole.pruned.first.seconds <= few.pruned.first.seconds  # type: ignore[union-attr]


def test_the_first_plan_is_verified(job: Instance) -> None:
    """The plan that is written first obeys every rule, too; later plans are no slower."""
    plans: list[Plan] = []
    optimize(job, SearchSpace(), FAST, Watcher(on_plan=plans.append))
    assert len(plans) > 1
    assert "left out for the time limit" in plans[0].certificate.scope
    times = [plan.certificate.best_s for plan in plans]
    assert times == sorted(times, reverse=True)
    verify_content(job, plans[0])


def test_the_bound_of_a_search_counts_all_numbers(job: Instance) -> None:
    """Where a number is not searched its bound is; the scope says nothing of other numbers of whole hosts."""
    prepared = prepare(Question(job, SearchSpace(), 0.01, keep=prunes, chooses_sizes=True))
    assert prepared.other_sizes_s > prepared.pruned.first.seconds  # type: ignore[union-attr]
    said = left_out(job, prepared.space, prepared.enumeration)
    assert "numbers of GPUs that do not fill whole hosts" in said
    assert not any(text.startswith("other numbers of GPUs") for text in said)


def test_the_bounds_of_other_numbers_are_verified(job: Instance, plan: Plan) -> None:
    """The recorded space has the numbers searched; without the best of them the certificate claims too much."""
    space = space_of(plan.inputs["search"])
    assert 8 in space.world_sizes
    searched = Searched.again(job, plan)
    assert list(other_numbers_are_bounded(searched, plan)) == []
    (problem,) = other_numbers_are_bounded(replace(searched, space=replace(space, world_sizes=(4, 12))), plan)
    assert "8 GPUs were not searched" in problem
