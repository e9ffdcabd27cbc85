"""What if."""

from dataclasses import asdict, replace
from itertools import permutations

import numpy as np
import pytest
from factories import plan_of, scrambled_plan, small_config, small_instance

from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.certify.first_plans import first_plan
from pipette_opt.optimize import OptimizeParams
from pipette_opt.parallel import host_tiles, tile_placement
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.replan import changes as made
from pipette_opt.replan.changes import Change
from pipette_opt.replan.searching import GAP
from pipette_opt.replan.whatif import WhatIf
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance
from pipette_opt.specs.stack import Anchor
from pipette_opt.worlds.reference import reference_terms
from pipette_opt.worlds.terms import described_plan

PINS = SearchSpace(
    num_gpus=16,
    tensor_parallel=(2,),
    pipeline_parallel=(2,),
    micro_batch_size=(2,),
    recompute=(None,),
    virtual_pipeline=(1,),
    uneven_layers=False,
    context_parallel=(1,),
    overlap_grad_reduce=False,
    overlap_param_gather=False,
)
"""One configuration, so that every placement can be simulated."""


def fastest_s(job: Instance, hosts: tuple[int, ...]) -> float:
    """Of all placements of the pinned configurations on these hosts."""
    placed = [
        (config, tile_placement(config, block, np.array(order).reshape(block.node_grid(config))))
        for config in enumerate_candidates(job, PINS)
        for block in host_tiles(config, job.cluster.gpus_per_node, job.launcher)
        for order in permutations(hosts, 4)
    ]
    return float(estimate_many(job, placed).min())


@pytest.fixture(scope="module")
def old() -> Plan:
    """Four of five hosts; n2 is idle."""
    plan = plan_of(small_instance(), small_config())
    certificate = replace(plan.certificate, lower_bound_s=fastest_s(small_instance(), tuple(range(5))))
    return replace(plan, certificate=certificate, inputs={**plan.inputs, "search": asdict(PINS)})


@pytest.fixture(scope="module")
def asking(old: Plan) -> WhatIf:
    """Questions about it."""
    return WhatIf(old, small_instance(), OptimizeParams(workers=1), Watcher())


@pytest.mark.search
def test_each_lost_host_is_answered_as_brute_force_says(old: Plan, asking: WhatIf) -> None:
    """All in one list, whose searches share a preparation; the bound holds, and the times are those of plans."""
    job = small_instance()
    changes = [made.without_hosts(job, [host]) for host in job.cluster.hosts]
    told: list[str] = []
    answers = asking.ask(changes, 10.0, lambda answer: told.append(answer.name))
    assert told == [f"without n{node}" for node in range(5)]
    for node, answer in enumerate(answers):
        best_s = fastest_s(job, tuple(other for other in range(5) if other != node))
        assert answer.simulated_bound_s is not None
        assert answer.simulated_s is not None
        assert answer.simulated_bound_s <= best_s * (1 + 1e-9)
        if node == 2:  # idle
            assert answer.simulated_s == answer.simulated_as_it_is_s == old.estimate.iteration_time_s
        else:
            assert best_s * (1 - 1e-9) <= answer.simulated_s <= best_s * (1 + 2 * GAP)
            assert answer.simulated_as_it_is_s is None
        assert (answer.num_hosts, answer.idle_hosts) == (4, 0)
        assert answer.low_s is not None
        assert answer.high_s is not None
        assert answer.expected_s is not None
        assert answer.low_s < answer.expected_s < answer.high_s
        if answer.config == old.config.label():
            assert answer.least_change is None
        else:
            assert answer.least_change is not None
            assert answer.least_change < answer.change < answer.most_change


@pytest.mark.search
def test_the_plan_as_it_is_is_simulated_on_the_changed_job(old: Plan, asking: WhatIf) -> None:
    """With faster links it is faster, and the best plan is no slower; changes are of the tokens per second."""
    (faster, batch, odd) = asking.ask(
        [
            made.faster_links(small_instance(), 4.0),
            made.other_training(small_instance(), "twice", {"global_batch_size": 128}),
            made.other_training(small_instance(), "odd", {"global_batch_size": 63}),
        ],
        6.0,
    )
    assert faster.simulated_as_it_is_s is not None
    assert faster.simulated_s is not None
    assert faster.simulated_s <= faster.simulated_as_it_is_s < old.estimate.iteration_time_s
    assert faster.expected_s is not None
    assert faster.change == pytest.approx(asking.now.expected_s / faster.expected_s - 1)
    assert batch.simulated_s is not None
    assert batch.tokens_per_s == pytest.approx(128 * 1024 / batch.expected_s)
    assert batch.least_change is None  # another job
    assert odd.simulated_as_it_is_s is None
    assert odd.simulated_s is None
    assert "micro_batch_size" in odd.why or "batch" in odd.why


def test_the_range_of_a_change_is_that_of_the_new_plan_over_the_old(old: Plan) -> None:
    """Runs as long as simulated on the old plan, twice as long on the new: the range holds half the simulated gain."""
    job, new = small_instance(), plan_of(small_instance(), replace(small_config(), micro_batch_size=1))
    anchors = tuple(
        Anchor(
            run="log",
            terms=tuple(described_plan(job, plan.config, plan.placement)[1].tolist()),
            log_ratio=log_ratio,
            reference=tuple(reference_terms(job).tolist()),
        )
        for plan, log_ratio in ((old, 0.0), (new, float(np.log(2))))
        for _ in range(10)
    )
    known = replace(job, stack=replace(job.stack, anchors=anchors))
    asking = WhatIf(old, known, OptimizeParams(workers=1), Watcher())
    change = Change(name="n4", group="more hosts", instance=known)
    seconds = new.estimate.iteration_time_s
    least, most = asking._ends(change, seconds, new.config, new.placement, seconds)
    assert least is not None
    assert most is not None
    gain = old.estimate.iteration_time_s / seconds / 2
    assert 0.6 * gain < 1 + least < gain < 2 * gain <= 1 + most
    assert asking._ends(change, seconds, old.config, new.placement, None) == (None, None)
    assert asking._ends(change, seconds, new.config, new.placement, seconds / 2)[1] == pytest.approx(1 + 2 * most)
    assert asking._ends(change, seconds, old.config, new.placement, seconds / 2)[1] == pytest.approx(4 * gain - 1)


@pytest.mark.search
def test_a_plan_without_a_grid_of_hosts_is_no_start(asking: WhatIf) -> None:
    """Ranks that are dealt to GPUs at random are simulated as they are, but nothing begins there."""
    plan = scrambled_plan()
    job = small_instance()
    assert first_plan(job, plan.config, plan.placement, 1.0) is None
    grid = plan_of(job, small_config()).placement
    found = first_plan(job, small_config(), grid, 1.0)
    assert found is not None
    assert np.array_equal(tile_placement(found.config, found.tile, found.nodes).node, grid.node)
    scrambled = WhatIf(plan, job, OptimizeParams(workers=1), Watcher())
    change = replace(made.faster_links(job, 2.0), is_searched=False)
    (answer,) = scrambled.ask([change])
    assert answer.simulated_s == answer.simulated_as_it_is_s
    assert answer.simulated_bound_s is None


def test_only_repairs_that_help_are_asked(old: Plan) -> None:
    """A slow host first; an idle host, which a repair may bring back; none else."""
    job = small_instance()
    links = np.full((5, 5), 20e9)
    links[3], links[:, 3] = 2e9, 2e9
    slow = replace(
        job, cluster=replace(job.cluster, link_matrices=(replace(job.cluster.link_matrices[0], bytes_per_s=links),))
    )
    found = WhatIf(old, slow, OptimizeParams(), Watcher()).repairs(job.cluster.hosts)
    assert [change.name for change in found] == ["n3 repaired", "n2 repaired"]


def test_a_stop_keeps_what_is_done(old: Plan) -> None:
    """No question is begun after it."""
    watcher = Watcher()
    asking = WhatIf(old, small_instance(), OptimizeParams(workers=1), watcher)
    changes = [replace(made.faster_links(small_instance(), 2.0), is_searched=False)] * 3
    answers = asking.ask(changes, 1.0, lambda answer: watcher.stop.set())
    assert len(answers) == 1
