"""Branch and bound over hosts in a search, where relaxations are not exact."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from factories import TINY, make_job, make_random_cluster
from levels import in_domains

from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.placing import HOST_TREE
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import host_tiles, tile_placement
from pipette_opt.simulate import host_tree
from pipette_opt.simulate.many import estimate_many

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

    If there were too many, notes would say why the search ended with a gap.
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
