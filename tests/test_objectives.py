"""Objectives other than the time: the same as brute force over numbers of hosts, proven, written, read and checked."""

from dataclasses import asdict, replace
from itertools import combinations

import pytest
from factories import LLAMA_8B, make_cluster, make_job

from pipette_opt.base.errors import InputError, PlanError
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.optimize import optimize
from pipette_opt.optimize.objectives import optimize_objective
from pipette_opt.plans.failures import FailureRate, best_progress
from pipette_opt.plans.plan import Plan
from pipette_opt.read.cluster import subset_cluster
from pipette_opt.report.plan_file import plan_from_dict, plan_to_dict
from pipette_opt.report.proof_tables import sizes
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective
from pipette_opt.verify.target import target_is_reproduced

pytestmark = pytest.mark.search

SPACE = SearchSpace(
    micro_batch_size=(1,), tensor_parallel=(2,), virtual_pipeline=(1,), context_parallel=(1,), recompute=(None, "full")
)
SMALL = replace(LLAMA_8B, num_layers=8)
PRICES = (3.0, 1.0, 2.0)


def job(prices: tuple[float | None, ...] = PRICES) -> Instance:
    """Three hosts of two GPUs at these prices, links slow enough that more hosts lose."""
    spec = make_cluster(3, 2.0, gpus=2)
    nodes = (replace(node, price_per_gpu_hour=price) for node, price in zip(spec.nodes, prices, strict=True))
    return make_job(replace(spec, nodes=tuple(nodes)), model=SMALL, global_batch_size=12, seq_length=512)


def params(objective: Objective) -> OptimizeParams:
    """One thread, time enough."""
    return OptimizeParams(time_limit_s=60.0, workers=1, objective=objective)


@pytest.fixture(scope="module")
def found() -> dict[Objective, Plan]:
    """The best plan by each objective."""
    return {
        one: optimize_objective(job(), SPACE, params(one))
        for one in Objective
        if one in (Objective.TOKENS_PER_GPU, Objective.COST)
    }


@pytest.fixture(scope="module")
def least() -> dict[tuple[int, ...], float]:
    """Least time of every set of hosts that are all used."""
    times = {}
    for count in (1, 2, 3):
        for hosts in combinations(range(3), count):
            spec = subset_cluster(job().cluster, [f"n{host}" for host in hosts])
            space = replace(SPACE, num_gpus=2 * count)
            plan = optimize(replace(job(), cluster=spec), space, params(Objective.TIME))
            assert plan.certificate.gap < 1e-5
            times[hosts] = plan.estimate.iteration_time_s
    return times


@pytest.mark.parametrize("objective", [Objective.TOKENS_PER_GPU, Objective.COST])
def test_plainer_within_reach_by_every_objective(found: dict[Objective, Plan], objective: Objective) -> None:
    """
    The plan's value is at most 1 % worse than the best; the gap is that of the search; the file says both.

    Today's order of the hosts is known, but only some of the hosts are searched for a price.
    """
    today = replace(params(objective), time_limit_s=6.0, prefer="simple", host_order=(2, 1, 0))
    plan = optimize_objective(job(), SPACE, today)
    target, best = plan.target, found[objective].target
    assert target is not None
    assert best is not None
    ratio = target.value / best.value
    assert (1 / ratio if objective.is_rate else ratio) <= 1.01 * (1 + 1e-6)
    assert target.gap == pytest.approx(best.gap, abs=1e-5)
    used = replace(job(), cluster=subset_cluster(job().cluster, list(plan.hosts)))
    assert not list(target_is_reproduced(used, plan))
    assert plan_from_dict(plan_to_dict(plan)).target == target


RATE = FailureRate(host_mean_days=0.02, save_s=1.0, recovery_s=400.0)


def test_progress_is_the_most_of_any_number_of_hosts(least: dict[tuple[int, ...], float]) -> None:
    """Tokens per second times the share of progress; hosts that are lost often make fewer of them best."""
    inputs = {"failures": asdict(RATE)}
    plan = optimize_objective(job(), SPACE, params(Objective.PROGRESS), inputs=inputs)
    progress = {hosts: 12 * 512 / seconds * best_progress(RATE, len(hosts)).share for hosts, seconds in least.items()}
    assert plan.target is not None
    assert plan.target.value == pytest.approx(max(progress.values()), rel=1e-5)
    assert plan.target.gap < 1e-4
    assert not list(target_is_reproduced(job(), plan))
    with pytest.raises(InputError, match="--host-mean-days"):
        optimize_objective(job(), SPACE, params(Objective.PROGRESS))


def test_tokens_per_gpu_are_the_most_of_any_hosts(
    found: dict[Objective, Plan], least: dict[tuple[int, ...], float]
) -> None:
    """Tokens over GPU-seconds, the best of every set of hosts."""
    target = found[Objective.TOKENS_PER_GPU].target
    assert target is not None
    best = max(12 * 512 / (seconds * 2 * len(hosts)) for hosts, seconds in least.items())
    assert target.value == pytest.approx(best, rel=1e-5)
    assert target.value <= target.bound * (1 + 1e-9)
    assert target.gap < 1e-4
    assert target.value == pytest.approx(found[Objective.TOKENS_PER_GPU].estimate.tokens_per_s_per_gpu)


def test_cost_is_the_least_of_any_hosts(found: dict[Objective, Plan], least: dict[tuple[int, ...], float]) -> None:
    """Two GPUs of each host at its price, the best of every set of hosts: here the cheapest host alone."""
    target = found[Objective.COST].target
    assert target is not None
    costs = {
        hosts: seconds * 2 * sum(PRICES[host] for host in hosts) / 3600 * 1e6 / (12 * 512)
        for hosts, seconds in least.items()
    }
    assert min(costs, key=costs.__getitem__) == (1,)
    assert target.value == pytest.approx(min(costs.values()), rel=1e-5)
    assert target.bound <= target.value
    assert target.gap < 1e-4
    plan = found[Objective.COST]
    assert {plan.hosts[node] for node in plan.placement.nodes_used} == {"n1"}


def test_bounds_of_each_number_hold(found: dict[Objective, Plan], least: dict[tuple[int, ...], float]) -> None:
    """No set of hosts is faster than what is said of its number."""
    for plan in found.values():
        assert plan.target is not None
        for one in plan.target.sizes:
            able = [host for host in range(3) if one.dearest is None or PRICES[host] <= one.dearest]
            fastest = min(
                seconds
                for hosts, seconds in least.items()
                if 2 * len(hosts) == one.num_gpus and set(hosts) <= set(able)
            )
            assert one.lower_bound_s is not None
            assert one.lower_bound_s <= fastest * (1 + 1e-6)


def test_targets_are_written_read_shown_and_checked(found: dict[Objective, Plan]) -> None:
    """A plan file has the objective; a better value than the plan's own is refused."""
    for plan in found.values():
        assert plan.target is not None
        assert plan_from_dict(plan_to_dict(plan)).target == plan.target
        assert sizes(plan).rows
        spec = subset_cluster(job().cluster, plan.hosts)
        given = replace(job(), cluster=spec)
        assert not list(target_is_reproduced(given, plan))
        for wrong in (
            replace(plan.target, value=2 * plan.target.value),
            replace(plan.target, bound=2 * plan.target.bound),
            replace(plan.target, sizes=()),
        ):
            assert list(target_is_reproduced(given, replace(plan, target=wrong)))


def test_a_gap_that_does_not_follow_is_refused(found: dict[Objective, Plan]) -> None:
    """The gap follows from value and bound."""
    content = plan_to_dict(found[Objective.COST])
    content["objective"]["gap"] = 0.5
    with pytest.raises((InputError, PlanError), match="gap"):
        plan_from_dict(content)


def test_cost_needs_prices() -> None:
    """A host without a price is named."""
    with pytest.raises(InputError, match="n2 has none"):
        optimize_objective(job((1.0, 1.0, None)), SPACE, params(Objective.COST))


def test_budgets_below_a_host_are_refused() -> None:
    """Whole hosts only."""
    with pytest.raises(InputError, match="at least 2, the GPUs of a host"):
        optimize_objective(job(), replace(SPACE, max_gpus=1), params(Objective.COST))


@pytest.mark.parametrize(("most", "used"), [(6, 6), (5, 4), (2, 2), (1, 1)])
def test_time_within_a_budget_of_gpus(most: int, used: int) -> None:
    """As many whole hosts as the budget allows; a budget below a host takes a part of it."""
    space = replace(SPACE, max_gpus=most, tensor_parallel=(1,), recompute=("full",))
    plan = optimize(job(), space, params(Objective.TIME))
    assert plan.config.world_size == used
