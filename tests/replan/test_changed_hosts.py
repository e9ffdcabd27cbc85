"""Going on when hosts are lost or join."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from factories import plan_of, small_config, small_instance

from pipette_opt.base.errors import InfeasibleError
from pipette_opt.candidates import SearchSpace
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.replan.changed_hosts import held_cells, replan, start_from
from pipette_opt.replan.space import kept_configs, space_for, void_pins
from pipette_opt.specs import Instance

pytestmark = pytest.mark.search

FAST = OptimizeParams(time_limit_s=2.0)


def without_host(given: Instance, host: str) -> Instance:
    """The same job on the other hosts."""
    keep = [index for index, name in enumerate(given.cluster.hosts) if name != host]
    links = given.cluster.link_matrices[0].bytes_per_s[np.ix_(keep, keep)]
    return replace(
        given,
        cluster=replace(
            given.cluster,
            nodes=tuple(given.cluster.nodes[index] for index in keep),
            link_matrices=(replace(given.cluster.link_matrices[0], bytes_per_s=links),),
        ),
    )


@pytest.fixture(scope="module")
def old() -> Plan:
    """Four of five hosts; n2 is a spare."""
    return plan_of(small_instance(), small_config())


def test_a_spare_takes_over(old: Plan) -> None:
    """One host must load, and the plan says which; with no load allowed there is no plan."""
    given = without_host(small_instance(), "n3")
    found = replan(given, old, params=FAST)
    fewest = found.options[0]
    assert fewest.num_loads == 1
    assert {move.host for move in fewest.moves if move.parameter_bytes} == {"n2"}
    times = [one.plan.estimate.iteration_time_s for one in found.options]
    assert times == sorted(times, reverse=True)
    assert found.chosen.plan.config.world_size == 16
    assert "n3" not in found.chosen.plan.hosts
    with pytest.raises(InfeasibleError, match="makes 1 or more hosts load parameters, but --max-moves allows only 0"):
        replan(given, old, max_loads=0, params=FAST)


def test_a_lost_spare_changes_nothing_that_must_load(old: Plan) -> None:
    """The plan can go on as it is."""
    found = replan(without_host(small_instance(), "n2"), old, max_loads=0, params=FAST)
    assert found.chosen.num_loads == 0
    assert found.chosen.plan.estimate.iteration_time_s <= old.estimate.iteration_time_s * (1 + 1e-9)


def test_fewer_hosts_than_before(old: Plan) -> None:
    """Three hosts: the fastest number of GPUs is found, and two replicas fewer of the old pipeline need no load."""
    given = without_host(without_host(small_instance(), "n3"), "n2")
    assert {one.data_parallel_size for one in kept_configs(given, old)} == {2}
    assert {one.data_parallel_size for one in kept_configs(given, old, 4)} == {1}
    found = replan(given, old, params=replace(FAST, time_limit_s=8.0))  # 2 s are too few on a busy machine
    assert found.options[0].num_loads == 0
    assert found.options[0].plan.config.world_size >= 8
    fastest = optimize(given, space_for(old, given.cluster), FAST)
    assert found.options[-1].plan.estimate.iteration_time_s <= 1.01 * fastest.estimate.iteration_time_s


def test_a_stop_begins_no_search_with_unequal_micro_batches(old: Plan) -> None:
    """The first answer is there soon after Ctrl-C."""
    given, watcher = without_host(without_host(small_instance(), "n3"), "n2"), Watcher()
    watcher.stop.set()
    stopped = replan(given, old, params=FAST, watcher=watcher)
    assert stopped.unequal is None


def test_what_hosts_hold(old: Plan) -> None:
    """Rows of the grid; a host that the plan leaves out holds nothing."""
    given = small_instance()
    fits = FittingCandidate(config=small_config(), need_bytes=np.zeros(2, dtype=np.int64))
    data = build_problem_data(given, [fits], np.full(5, 2**36))
    candidate = next(one for one in data.candidates if one.tile.stages == 1)
    holds = held_cells(given, candidate, old)
    assert holds.tolist() == [0, 1, -1, 0, 1]
    start = start_from(data, candidate, holds)
    assert start is not None
    assert sorted(start[0].ravel().tolist()) == [0, 3]
    assert sorted(start[1].ravel().tolist()) == [1, 4]
    other = next(one for one in data.candidates if one.tile.stages == 2)
    assert held_cells(given, other, old).tolist() == [-1] * 5


@pytest.mark.parametrize(
    ("pins", "num_gpus", "void"),
    [
        ({"tensor_parallel": (4,), "pipeline_parallel": (2, 4)}, 8, ()),
        ({"tensor_parallel": (4,), "pipeline_parallel": (4,)}, 8, ("pipeline_parallel",)),
        ({"tensor_parallel": (8,), "context_parallel": (2,)}, 8, ("context_parallel",)),
        ({"tensor_parallel": (8,), "pipeline_parallel": (2,)}, 4, ("pipeline_parallel", "tensor_parallel")),
        ({"data_parallel": (2,), "pipeline_parallel": (3,)}, 8, ("data_parallel", "pipeline_parallel")),
    ],
)
def test_degrees_that_the_gpus_cannot_keep(
    old: Plan, pins: dict[str, tuple[int, ...]], num_gpus: int, void: tuple[str, ...]
) -> None:
    """The pipeline's first; what is left divides the GPUs, or nothing is left of these."""
    pinned = replace(old, inputs={**old.inputs, "search": asdict(SearchSpace(**pins))})  # type: ignore[arg-type]
    found = void_pins(pinned, [num_gpus])
    assert found[: len(void)] == void
    left = space_for(pinned, small_instance().cluster, num_gpus)
    degrees = (left.tensor_parallel, left.pipeline_parallel, left.context_parallel)
    assert num_gpus % int(np.prod([one[0] for one in degrees if one])) == 0


def test_pins_stay_and_what_the_search_chose_is_free_again(old: Plan) -> None:
    """Pinned degrees and overlap hold; a pinned number of replicas as long as the GPUs do; of GPUs it is the most."""
    searched = SearchSpace(
        num_gpus=16, tensor_parallel=(2,), data_parallel=(4,), virtual_pipeline=(1,), narrowed=("virtual_pipeline",)
    )
    pinned = replace(old, inputs={**old.inputs, "search": asdict(searched)})
    cluster = small_instance().cluster
    same, fewer = space_for(pinned, cluster, 16), space_for(pinned, cluster, 8)
    assert space_for(pinned, cluster) == replace(same, num_gpus=None, max_gpus=16)
    assert same == replace(fewer, num_gpus=16, data_parallel=(4,))
    assert fewer.tensor_parallel == (2,)
    assert fewer.virtual_pipeline is None
    assert fewer.data_parallel is None
    assert fewer.context_parallel is None
    assert fewer.overlap_grad_reduce is None
    assert fewer.more_splits == (old.config.layers_per_stage,)
    sent = replace(old, inputs={**old.inputs, "search": asdict(SearchSpace(overlap_grad_reduce=True))})
    assert space_for(sent, cluster, 8).overlap_grad_reduce
    unsaid = replace(old, inputs={name: value for name, value in old.inputs.items() if name != "search"})
    assert space_for(unsaid, cluster, 8).overlap_grad_reduce == old.config.overlap_grad_reduce


def test_unequal_micro_batches_use_hosts_that_would_be_idle(old: Plan) -> None:
    """Three hosts: a batch of 32 in equal shares leaves one idle, unless replicas may differ; asked for, it is used."""
    given = without_host(without_host(small_instance(), "n3"), "n2")
    pinned = replace(
        old, inputs={**old.inputs, "search": asdict(SearchSpace(tensor_parallel=(2,), pipeline_parallel=(1, 2)))}
    )
    equal = replan(given, pinned, params=FAST)
    assert equal.chosen.plan.config.world_size == 8
    assert equal.unequal is not None
    assert equal.unequal.plan.config.world_size == 12
    assert equal.unequal.plan.estimate.iteration_time_s < equal.chosen.plan.estimate.iteration_time_s
    allowed = replace(given, training=replace(given.training, unequal_microbatches=True))
    asked = replan(allowed, pinned, params=FAST)
    assert asked.unequal is None
    assert asked.chosen.plan.config.world_size == 12
    assert any(note.startswith("Planned only: ") for note in asked.chosen.plan.notes)
