"""Layers and recomputed layers chosen together: against every split, number of recomputed layers and placement."""

from dataclasses import replace

import numpy as np
import pytest
from all_placements import every_fitting_s, tight_job

from pipette_opt.candidates import RECOMPUTATIONS, SearchSpace
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import Instance
from pipette_opt.verify import verify

LAYERS = 9
"""Layers of the model of the test: few enough for every split."""

SPACE = SearchSpace(
    tensor_parallel=(2,),
    pipeline_parallel=(2,),
    data_parallel=(1,),
    context_parallel=(1,),
    micro_batch_size=(1,),
    virtual_pipeline=(1,),
    overlap_grad_reduce=False,
)
"""Two stages on two hosts."""


@pytest.fixture(scope="module")
def job() -> Instance:
    """A job whose memory is too small without recomputation."""
    return tight_job(20, LAYERS)


@pytest.fixture(scope="module")
def every(job: Instance) -> dict[ParallelConfig, float]:
    """The simulator's least time of every split and number of recomputed layers that fits, over all placements."""
    return every_fitting_s(job, SPACE)


@pytest.fixture(scope="module")
def plan(job: Instance) -> Plan:
    """The plan of the search."""
    return optimize(job, SPACE, OptimizeParams(time_limit_s=20, workers=2, max_oom_risk=0.01))


@pytest.mark.search
def test_the_plan_is_the_optimum_of_all_numbers(job: Instance, every: dict[ParallelConfig, float], plan: Plan) -> None:
    """Proven; verified; some layers are recomputed, and with one less of them the plan would not fit."""
    assert plan.estimate.iteration_time_s == pytest.approx(min(every.values()), rel=1e-4)
    assert plan.certificate.status == "OPTIMAL"
    assert plan.config.recomputation == "block"
    number = plan.config.recompute_num_layers
    assert number == 1 or replace(plan.config, recompute_num_layers=number - 1) not in every
    verify(job, plan)


def test_block_beats_all_others(every: dict[ParallelConfig, float]) -> None:
    """Nothing, the attention core and everything are slower, or do not fit."""
    least = {
        choice: min((seconds for one, seconds in every.items() if one.recomputation == choice), default=np.inf)
        for choice in RECOMPUTATIONS
    }
    assert least["block"] < min(least[None], least["selective"], least["full"])


def test_time_never_falls_with_the_number(every: dict[ParallelConfig, float]) -> None:
    """Of every split; which is why the smallest number that fits is enough."""
    for one, seconds in every.items():
        less = replace(one, recompute_num_layers=max(one.recompute_num_layers - 1, 1))
        assert every.get(less, 0.0) <= seconds * (1 + 1e-12)


@pytest.mark.search
def test_the_scope_says_that_blocks_were_searched(plan: Plan) -> None:
    """And no longer that some layers of a stage were not."""
    assert "block" in plan.certificate.searched["recompute"]
    assert not any("recomputed layers" in text for text in plan.certificate.not_searched)
    assert sum(part.configurations for part in plan.certificate.proof) > 0
