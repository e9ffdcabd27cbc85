"""NVLink domains from candidates to plans: every bound, form and optimum against placements that are simulated."""

from dataclasses import replace

import numpy as np
import pytest
from all_placements import least_s
from factories import TINY, make_cluster, make_config, make_job
from learned import TICKS, learned
from levels import domain, in_domains

from pipette_opt.base.units import GB
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.filter import CheckedConfig
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import ParallelConfig, tile_placement
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.build import FittingCandidate, build_problem_data, links_decide, with_paths
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.simulate.estimate import estimate, simulate_times
from pipette_opt.simulate.solutions import best_links_times
from pipette_opt.specs import Instance
from pipette_opt.specs.levels import Level
from pipette_opt.verify import verify
from pipette_opt.verify.bounds import cheap_bounds_s

pytestmark = pytest.mark.search

MOE = replace(TINY, name="moe", num_layers=4, num_experts=8, add_bias_linear=False, add_qkv_bias=False)
DENSE = replace(TINY, num_layers=4)

SHARED = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}

CONFIGS = (
    *(make_config(dp=16, num_layers=4, expert_model_parallel_size=ep) for ep in (1, 2, 8)),
    make_config(dp=16, num_layers=4, **SHARED),
    make_config(tp=2, pp=2, dp=4, num_layers=4, sequence_parallel=True, use_distributed_optimizer=True),
    make_config(tp=4, pp=2, dp=2, num_layers=4, sequence_parallel=True),
    make_config(tp=8, pp=2, num_layers=4),
    make_config(pp=4, dp=4, num_layers=4, **SHARED),
    make_config(pp=2, dp=8, num_layers=4, virtual_pipeline_model_parallel_size=2),
    make_config(pp=2, dp=8, num_layers=4, expert_model_parallel_size=8, **SHARED),
    make_config(
        tp=2, dp=8, num_layers=4, sequence_parallel=True, expert_model_parallel_size=4, expert_tensor_parallel_size=2
    ),
    make_config(pp=4, dp=2, num_layers=4, expert_model_parallel_size=2),
)


def clusters(seed: int) -> list[Instance]:
    """Domains of equal and of unequal size, below a leaf, with pairs that were measured; latencies of each pair."""
    rng = np.random.default_rng(seed)
    leaf = Level(name="leaf", group_of_node=np.array([0] * 4 + [1] * 4), bytes_per_s=20 * GB, latency_s=5e-6)
    tiers = replace(in_domains([0, 0, 1, 1, 2, 2, 3, 3]), levels=(domain([0, 0, 1, 1, 2, 2, 3, 3]), leaf))
    slow = replace(tiers, link_matrices=make_cluster(8, 8.0).link_matrices)
    values = rng.uniform(5.0, 25.0, (8, 8))
    values[:3, :3] = values[3:, 3:] = np.nan
    measured = replace(
        in_domains([0, 0, 0, 1, 1, 1, 1, 1]), links_measured=True, link_matrices=make_cluster(8, values).link_matrices
    )
    latencies = rng.choice([1e-5, 1e-4, 1e-3], (8, 8))
    apart = make_cluster(8, values, gpus=2, nics_per_node=2, known_latency_s=rng.uniform(1e-6, 1e-3, (8, 8)))
    apart = replace(apart, link_matrices=make_cluster(8, rng.uniform(5.0, 25.0, (8, 8))).link_matrices)
    regions = replace(apart, levels=(leaf,), known_latency_s=np.where(np.isnan(values), np.nan, latencies))
    fleets = in_domains([0] * 4 + [1] * 4), in_domains([0, 0, 0, 1, 1, 1, 2, 2]), slow, measured, apart, regions
    return [make_job(spec, MOE, global_batch_size=16) for spec in fleets]


def problem(job: Instance, chosen: ParallelConfig) -> ProblemData:
    """One configuration in integers, memory no matter."""
    need = np.zeros(chosen.pipeline_model_parallel_size, dtype=np.int64)
    fitting = [FittingCandidate(config=chosen, need_bytes=need)]
    return build_problem_data(job, fitting, np.full(job.cluster.num_nodes, 1 << 40))


@pytest.mark.parametrize("dispatcher", ["alltoall", "flex"])
@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_no_bound_is_above_a_placement(number: int, dispatcher: str) -> None:
    """On random orders no bound is above the simulator; where hops decide, critical paths are the simulated time."""
    chosen, rng = CONFIGS[number], np.random.default_rng(number)
    for job in clusters(number):
        if chosen.expert_model_parallel_size == 1:
            job = replace(job, model=DENSE)
        job = replace(job, training=replace(job.training, moe_token_dispatcher_type=dispatcher))
        data = problem(job, chosen)
        need = np.zeros(chosen.pipeline_model_parallel_size, dtype=np.int64)
        checked = CheckedConfig(config=chosen, prediction=None, need_bytes=need)  # type: ignore[arg-type]
        cheap = float(cheap_bounds_s(job, [checked], np.full(8, 1 << 40))[0])
        work = WorkBounds(job)(chosen)
        for one in data.candidates:
            best = best_links_times(job, one)
            assert best is not None
            fastest = simulate_times(best, one.num_microbatches, job.p2p).iteration_time_s
            least = with_paths(job, data, one, [])
            for _ in range(3):
                nodes = rng.permutation(8)[: one.num_cells].reshape(one.grid)
                placement = tile_placement(chosen, one.tile, nodes)
                simulated = estimate(job, chosen, placement).iteration_time_s * (1 + 1e-9)
                form = objective_ticks(data, least, nodes)
                assert max(work, cheap, fastest) <= simulated
                assert optimistic_ticks(data, least) <= form
                assert form * data.tick_s <= simulated
                exact = links_decide(job, chosen, one.tile) and not chosen.overlap_grad_reduce
                assert (1 - TICKS if exact else 0.0) < learned(job, data, one, nodes) <= 1 + 1e-9


def fastest_s(job: Instance, space: SearchSpace) -> float:
    """The simulator's least time over all configurations and placements."""
    return min(least_s(job, enumerate_candidates(job, space)).values())


@pytest.mark.parametrize(("ep", "tp", "pp"), [(4, 1, 2), (1, 4, 2), (1, 1, 1)])
def test_optimum_keeps_groups_inside_domains(ep: int, tp: int, pp: int) -> None:
    """Hosts of two domains in turn: the plan is the fastest of all placements, and its groups stay in their domain."""
    spec = replace(in_domains([0, 1, 0, 1]), link_matrices=make_cluster(4, 1.0).link_matrices)
    job = make_job(spec, MOE if ep > 1 else DENSE, global_batch_size=16, seq_length=2048)
    space = SearchSpace(
        num_gpus=8,
        micro_batch_size=(1,),
        virtual_pipeline=(1,),
        recompute=(None,),
        uneven_layers=False,
        context_parallel=(1,),
        tensor_parallel=(tp,),
        pipeline_parallel=(pp,),
        expert_parallel=(ep,),
    )
    plan = optimize(job, space, OptimizeParams(time_limit_s=60.0, workers=1))
    assert plan.certificate.status == "OPTIMAL"
    assert plan.estimate.iteration_time_s == pytest.approx(fastest_s(job, space), rel=2e-6)
    verify(job, plan)
    if pp == 2:
        of_rank = job.cluster.domain_of_node[plan.placement.node].reshape(2, 4)
        assert (of_rank == of_rank[:, :1]).all()
