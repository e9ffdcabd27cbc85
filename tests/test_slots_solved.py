"""Hosts with NVLink pairs on rails, from matrices of single GPUs to a verified plan and its launch files."""

import json
from dataclasses import asdict, replace
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from factories import make_job
from gpu_hosts import gpu_cluster, paired_host, rails

from pipette_opt.base.errors import InputError, PlanError
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.export.targets import export
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import host_tiles, tile_placement
from pipette_opt.plans.plan import Plan
from pipette_opt.replan.changed_hosts import replan
from pipette_opt.report.plan_file import read_plan, write_plan
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance
from pipette_opt.verify import verify

pytestmark = pytest.mark.search

SPACE = SearchSpace(
    tensor_parallel=(2,),
    pipeline_parallel=(2,),
    context_parallel=(1,),
    virtual_pipeline=(1,),
    micro_batch_size=(1,),
    recompute=(None,),
    overlap_grad_reduce=False,
    sequence_parallel=(True,),
    use_distributed_optimizer=(True,),
    num_gpus=8,
)


@pytest.fixture(scope="module")
def job() -> Instance:
    """Two hosts of four GPUs; NVLink joins 0 with 2 and 1 with 3, and each GPU has a rail."""
    inside = np.stack([paired_host([(0, 2), (1, 3)], 4)] * 2)
    return make_job(gpu_cluster(inside, rails(2, 4)), global_batch_size=16, launcher="torchrun")


@pytest.fixture(scope="module")
def plan(job: Instance) -> Plan:
    """The plan of a short search."""
    recorded = {"model": asdict(job.model), "training": asdict(job.training)}
    return optimize(job, SPACE, OptimizeParams(time_limit_s=6.0, workers=1), inputs=recorded)


def test_nothing_is_faster_in_any_order(job: Instance, plan: Plan) -> None:
    """Every configuration on both orders of the hosts, each with all 576 orders of their GPUs."""
    orders = [np.array(both) for both in product(permutations(range(4)), repeat=2)]
    best = np.inf
    for chosen in enumerate_candidates(job, SPACE):
        for block in host_tiles(chosen, 4, "torchrun"):
            grid = block.node_grid(chosen)
            placed = [
                (chosen, tile_placement(chosen, block, np.arange(2).reshape(grid), slots.reshape(*grid, 4)))
                for slots in orders
            ]
            best = min(best, float(estimate_many(job, placed).min()))
    assert plan.estimate.iteration_time_s <= best * (1 + 1e-9)
    assert plan.certificate.lower_bound_s <= best * (1 + 1e-9)


def test_tensor_parallel_groups_are_on_pairs(plan: Plan) -> None:
    """In rank order the GPUs of a host come as 0 and 2, 1 and 3."""
    pairs = plan.placement.local_rank.reshape(-1, 2)
    assert (np.abs(pairs[:, 0] - pairs[:, 1]) == 2).all()


def test_the_plan_and_its_file_are_verified(job: Instance, plan: Plan, tmp_path: Path) -> None:
    """GPUs and those of alternatives come back from the file; the simulator times them again."""
    write_plan(plan, tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert (again.placement.local_rank == plan.placement.local_rank).all()
    assert again.alternatives == plan.alternatives
    assert again.risks == plan.risks
    assert plan.risks
    assert all(one.plan.slots is not None for one in plan.risks)
    verify(job, again)


def test_another_order_of_gpus_is_found_out(job: Instance, plan: Plan) -> None:
    """Ranks in turn on GPUs 0 to 3 take longer than the plan says, and two ranks cannot share a GPU."""
    in_turn = np.tile(np.arange(4), 2)
    with pytest.raises(PlanError, match=r"iteration_time_s is .* the simulator gives"):
        verify(job, replace(plan, placement=replace(plan.placement, local_rank=in_turn)))
    with pytest.raises(PlanError, match="share GPU 0 of host"):
        verify(job, replace(plan, placement=replace(plan.placement, local_rank=np.zeros(8, dtype=np.int64))))


@pytest.mark.parametrize("slots", [((0, 1, 2, 2), (0, 1, 2, 3)), ((0, 1, 2, 4), (0, 1, 2, 3)), ((0, 1, 2, 3),)])
def test_wrong_gpus_of_plans_beside_it_are_found_out(
    job: Instance, plan: Plan, slots: tuple[tuple[int, ...], ...]
) -> None:
    """One twice, one that there is not, and one host too few."""
    (safest,) = plan.risks[-1:]
    wrong = replace(safest, plan=replace(safest.plan, slots=slots))
    with pytest.raises(PlanError, match="GPUs"):
        verify(job, replace(plan, risks=(wrong,)))


def test_launchers_get_the_order_of_gpus(plan: Plan) -> None:
    """Each torchrun agent shows its ranks their GPUs in order; Slurm's tasks have a table; DeepSpeed cannot say it."""
    by_host = plan.placement.local_rank.reshape(2, 4)
    script = export(plan, "torchrun")["launch.sh"]
    for gpus in by_host.tolist():
        assert f"CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}" in script
    ranks = json.loads(export(plan, "rankmap-json")["rankmap.json"])["ranks"]
    assert [row["local_rank"] for row in ranks] == by_host.ravel().tolist()
    assert f"LOCAL_RANKS=(\n  {' '.join(map(str, by_host.ravel()))}" in export(plan, "slurm")["task.sh"]
    with pytest.raises(InputError, match="DeepSpeed"):
        export(plan, "deepspeed")


def test_hosts_keep_their_gpus_when_others_change(job: Instance, plan: Plan) -> None:
    """On the same hosts nothing must be loaded."""
    again = replan(job, plan, max_loads=0, params=OptimizeParams(time_limit_s=3.0, workers=1))
    assert not again.chosen.moves
    assert again.chosen.plan.estimate.iteration_time_s <= plan.estimate.iteration_time_s * (1 + 1e-9)
