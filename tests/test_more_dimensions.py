"""A dimension more that brings nothing changes no optimum."""

from dataclasses import replace
from typing import Any

import pytest
from factories import LLAMA_8B, make_cluster, make_job

from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.optimize import optimize
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import Instance
from pipette_opt.specs.expert_loads import RankImbalance

pytestmark = pytest.mark.search

NARROW = SearchSpace(
    tensor_parallel=(1, 2), virtual_pipeline=(1,), context_parallel=(1,), recompute=(None,), micro_batch_size=(1,)
)


def job() -> Instance:
    """Two hosts of two GPUs with room enough, a slow link between them."""
    return make_job(
        make_cluster(2, 2.0, gpus=2), model=replace(LLAMA_8B, num_layers=4), global_batch_size=8, seq_length=512
    )


def solved(given: Instance, space: SearchSpace) -> Plan:
    """The proven optimum."""
    plan = optimize(given, space, OptimizeParams(time_limit_s=30.0, workers=1))
    assert plan.certificate.status == "OPTIMAL"
    return plan


@pytest.fixture(scope="module")
def narrow() -> Plan:
    """Of the narrow space."""
    return solved(job(), NARROW)


@pytest.mark.parametrize(
    "wider",
    [
        {"recompute": (None, "selective", "block", "full")},
        {"use_distributed_optimizer": (False, True)},
        {"sequence_parallel": (False, True)},
        {"tensor_parallel": (1, 2, 4)},
        {"context_parallel": (1, 2)},
        {"virtual_pipeline": (1, 2)},
        {"data_parallel_sharding_strategy": ("optim", "optim_grads", "optim_grads_params")},
    ],
)
def test_wider_spaces(narrow: Plan, wider: dict[str, Any]) -> None:
    """A wider space is never slower; where its optimum was in the narrow one already, it is the same time."""
    space = replace(NARROW, **wider)
    assert len(enumerate_candidates(job(), space)) > len(enumerate_candidates(job(), NARROW))
    found = solved(job(), space)
    seconds, before = found.estimate.iteration_time_s, narrow.estimate.iteration_time_s
    assert seconds <= before * (1 + 1e-6)
    if found.config in enumerate_candidates(job(), NARROW):
        assert seconds == pytest.approx(before, rel=1e-6)


def test_unequal_micro_batches_where_equal_ones_divide(narrow: Plan) -> None:
    """The batch is a multiple of every number of replicas: nothing is to be had, and the plan is the same."""
    given = job()
    found = solved(replace(given, training=replace(given.training, unequal_microbatches=True)), NARROW)
    assert found.config == narrow.config
    assert found.estimate.iteration_time_s == narrow.estimate.iteration_time_s


def test_loads_and_prices_that_say_nothing(narrow: Plan) -> None:
    """Equal prices, and an imbalance of a model without experts: the same plan."""
    given = job()
    nodes = tuple(replace(node, price_per_gpu_hour=2.0) for node in given.cluster.nodes)
    training = replace(given.training, rank_imbalances=(RankImbalance(ranks=2, imbalance=1.5),))
    found = solved(replace(given, cluster=replace(given.cluster, nodes=nodes), training=training), NARROW)
    assert found.config == narrow.config
    assert found.estimate.iteration_time_s == narrow.estimate.iteration_time_s
