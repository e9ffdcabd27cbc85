"""The layout that runs today as a plan to begin with: the answer is never slower, and what is no plan is said."""

import pytest
from factories import TINY, make_cluster, make_job

from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.first_plans import simulate_first_plan
from pipette_opt.library.known import with_layout_of
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import Question, prepare, prunes
from pipette_opt.read.megatron_args import parse_megatron_args

JOB = make_job(make_cluster(2, 10.0, gpus=4), TINY, 32, 2048)

SPACE = SearchSpace(num_gpus=8)

TODAY = "--tensor-model-parallel-size 2 --micro-batch-size 2 --recompute-granularity full --recompute-method uniform "
"""Replicas without the distributed optimizer, and no sequence parallelism: not searched by default."""


@pytest.mark.search
def test_the_layout_is_a_plan_of_the_space() -> None:
    """It is searched, and no slower plan comes out even if the search has no time for anything else."""
    space, first, why_not = with_layout_of(JOB, SPACE, parse_megatron_args(TODAY), 0.01)
    assert first is not None
    assert why_not == ""
    assert first.config in space.more_configs
    prepared = prepare(Question(JOB, space, 0.01, keep=prunes, first=first), Clock(ends_s=0.0))
    found = simulate_first_plan(prepared)
    assert min(one.estimate.iteration_time_s for one in found) <= first.seconds


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (TODAY.replace("size 2", "size 16", 1), "must divide the 8 GPUs"),
        ("--tensor-model-parallel-size 2 --micro-batch-size 3", "multiple"),
        ("--tensor-model-parallel-size 4 --micro-batch-size 1", "pinned options exclude"),
    ],
)
def test_what_is_no_plan_says_why(arguments: str, reason: str) -> None:
    """Degrees that do not divide the GPUs, a batch that does not divide, and a pin that excludes it."""
    space = SearchSpace(num_gpus=8, tensor_parallel=(2, 16))
    wider, first, why_not = with_layout_of(JOB, space, parse_megatron_args(arguments), 0.01)
    assert first is None
    assert wider is space
    assert reason in why_not


def test_hosts_in_the_order_that_runs() -> None:
    """Its ranks fill the hosts as they run today."""
    given = parse_megatron_args("--pipeline-model-parallel-size 2 --micro-batch-size 2")
    _, first, _ = with_layout_of(JOB, SPACE, given, 0.01, nodes=(1, 0))
    assert first is not None
    assert first.nodes.ravel().tolist() == [1, 0]


@pytest.mark.parametrize("searched", [True, False])
def test_a_layout_is_known_with_tensor_overlap_where_that_is_searched(searched: bool) -> None:
    """It fits with it, so it is searched with it only; else as it runs today."""
    space = SearchSpace(num_gpus=8, tp_comm_overlap=None if searched else False)
    given = parse_megatron_args("--tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 2")
    _, first, _ = with_layout_of(JOB, space, given, 0.01)
    assert first is not None
    assert first.config.tp_comm_overlap == searched
