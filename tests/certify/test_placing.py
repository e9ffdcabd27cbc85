"""Branch and bound over hosts in a search, where relaxations are not exact."""

from dataclasses import replace
from itertools import permutations
from unittest.mock import Mock

import numpy as np
import pytest
from factories import TINY, make_config, make_job, make_random_cluster
from levels import in_domains

from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.placing import HOST_TREE, _search_hosts
from pipette_opt.certify.state import OpenCandidate
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import host_tiles, tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.simulate import host_tree
from pipette_opt.simulate.host_tree import HostTree
from pipette_opt.simulate.many import estimate_many
from pipette_opt.verify.certificate import bound_holds, notes_are_reproduced
from pipette_opt.verify.space import Searched

pytestmark = pytest.mark.search


def test_sharded_parameters_over_hosts_are_proven() -> None:
    """ZeRO 3 on six unequal hosts: the plan is the best of all 720 placements, and the certificate names the prover."""
    job = make_job(make_random_cluster(np.random.default_rng(2), 6, gpus=2), TINY, global_batch_size=24)
    space = SearchSpace(
        num_gpus=12,
        tensor_parallel=(1,),
        pipeline_parallel=(1,),
        micro_batch_size=(1,),
        recompute=(None,),
        data_parallel_sharding_strategy=("optim_grads_params",),
    )
    plan = optimize(job, space, OptimizeParams(time_limit_s=60, workers=1, gap_limit=0.0, prefer="fastest"))
    assert plan.certificate.status == "OPTIMAL"
    names = {named.name for proof in plan.certificate.proof if proof.by == "search" for named in proof.named}
    assert HOST_TREE in names
    (tile,) = host_tiles(plan.config, 2, job.launcher)
    orders = np.array(list(permutations(range(6)))).reshape(-1, 1, 6, 1)
    placed = [(plan.config, tile_placement(plan.config, tile, nodes)) for nodes in orders]
    assert plan.certificate.objective_s == pytest.approx(estimate_many(job, placed).min(), rel=1e-6)


def test_hosts_of_a_domain_are_interchangeable(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Experts over unequal NVLink domains: with two domains, few of the 720 placements differ, and all are simulated.

    If there were too many, notes would say why the search ended with a gap; verify takes them only with a gap.
    """
    moe = replace(TINY, num_layers=4, num_experts=4, add_bias_linear=False, add_qkv_bias=False)
    job = make_job(in_domains([0, 0, 0, 0, 1, 1]), moe, global_batch_size=12)
    space = SearchSpace(
        num_gpus=12,
        tensor_parallel=(1,),
        pipeline_parallel=(1,),
        expert_parallel=(4,),
        micro_batch_size=(1,),
        recompute=(None,),
    )
    params = OptimizeParams(time_limit_s=60, workers=1, gap_limit=0.0, prefer="fastest")
    plan = optimize(job, space, params)
    assert plan.certificate.status == "OPTIMAL"
    assert not any("ended early" in note for note in plan.notes)
    monkeypatch.setattr(host_tree, "MAX_WITHOUT_BOUND", 1)
    open_plan = optimize(job, space, params)
    assert open_plan.certificate.status == "FEASIBLE"
    (note,) = [note for note in open_plan.notes if "NVLink" in note]
    assert note.startswith("The search ended early with a gap: branch and bound supports 50,000 placements in NVLink")
    for rule in (notes_are_reproduced, bound_holds):
        assert list(rule(Searched.again(job, open_plan), open_plan)) == []
    (problem,) = notes_are_reproduced(Searched.again(job, plan), replace(plan, notes=(*plan.notes, note)))
    assert problem == f"the note {note!r} does not follow from the plan"


def test_a_tree_without_faster_placements_gets_no_time() -> None:
    """A faster plan of another candidate may leave open placements that cannot win: other steps go on."""
    job = make_job(make_random_cluster(np.random.default_rng(2), 4, gpus=2), TINY, global_batch_size=16)
    config = make_config(dp=8, zero_stage=3, use_distributed_optimizer=True)
    fitting = FittingCandidate(config=config, need_bytes=np.zeros(1, dtype=np.int64))
    data = build_problem_data(job, [fitting], np.zeros(4, dtype=np.int64))
    tree, clock = HostTree(job, data, data.candidates[0]), Clock().after(60.0)
    tree.go_on(np.inf, clock, 1)
    assert not tree.is_done
    entry = OpenCandidate(index=0, candidate=data.candidates[0], bound_ticks=1, deciding=np.ones(1, dtype=np.bool_))
    entry.tree = tree
    state = Mock(fastest_s=tree.bound_s, is_over=False, data=data)
    _search_hosts(state, [entry], clock)
    state.look.assert_not_called()
    assert not clock.is_over
