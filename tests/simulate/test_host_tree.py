"""Branch and bound over hosts against the simulation of every placement on small clusters."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from factories import A100_40, A100_80, TINY, make_cluster, make_config, make_job, make_links
from levels import in_domains

from pipette_opt.base.types import FloatArray
from pipette_opt.parallel import ParallelConfig, tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.simulate.host_tree import HostTree
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance

pytestmark = pytest.mark.search

MOE = replace(TINY, name="moe", num_layers=4, num_experts=4, add_bias_linear=False, add_qkv_bias=False)
OVERLAP = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}

DENSE = [
    make_config(dp=8),
    make_config(tp=2, pp=2, dp=2),
    make_config(tp=4, dp=2),
    make_config(dp=8, zero_stage=3, use_distributed_optimizer=True),
    make_config(tp=2, dp=4, zero_stage=2, use_distributed_optimizer=True),
    make_config(dp=2, context_parallel_size=4),
    make_config(dp=8, zero_stage=3, use_distributed_optimizer=True, num_distributed_optimizer_instances=2),
    make_config(pp=2, dp=4, **OVERLAP),
    make_config(pp=4, dp=2, virtual_pipeline_model_parallel_size=2, **OVERLAP),
]
EXPERTS = [
    make_config(dp=8, num_layers=4, expert_model_parallel_size=4),
    make_config(pp=2, dp=4, num_layers=4, expert_model_parallel_size=4, **OVERLAP),
    make_config(dp=8, num_layers=4, expert_model_parallel_size=4, zero_stage=3, use_distributed_optimizer=True),
]


def jobs(seed: int) -> tuple[Instance, list[ParallelConfig]]:
    """Two configurations on four or five hosts of two GPUs, with links, latencies and GPUs drawn at random."""
    rng = np.random.default_rng(seed)
    hosts = int(rng.integers(4, 6))
    rates = rng.choice([6.0, 9.0, 20.0], (hosts, hosts)) if seed % 2 else rng.uniform(5.0, 25.0, (hosts, hosts))
    rates = np.maximum(rates, rates.T) if seed % 3 else rates
    if seed % 5 == 0:
        rates[0, 1] = np.nan
    options: dict[str, object] = {"intra_node_latency_s": 3e-6, "inter_node_latency_s": 1e-5}
    if seed % 4 == 1:
        options["known_latency_s"] = rng.choice([5e-6, 3e-4], (hosts, hosts))
    if seed % 4 == 2:
        options["link_matrices"] = (make_links(rates, hosts), make_links(1.6 * rates, hosts, 2))
    kinds = (A100_80, replace(A100_40, peak_flops={"bf16": 200e12})) if seed % 3 == 2 else (A100_80,)
    spec = make_cluster(hosts, rates, gpus=2, kinds=kinds, **options)
    model, configs = (TINY, DENSE) if seed % 2 else (MOE, EXPERTS)
    if seed % 7 == 3:
        spec = in_domains([0, 0, 1, 1, 2][:hosts])
    job = make_job(spec, model, global_batch_size=16, allreduce="hierarchical" if seed % 8 > 5 else "ring")
    job = replace(job, training=replace(job.training, cp_comm_type="a2a"))
    return job, [configs[index] for index in rng.permutation(len(configs))[:2]]


def problem(job: Instance, config: ParallelConfig) -> ProblemData:
    """The problem in integers; memory excludes the last host from the last row."""
    pp = config.pipeline_model_parallel_size
    need = np.full(pp, 1 << 20)
    need[-1] = 2 << 20
    capacity = np.full(job.cluster.num_nodes, 2 << 20)
    capacity[-1] = 1 << 20 if pp > 1 else 2 << 20
    return build_problem_data(job, [FittingCandidate(config=config, need_bytes=need)], capacity)


def every_time(job: Instance, data: ProblemData, candidate: CandidateData) -> FloatArray:
    """Seconds of every placement that has the memory, infinite over a missing link."""
    allowed, rows = data.allowed(candidate), np.arange(candidate.grid[0])[:, None, None]
    orders = permutations(range(data.num_nodes), candidate.num_cells)
    grids = [np.array(order).reshape(candidate.grid) for order in orders]
    placed = [tile_placement(candidate.config, candidate.tile, nodes) for nodes in grids if allowed[rows, nodes].all()]
    return estimate_many(job, [(candidate.config, placement) for placement in placed])


@pytest.mark.parametrize("seed", range(28))
def test_bounds_are_sound_and_end_at_the_least_time(seed: int) -> None:
    """While placements are split the bound never exceeds the least time; at the end it is the time of the best."""
    job, configs = jobs(seed)
    for config in configs:
        data = problem(job, config)
        for candidate in data.candidates:
            least_s = every_time(job, data, candidate).min(initial=np.inf)
            tree, clock, before_s = HostTree(job, data, candidate), Clock().after(60.0), 0.0
            while not tree.is_done:
                tree.go_on(np.inf, clock, 1)
                assert before_s <= tree.bound_s <= least_s * (1 + 1e-9)
                before_s = tree.bound_s
            assert tree.bound_s == pytest.approx(least_s, rel=1e-9)
            assert np.isinf(least_s) or (tree.best is not None and tree.best[1] == pytest.approx(least_s, rel=1e-9))


def test_what_cannot_beat_a_time_is_left_out() -> None:
    """With a time to beat, fewer placements are simulated, and the bound reaches that time."""
    job, _ = jobs(0)
    data = problem(job, EXPERTS[0])
    (candidate,) = data.candidates
    least_s, clock = every_time(job, data, candidate).min(), Clock().after(60.0)
    whole, less = HostTree(job, data, candidate), HostTree(job, data, candidate)
    whole.go_on(np.inf, clock, 10**6)
    less.go_on(least_s, clock, 10**6)
    assert less.bound_s == pytest.approx(least_s, rel=1e-9)
    assert less.simulated <= whole.simulated
    clock.stop.set()
    stopped = HostTree(job, data, candidate)
    stopped.go_on(np.inf, clock, 10**6)
    assert (stopped.bound_s, stopped.simulated, stopped.is_done) == (0.0, 0, False)


def test_interchangeable_hosts_are_tried_once() -> None:
    """On equal links, one host is tried for each of the five cells that no symmetry fixes, and one cell for it."""
    job = make_job(make_cluster(6, gpus=2), MOE, global_batch_size=12)
    data = problem(job, make_config(dp=12, num_layers=4, expert_model_parallel_size=4))
    (candidate,) = data.candidates
    tree = HostTree(job, data, candidate)
    tree.go_on(np.inf, Clock().after(60.0), 10**6)
    assert tree.best is not None
    assert tree.simulated <= 200  # of 720 placements
