"""Configurations that join a search after it began: what the joint model still finds, and what had no bound in time."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_job, make_links

from pipette_opt.base.units import GIB
from pipette_opt.candidates import SearchSpace, enumerate_with_reasons
from pipette_opt.certify.first_plans import simulate_first_plan
from pipette_opt.certify.more_configurations import (
    adds_configurations,
    bound_left_out,
    continue_joint_model,
    fastest_plan,
    joint_model,
    least_joint_model,
    left_out,
    unchanged,
)
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.certify.rounds import certify
from pipette_opt.certify.state import SearchState
from pipette_opt.memory.fewest import check_memory
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import Question, prepare, prunes
from pipette_opt.simulate.solutions import best_first
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.specs import Instance, NodeSpec

pytestmark = pytest.mark.search

SLOWER = replace(A100_80, name="slower", peak_flops={name: 0.5 * rate for name, rate in A100_80.peak_flops.items()})
KINDS = (A100_80, SLOWER, A100_80)

FEW = SearchSpace(
    tensor_parallel=(1, 2),
    context_parallel=(1,),
    micro_batch_size=(1, 2),
    virtual_pipeline=(1,),
    recompute=(None,),
    overlap_grad_reduce=False,
)


def job(seed: int) -> Instance:
    """Three hosts of two GPUs with links of their own, and layers that do not divide by three stages."""
    values = np.random.default_rng(seed).uniform(6.0, 25.0, (3, 3))
    nodes = tuple(NodeSpec(host=f"n{i}", gpu=gpu, num_gpus=2) for i, gpu in enumerate(KINDS))
    hosts = make_cluster(3, gpus=2, nodes=nodes, link_matrices=(make_links(values, 3),))
    return make_job(hosts, replace(LLAMA_8B, num_layers=13), 24, 4096)


def search_of(made: Instance, space: SearchSpace = FEW) -> SearchState:
    """A search whose joint model had no time, so that no split but the usual ones is searched."""
    limits = JointLimits(time_limit_s=1e-9, workers=1, seed=0, to_beat_s=float("inf"))
    prepared = prepare(Question(made, space, 0.01, keep=prunes, joint=limits))
    return SearchState(prepared, simulate_first_plan(prepared), OptimizeParams(), Clock())


def test_a_faster_plan_of_another_split_is_kept() -> None:
    """It is searched with all of its split."""
    found_any = False
    for seed in range(3):
        state = search_of(job(seed))
        known = fastest_plan(state.simulated)
        continue_joint_model(state, Clock().after(20.0))
        after = state.prepared
        assert after.joined is not None
        assert after.joined.first is not None
        best = best_first(state.simulated)[0]
        assert best.estimate.iteration_time_s == pytest.approx(after.joined.first.seconds, rel=1e-9)
        found = best.candidate.config != known.config
        if found:
            found_any = True
            assert fastest_plan(state.simulated).seconds < known.seconds
            assert best.candidate.config.layers_per_stage in after.space.more_splits
        assert any(best.candidate is one for one in after.problem.candidates) or not found
        again = enumerate_with_reasons(after.instance, after.space)
        assert set(after.enumeration.candidates) == set(again.candidates)
        assert after.enumeration.num_combinations == again.num_combinations
        memory = check_memory(after.instance, again.candidates, after.predictor, 0.01)
        assert {one.config for one in after.memory.fitting} == {one.config for one in memory.fitting}
        state.clock = Clock().after(60.0)
        certify(state)
        assert state.bound_s <= state.fastest_s * (1 + 1e-9)
        assert state.bound_s >= state.fastest_s * (1 - 1e-3)
    assert found_any


def test_new_splits_that_recompute_more_layers_have_bounds() -> None:
    """Memory of 28 GiB wants two layers or more recomputed: such configurations are bounded like the enumerated one."""
    made = job(0)
    small = [replace(node, gpu=replace(node.gpu, memory_bytes=28 * GIB)) for node in made.cluster.nodes]
    made = replace(made, cluster=replace(made.cluster, nodes=tuple(small)))
    state = search_of(made, replace(FEW, tensor_parallel=(2,), recompute=("block",)))
    before = set(state.bounds)
    continue_joint_model(state, Clock().after(20.0))
    new = {config for config, _ in set(state.bounds) - before}
    assert any(config.recompute_num_layers > 1 for config in new)
    assert min(reason.bound_s for reason in state.bounds.values()) > 0


def test_the_joint_model_has_work_while_its_bound_leaves_the_gap_open() -> None:
    """Not without a plan, within the accepted gap, or once no other bound is above its own."""
    state = search_of(job(0))
    assert joint_model(state)
    assert least_joint_model(state)
    joined = state.prepared.joined
    assert joined is not None
    high = replace(joined, model=replace(joined.model, bound_s=1.001 * state.listed_bound_s))
    state.prepared = replace(state.prepared, joined=high)
    assert joint_model(state)
    assert least_joint_model(state) is None
    state.params = OptimizeParams(gap_limit=0.999)
    assert joint_model(state) is None
    state.params, state.plans = OptimizeParams(), {}
    assert joint_model(state) is None


def test_a_search_goes_on_with_the_joint_model_until_its_gap_is_closed() -> None:
    """The first run of the joint model had no time."""
    state = search_of(job(1))
    state.clock = Clock().after(60.0)
    certify(state)
    assert state.bound_s >= state.fastest_s * (1 - 1e-3)


def test_configurations_without_a_bound_in_time_are_bounded_and_searched() -> None:
    """All but a few have only their compute-only bound; later none keeps the gap open, and the best is found."""
    question = Question(job(0), FEW, 0.01, keep=prunes)
    whole, early = prepare(question), prepare(question, Clock(ends_s=0.0))
    state = SearchState(early, simulate_first_plan(early), OptimizeParams(), Clock().after(60.0))
    before, number = state.bounds.copy(), left_out(state)
    assert number is not None
    assert 0 < number <= len(early.left_out)
    bound_left_out(state, Clock().after(60.0))
    assert left_out(state) is None
    assert all(state.bounds[part].bound_s >= reason.bound_s for part, reason in before.items() if part in state.bounds)
    certify(state)
    alone = SearchState(whole, simulate_first_plan(whole), OptimizeParams(), Clock().after(60.0))
    certify(alone)
    assert state.fastest_s == pytest.approx(alone.fastest_s, rel=1e-6)
    assert state.bound_s == pytest.approx(alone.bound_s, rel=1e-4)


@pytest.mark.parametrize(("left_s", "adds"), [(60.0, True), (5.0, False)])
def test_single_changes_need_time(left_s: float, adds: bool) -> None:
    """With less than a tenth of the limit left they would widen the space and prove nothing."""
    space = replace(FEW, virtual_pipeline=None)
    limits = JointLimits(time_limit_s=5.0, workers=1, seed=0, to_beat_s=float("inf"))
    prepared = prepare(Question(job(3), space, 0.01, keep=prunes, joint=limits))
    clock = Clock().after(left_s)
    state = SearchState(prepared, simulate_first_plan(prepared), OptimizeParams(time_limit_s=60.0), clock)
    assert (unchanged(state) is not None) == adds_configurations(state) == adds
