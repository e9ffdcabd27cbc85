"""Plans of the least upper end: against every configuration, derived again by ``verify``, and forgeries named."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from factories import LLAMA_8B, TINY, make_cluster, make_job

from pipette_opt.base.errors import PlanError
from pipette_opt.candidates import SearchSpace, enumerate_candidates, with_data_parallelism_alone
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.optimize.objectives import optimize_objective
from pipette_opt.parallel import ParallelConfig, host_tiles, tile_placement
from pipette_opt.plans.certificate import Robust
from pipette_opt.plans.plan import Plan
from pipette_opt.report.plan_file import plan_from_dict, plan_to_dict
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective
from pipette_opt.specs.stack import Anchor
from pipette_opt.tune.listing import listed_placement
from pipette_opt.verify import verify
from pipette_opt.verify.regret import Group, group_of
from pipette_opt.verify.regret_rule import groups_again
from pipette_opt.verify.robust import upper_ends_of
from pipette_opt.verify.space import Searched
from pipette_opt.worlds.factor import anchored
from pipette_opt.worlds.reference import reference_terms
from pipette_opt.worlds.terms import describe

pytestmark = pytest.mark.search

SPACE = SearchSpace(
    micro_batch_size=(1, 2),
    virtual_pipeline=(1,),
    context_parallel=(1,),
    recompute=(None,),
    uneven_layers=False,
    overlap_grad_reduce=False,
)
PARAMS = OptimizeParams(time_limit_s=20.0, workers=1, objective=Objective.ROBUST)


@cache
def solved() -> tuple[Instance, Plan]:
    """Plan of the least upper end for a small model on three hosts of two GPUs."""
    job = make_job(make_cluster(3, 10.0, gpus=2), replace(LLAMA_8B, num_layers=6), global_batch_size=12, seq_length=512)
    return job, optimize_objective(job, replace(SPACE, tensor_parallel=(1, 2)), PARAMS)


def robust_of(plan: Plan) -> Robust:
    """Upper end that a plan records."""
    assert plan.certificate.robust is not None
    return plan.certificate.robust


def factors_of(job: Instance, plan: Plan) -> dict[Group, float]:
    """Upper end of each group, per second of predicted time."""
    return upper_ends_of(groups_again(Searched.again(job, plan), plan), anchored(job))


def times_of_all(job: Instance, space: SearchSpace) -> list[tuple[ParallelConfig, float]]:
    """Every legal configuration on a single host, with its simulated seconds."""
    found = []
    for config in enumerate_candidates(job, space):
        for tile in host_tiles(config, 4, job.launcher):
            placement = tile_placement(config, tile, np.zeros(tile.node_grid(config), dtype=np.int64))
            found.append((config, estimate(job, config, placement).iteration_time_s))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_least_upper_end_of_all(seed: int) -> None:
    """One host, so that each configuration has one placement: the plan has the least upper end of all, proven."""
    size = int(np.random.default_rng(seed).choice([256, 512]))
    job = make_job(make_cluster(1, gpus=4), replace(TINY, num_layers=4, hidden_size=size), 8 * (1 + seed))
    plan = optimize_objective(job, SPACE, replace(PARAMS, max_oom_risk=1.0))
    factors = factors_of(job, plan)
    least = min(
        factors[group_of(config)] * seconds
        for config, seconds in times_of_all(job, with_data_parallelism_alone(job, SPACE))
    )
    robust = robust_of(plan)
    assert robust.value_s == pytest.approx(least, rel=1e-5)
    assert robust.lower_bound_s <= least * (1 + 1e-9)
    verify(job, plan)


@pytest.mark.parametrize("seed", range(2))
def test_a_plainer_plan_is_within_reach_of_the_least(seed: int) -> None:
    """At most 1 % above the least upper end, with no more stages, and all rules hold."""
    job = make_job(make_cluster(1, gpus=4), replace(TINY, num_layers=4, hidden_size=256 * (1 + seed)), 8)
    plan, best = (
        optimize_objective(job, SPACE, replace(PARAMS, time_limit_s=6.0, max_oom_risk=1.0, prefer=prefer))
        for prefer in ("simple", "fastest")
    )
    assert robust_of(plan).value_s <= 1.01 * robust_of(best).value_s * (1 + 1e-6)
    assert plan.config.pipeline_model_parallel_size <= best.config.pipeline_model_parallel_size
    verify(job, plan)


def test_the_upper_end_is_derived_again() -> None:
    """All rules hold, also for the plan read from its file."""
    job, plan = solved()
    verify(job, plan)
    assert plan_from_dict(plan_to_dict(plan)).certificate.robust == robust_of(plan)


def test_no_recorded_plan_has_a_smaller_upper_end() -> None:
    """The plan's own is the least, and its factor times its time."""
    job, plan = solved()
    robust, factors = robust_of(plan), factors_of(job, plan)
    assert plan.alternatives
    for other in plan.alternatives:
        assert other.iteration_time_s is not None
        assert factors[group_of(other.config)] * other.iteration_time_s >= robust.value_s * (1 - 1e-6)
    assert robust.value_s == robust.best_s == pytest.approx(robust.factor * plan.estimate.iteration_time_s)
    assert 0 <= robust.gap < 0.05


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"value_s": 0.5}, r"robust\.value_s"),
        ({"best_s": 0.5}, r"robust\.best_s"),
        ({"lower_bound_s": 0.5}, r"robust\.lower_bound_s"),
        ({"gap": 0.5}, r"robust\.gap"),
        ({"factor": 1.01}, r"robust\.factor"),
        ({"share": 0.99}, r"robust\.share"),
        ({"measured_runs": 3}, r"robust\.measured_runs"),
        ({"groups": 1}, r"robust\.groups"),
        ({"left_out_s": 9.0}, r"robust\.left_out_s"),
    ],
)
def test_a_forged_upper_end_is_named(changes: dict[str, Any], named: str) -> None:
    """Each changed figure is named with the right one."""
    job, plan = solved()
    forged = replace(plan, certificate=replace(plan.certificate, robust=replace(robust_of(plan), **changes)))
    with pytest.raises(PlanError, match=f"robust_holds: {named}"):
        verify(job, forged)


def test_a_worse_plan_is_named() -> None:
    """A plan whose upper end is a percent above that of a recorded plan was not chosen by it."""
    job, plan = solved()
    first = plan.alternatives[0]
    assert first.iteration_time_s is not None
    better_s = 0.9 * robust_of(plan).value_s / factors_of(job, plan)[group_of(first.config)]
    alternatives = (replace(first, iteration_time_s=better_s), *plan.alternatives[1:])
    with pytest.raises(PlanError, match=r"robust_holds: the upper end is .* above .* of a recorded plan"):
        verify(job, replace(plan, alternatives=alternatives))


@pytest.mark.parametrize("objective", ["time", "robust"])
def test_a_missing_upper_end_is_named(objective: str) -> None:
    """The objective asks for it, and no other objective has it."""
    job, plan = solved()
    inputs = {**plan.inputs, "objective": objective}
    certificate = plan.certificate if objective == "time" else replace(plan.certificate, robust=None)
    with pytest.raises(PlanError, match=f"robust_holds: the objective is {objective}, .*; solve again"):
        verify(job, replace(plan, inputs=inputs, certificate=certificate))


def test_a_measured_run_counts() -> None:
    """Factors start from a run of the plan, and a plan whose run was changed has other ones."""
    job, plan = solved()
    _, terms = describe(job, [(plan.config, listed_placement(job, plan.config))])
    reference = tuple(reference_terms(job).tolist())
    anchor = Anchor(run="train.sh: 3.00 s", terms=tuple(terms[0].tolist()), log_ratio=0.6, reference=reference)
    measured = replace(job, stack=replace(job.stack, anchors=(anchor,)))
    plan = optimize_objective(measured, replace(SPACE, tensor_parallel=(1, 2)), PARAMS)
    assert robust_of(plan).measured_runs == 1
    verify(measured, plan)
    changed = replace(job, stack=replace(job.stack, anchors=(replace(anchor, log_ratio=0.3),)))
    with pytest.raises(PlanError, match=r"robust_holds: robust\.factor"):
        verify(changed, plan)
