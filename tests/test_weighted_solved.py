"""Plans of the least weighted time, against every configuration, simulated."""

from dataclasses import replace

import numpy as np
import pytest
from factories import TINY, make_cluster, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.certify.weights import Larger, Weights, robust_weights
from pipette_opt.optimize import OptimizeParams
from pipette_opt.optimize.weighted import optimize_weighted
from pipette_opt.parallel import host_tiles, tile_placement
from pipette_opt.plans.watcher import Watcher
from pipette_opt.report.file_rules import choice_is_reproduced
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs.objective import Objective

pytestmark = pytest.mark.search

SPACE = SearchSpace(
    micro_batch_size=(1, 2),
    virtual_pipeline=(1,),
    context_parallel=(1,),
    recompute=(None,),
    uneven_layers=False,
    overlap_grad_reduce=False,
)
PARAMS = OptimizeParams(time_limit_s=20, workers=1, max_oom_risk=1.0, objective=Objective.ROBUST)


@pytest.mark.parametrize("seed", range(3))
def test_least_weighted_time_of_all(seed: int) -> None:
    """One host, so that each configuration has one placement: the plan has the least factor times time, proven."""
    rng = np.random.default_rng(seed)
    model = replace(TINY, num_layers=4, hidden_size=int(rng.choice([256, 512])))
    given = make_job(make_cluster(1, gpus=4), model, 8)
    names = "tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size"
    larger = tuple(Larger(name=name, most=1, factor=float(rng.uniform(1, 3))) for name in names)
    weights = Weights(base=1.0, larger=larger)
    plan = optimize_weighted(weights, given, SPACE, PARAMS, Watcher())
    values = []
    for one in enumerate_candidates(given, SPACE):
        for block in host_tiles(one, 4, given.launcher):
            placement = tile_placement(one, block, np.zeros(block.node_grid(one), dtype=np.int64))
            values.append(weights.factor(one) * estimate(given, one, placement).iteration_time_s)
    choice = plan.certificate.chosen_by
    assert choice is not None
    assert weights.factor(plan.config) * plan.estimate.iteration_time_s == pytest.approx(min(values), rel=1e-5)
    assert choice.value == pytest.approx(min(values), rel=1e-5)
    assert choice.lower_bound <= min(values) * (1 + 1e-9)
    assert choice.gap < 1e-5


@pytest.mark.parametrize("seed", range(2))
def test_a_plainer_plan_is_within_reach_of_the_least(seed: int) -> None:
    """At most 1 % more than the least of the objective, no more stages, and the file rule passes."""
    model = replace(TINY, num_layers=4, hidden_size=256 * (1 + seed))
    given = make_job(make_cluster(1, gpus=4), model, 8)
    weights, inputs = robust_weights(given), {"objective": "robust"}
    plan, best = (
        optimize_weighted(weights, given, SPACE, replace(PARAMS, time_limit_s=4, prefer=prefer), Watcher(), inputs)
        for prefer in ("simple", "fastest")
    )
    choice = plan.certificate.chosen_by
    assert choice is not None
    value, least = (weights.factor(one.config) * one.estimate.iteration_time_s for one in (plan, best))
    assert value <= 1.01 * least * (1 + 1e-6)
    assert plan.config.pipeline_model_parallel_size <= best.config.pipeline_model_parallel_size
    assert choice.value == pytest.approx(least, rel=1e-5)
    assert list(choice_is_reproduced(given, plan)) == []


def test_nothing_within_the_limits() -> None:
    """An infinite factor for every configuration of a pinned size is named."""
    weights = Weights(base=1.0, larger=(Larger(name="world_size", most=2, factor=float("inf")),))
    with pytest.raises(InputError, match="worse by the objective"):
        optimize_weighted(
            weights, make_job(make_cluster(1, gpus=4), TINY, 8), replace(SPACE, num_gpus=4), PARAMS, Watcher()
        )


def test_the_file_rule_knows_what_was_chosen() -> None:
    """A robust plan passes; another value, bound, step or objective is named."""
    given = make_job(make_cluster(1, gpus=4), replace(TINY, num_layers=4, hidden_size=256), 8)
    weights = robust_weights(given)
    plan = optimize_weighted(weights, given, SPACE, PARAMS, Watcher(), {"objective": "robust"})
    choice = plan.certificate.chosen_by
    assert choice is not None
    assert list(choice_is_reproduced(given, plan)) == []
    first = choice.steps[0]
    for forged in (
        replace(choice, value=0.9 * choice.value),
        replace(choice, lower_bound=choice.lower_bound * 1.01),
        replace(choice, objective="cost"),
        replace(choice, steps=(replace(first, limits=("world_size<=1",)), *choice.steps[1:])),
        replace(choice, steps=(replace(first, lower_bound_s=first.lower_bound_s * 1.01), *choice.steps[1:])),
        None,
    ):
        other = replace(plan, certificate=replace(plan.certificate, chosen_by=forged))
        assert list(choice_is_reproduced(given, other)) != [], forged
    assert list(choice_is_reproduced(given, replace(plan, inputs={**plan.inputs, "objective": "time"}))) != []
