"""Numbers of GPUs that are searched: chosen by time, the others with a bound."""

from dataclasses import replace

import pytest
from factories import TINY, make_cluster, make_job

from pipette_opt.candidates import SearchSpace, choose_num_gpus, enumerate_with_reasons, left_out, space_of
from pipette_opt.costs.work import WorkBounds
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, Question, prepare, prunes, with_world_sizes
from pipette_opt.simulate.least_times import LeastTimes, may_win
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.solver.world_sizes import (
    WorldSizes,
    first_world_sizes,
    has_time_for,
    hopeful_sizes,
    with_bound,
    with_size,
)
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


def chosen(job: Instance) -> WorldSizes:
    """What is searched of the whole space at first."""

    def fastest(sizes: tuple[int, ...]) -> FirstPlan | None:
        return prepare(Question(job, SearchSpace(world_sizes=sizes), 0.01, keep=prunes)).pruned.first  # type: ignore[union-attr]

    return first_world_sizes(WorkBounds(job), SearchSpace(), fastest)


def test_the_fastest_number_is_used_and_not_the_busiest(job: Instance, plan: Plan) -> None:
    """Before, 12 GPUs were searched alone, as they keep more GPUs busy in the best case without a time."""
    assert choose_num_gpus(job, SearchSpace()) == 12
    assert plan.config.world_size == 8
    for num_gpus in (4, 12):
        other = optimize(job, SearchSpace(num_gpus=num_gpus), FAST)
        assert plan.estimate.iteration_time_s < other.estimate.iteration_time_s


def test_the_number_of_a_known_plan_is_searched_first(job: Instance) -> None:
    """The others are named as left out until they are bounded; without a plan, all are searched."""
    found = chosen(job)
    assert found.first is not None
    assert found.space.world_sizes == (found.first.config.world_size,)
    assert found.space.narrowed == ("world_sizes",)
    without = first_world_sizes(WorkBounds(job), SearchSpace(), lambda sizes: None)
    assert without.space.world_sizes == (12, 8, 4)
    assert without.space.narrowed == ()


def test_others_are_left_out_with_a_bound(job: Instance) -> None:
    """A number is hopeful if a plan may beat the time; its space has what compute allows. Else its bound is kept."""
    found = chosen(job)
    own, work = found.space.world_sizes, WorkBounds(job)
    others = {4, 8, 12} - {*own}
    least_s = {size: found.least(size) for size in others}
    for to_beat_s in (0.9 * min(least_s.values()), 1.001 * min(least_s.values()), 1.001 * max(least_s.values())):
        least, space = LeastTimes(job, SearchSpace()), found.space
        able = hopeful_sizes(least, space, to_beat_s, Clock())
        assert {*able} == {size for size in others if least_s[size] < to_beat_s}
        for size in able:
            space = with_size(space, size, to_beat_s)
        space, bound_s = with_bound(least, space, to_beat_s)
        assert space.narrowed == ()
        assert space.world_sizes == (*own, *able)
        bounds_s = [least.not_below_s[size] for size in others.difference(able)]
        assert all(to_beat_s <= least.not_below_s[size] <= least_s[size] for size in others.difference(able))
        assert bound_s == min([*bounds_s, *([to_beat_s] if able else [])])
        listed = enumerate_with_reasons(job, space, may_win(work, space)).candidates
        every = enumerate_with_reasons(job, replace(space, others_below_s=None)).candidates
        assert {config.world_size for config in listed} == {*own, *able}
        left_out = [config for config in every if config not in set(listed)]
        assert all(config.world_size not in own and work(config) >= to_beat_s for config in left_out)


def test_numbers_without_a_bound_are_said_to_be_left_out(job: Instance) -> None:
    """No time: only the number of the known plan is searched, and the certificate says so."""
    found = chosen(job)
    assert hopeful_sizes(found.least, found.space, float("inf"), Clock(ends_s=0.0)) == ()
    assert with_bound(found.least, found.space, 1.0) == (found.space, float("inf"))
    assert not has_time_for(job, found.space, 4, Clock(ends_s=0.0))
    assert has_time_for(job, found.space, 4, Clock())


def limits_of(seconds: float, clock_s: float = 60.0) -> JointLimits:
    """Limits of a joint model with a time to beat."""
    return JointLimits(time_limit_s=clock_s, workers=1, seed=0, to_beat_s=seconds)


def test_a_number_whose_proof_does_not_end_stays_left_out(job: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partitions may be faster for all that is known, so it would lower the bound of the whole search."""
    joint = limits_of(float("inf"))
    prepared = prepare(Question(job, SearchSpace(), 0.01, keep=prunes, chooses_sizes=True, joint=joint))
    first, least = prepared.pruned.first, prepared.least_times  # type: ignore[union-attr]
    assert first is not None
    assert least is not None
    slow = 10 * max(map(least, (4, 8, 12)))  # so that every number is hopeful
    known = replace(first, seconds=slow)
    bounded = with_world_sizes(prepared, known, limits_of(slow, 0.0), Clock())
    assert bounded.space.world_sizes == prepared.space.world_sizes
    assert "world_sizes" in bounded.space.narrowed
    assert bounded.least_times is least
    found = with_world_sizes(prepared, first, limits_of(first.seconds), Clock())
    assert found.space.narrowed == ()
    assert found.least_times is None


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
    first = prepared.pruned.first  # type: ignore[union-attr]
    assert first is not None
    assert prepared.least_times is not None
    prepared = with_world_sizes(prepared, first, limits_of(first.seconds), Clock())
    assert prepared.least_times is None
    assert prepared.other_sizes_s >= first.seconds
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
