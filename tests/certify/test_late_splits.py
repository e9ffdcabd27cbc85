"""What the joint model still finds once a plan is known: searched if there is time, and never lost."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_job, make_links

from pipette_opt.candidates import SearchSpace, enumerate_with_reasons
from pipette_opt.certify import OptimizeParams, certify
from pipette_opt.certify.first_plans import simulate_first_plan
from pipette_opt.certify.late_splits import fastest_plan, prove_splits
from pipette_opt.memory.fewest import check_memory
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import Prepared, Question, prepare, prunes
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


def without_time(made: Instance) -> Prepared:
    """The problem of a joint model that had no time, so that no split but the usual ones is searched."""
    limits = JointLimits(time_limit_s=1e-9, workers=1, seed=0, to_beat_s=float("inf"))
    return prepare(Question(made, FEW, 0.01, keep=prunes, joint=limits))


@pytest.mark.parametrize("searched", [True, False])
def test_a_faster_plan_of_another_split_is_kept(searched: bool) -> None:
    """With time it is searched with all of its split; at the end it is still the plan, and the bound covers it."""
    found_any = False
    for seed in range(3):
        before = without_time(job(seed))
        simulated = simulate_first_plan(before)
        after, found = prove_splits(
            before, simulated, float("inf"), 0.0, Clock().after(20.0), Clock() if searched else None
        )
        assert after.joined is not None
        assert after.joined.first is not None
        best = best_first([*simulated, *found])[0]
        assert best.estimate.iteration_time_s == pytest.approx(after.joined.first.seconds, rel=1e-9)
        assert any(best.candidate is one for one in after.problem.candidates)
        again = enumerate_with_reasons(after.instance, after.space)
        assert set(after.enumeration.candidates) == set(again.candidates)
        assert after.enumeration.num_combinations == again.num_combinations
        memory = check_memory(after.instance, again.candidates, after.predictor, 0.01)
        assert {one.config for one in after.memory.fitting} == {one.config for one in memory.fitting}
        certified = certify(after, [*simulated, *found], OptimizeParams(time_limit_s=60.0))
        fastest_s = best_first([*simulated, *found, *certified.simulated])[0].estimate.iteration_time_s
        bound_s = min(certified.bound_s, after.joined.model.bound_s)
        assert bound_s <= fastest_s * (1 + 1e-9)
        if searched:
            assert bound_s >= fastest_s * (1 - 1e-3)
        if found:
            found_any = True
            assert fastest_plan(found).seconds < fastest_plan(simulated).seconds
            assert best.candidate.config.layers_per_stage in after.space.more_splits
    assert found_any


def test_nothing_is_asked_without_time_or_need() -> None:
    """The problem stays as it is."""
    before = without_time(job(0))
    simulated = simulate_first_plan(before)
    assert prove_splits(before, simulated, float("inf"), 0.0, Clock(ends_s=0.0)) == (before, [])
    assert prove_splits(before, simulated, float("inf"), 0.999, Clock().after(20.0))[1] == []
