"""Regret in a certificate: derived again by ``verify``, and forgeries of it named."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from factories import LLAMA_8B, make_cluster, make_job

from pipette_opt.base.errors import InputError, PlanError
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.optimize.objectives import optimize_objective
from pipette_opt.plans.certificate import Experiment, Regret
from pipette_opt.plans.plan import Plan
from pipette_opt.report.plan_file import plan_from_dict, plan_to_dict
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective
from pipette_opt.specs.stack import Anchor
from pipette_opt.tune.listing import listed_placement
from pipette_opt.verify import verify
from pipette_opt.verify.regret import Groups, group_of, weights_of
from pipette_opt.verify.space import Searched
from pipette_opt.worlds.reference import reference_terms
from pipette_opt.worlds.terms import TERMS, describe
from pipette_opt.worlds.worlds import Worlds

pytestmark = pytest.mark.search

SPACE = SearchSpace(
    micro_batch_size=(1, 2), tensor_parallel=(1, 2), virtual_pipeline=(1,), context_parallel=(1,), recompute=(None,)
)


@cache
def solved(seed: int = 0) -> tuple[Instance, Plan]:
    """Plan of least mean regret for a small model on three hosts of two GPUs."""
    job = make_job(make_cluster(3, 10.0, gpus=2), replace(LLAMA_8B, num_layers=6), global_batch_size=12, seq_length=512)
    params = OptimizeParams(time_limit_s=20.0, workers=1, objective=Objective.REGRET, seed=seed)
    return job, optimize_objective(job, SPACE, params)


def regret_of(plan: Plan) -> Regret:
    """Regret that a plan records."""
    assert plan.certificate.regret is not None
    return plan.certificate.regret


def test_the_regret_is_derived_again() -> None:
    """All rules hold, also for the plan read from its file."""
    job, plan = solved()
    verify(job, plan)
    assert plan_from_dict(plan_to_dict(plan)).certificate.regret == regret_of(plan)


def test_the_plan_has_the_least_regret_of_all_plans_found() -> None:
    """No recorded alternative has less regret; the regret over plans found is at most that over bounds."""
    job, plan = solved()
    regret, searched = regret_of(plan), Searched.again(job, plan)
    groups = Groups(searched.instance, searched.memory.fitting, searched.memory.capacity_bytes)
    groups.least_s = plan.certificate.lower_bound_s
    weights = weights_of(groups, Worlds.load(), None)
    assert plan.alternatives
    for other in plan.alternatives:
        assert other.iteration_time_s is not None
        assert weights[group_of(other.config)] * other.iteration_time_s >= (1 + regret.mean) * (1 - 1e-6)
    assert 0 <= regret.over_found_mean <= regret.mean
    assert 0 <= regret.over_found_high <= regret.high
    assert len(regret.lower_bounds_s) == regret.worlds == 100


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mean": 0.0}, "regret.mean"),
        ({"high": 0.001, "over_found_high": 0.001}, "regret.high"),
        ({"lower_bounds_s": (1.0,) * 100}, "regret.lower_bounds_s"),
        ({"measured_runs": 3}, "regret.measured_runs"),
        ({"over_found_mean": 9.0}, "regret.over_found_mean"),
        ({"over_found_high": 0.0}, "regret.over_found_high"),
        ({"experiment": Experiment(command="profile all", gpu_minutes=1.0, regret=0.0)}, "regret.experiment"),
    ],
)
def test_a_forged_regret_is_named(changes: dict[str, Any], named: str) -> None:
    """Each changed figure is named with the right one."""
    job, plan = solved()
    forged = replace(plan, certificate=replace(plan.certificate, regret=replace(regret_of(plan), **changes)))
    with pytest.raises(PlanError, match=named):
        verify(job, forged)


def test_a_missing_regret_is_named() -> None:
    """The objective asks for a regret."""
    job, plan = solved()
    with pytest.raises(PlanError, match="records none"):
        verify(job, replace(plan, certificate=replace(plan.certificate, regret=None)))


@cache
def solved_after_a_run() -> tuple[Instance, Plan]:
    """The plan once a run of two pipeline stages took 1.35 of its simulated time."""
    job, plan = solved()
    config = next(other.config for other in plan.alternatives if other.config.pipeline_model_parallel_size > 1)
    _, terms = describe(job, [(config, listed_placement(job, config))])
    reference = tuple(reference_terms(job).tolist())
    anchors = (Anchor(run="train.sh: 3.00 s", terms=tuple(terms[0].tolist()), log_ratio=0.3, reference=reference),)
    job = replace(job, stack=replace(job.stack, anchors=anchors))
    params = OptimizeParams(time_limit_s=20.0, workers=1, objective=Objective.REGRET)
    return job, optimize_objective(job, SPACE, params)


@pytest.mark.parametrize(
    "changed",
    [
        lambda anchor: (),
        lambda anchor: (replace(anchor, log_ratio=0.0),),
        lambda anchor: (replace(anchor, terms=tuple(term + 0.5 for term in anchor.terms)),),
        lambda anchor: (anchor, replace(anchor, run="again.sh: 3.00 s")),
    ],
)
def test_changed_measured_runs_are_noticed(changed: Callable[[Anchor], tuple[Anchor, ...]]) -> None:
    """A plan whose measured runs were removed, changed or repeated has another regret."""
    job, plan = solved_after_a_run()
    verify(job, plan)
    forged = replace(job, stack=replace(job.stack, anchors=changed(job.stack.anchors[0])))
    with pytest.raises(PlanError, match="regret_holds: regret"):
        verify(forged, plan)


def test_measured_runs_of_another_version_are_named() -> None:
    """A run described by fewer terms than this version has."""
    job, plan = solved_after_a_run()
    anchor = job.stack.anchors[0]
    short = replace(job.stack, anchors=(replace(anchor, terms=anchor.terms[:-1]),))
    few = f"{len(TERMS) - 1} and {len(TERMS)} terms"
    with pytest.raises(InputError, match=rf"measured run train\.sh: 3\.00 s: has {few}, but this version"):
        verify(replace(job, stack=short), plan)


@pytest.mark.parametrize(
    "changes", [{"run": "tp8 pp8"}, {"gpu_minutes": 1.0}, {"regret": 0.0}, {"command": "profile all"}, None]
)
def test_a_forged_experiment_is_named(changes: dict[str, Any] | None) -> None:
    """What the next run costs and brings is derived again."""
    job, plan = solved_after_a_run()
    regret = regret_of(plan)
    assert regret.experiment is not None
    experiment = None if changes is None else replace(regret.experiment, **changes)
    forged = replace(plan, certificate=replace(plan.certificate, regret=replace(regret, experiment=experiment)))
    with pytest.raises(PlanError, match=r"regret_holds: regret\.experiment"):
        verify(job, forged)
