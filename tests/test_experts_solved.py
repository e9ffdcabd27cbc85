"""Models with experts from candidates to plans: integer forms and optimum against the simulation of every placement."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from factories import TINY, make_config, make_job, make_random_cluster
from learned import TICKS, learned

from pipette_opt.base.errors import InfeasibleError
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.placed import placed_times
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import HostTile, ParallelConfig, host_tiles, tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.build import FittingCandidate, build_problem_data, experts_stay_inside, links_decide
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.host_tree import HostTree
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.swap_search import improve_by_swaps
from pipette_opt.specs import Instance
from pipette_opt.verify import verify

pytestmark = pytest.mark.search

MOE = replace(TINY, name="moe", num_layers=4, num_experts=4, add_bias_linear=False, add_qkv_bias=False)


def given(seed: int, hosts: int = 4, **options: object) -> Instance:
    """Hosts of two GPUs on links from slow to faster."""
    rng = np.random.default_rng(seed)
    spec = make_random_cluster(rng, hosts, gpus=2, intra_node_latency_s=3e-6, inter_node_latency_s=1e-5)
    return make_job(spec, MOE, global_batch_size=16, **options)  # type: ignore[arg-type]


def orders(given: Instance, chosen: ParallelConfig, block: HostTile) -> Iterator[np.ndarray]:
    """Every way to put a configuration on hosts."""
    grid = block.node_grid(chosen)
    for nodes in permutations(range(given.cluster.num_nodes), int(np.prod(grid))):
        yield np.array(nodes).reshape(grid)


def integers(given: Instance, configs: list[ParallelConfig]) -> ProblemData:
    """The problem in integers, memory no matter."""
    fitting = [
        FittingCandidate(config=one, need_bytes=np.zeros(one.pipeline_model_parallel_size, dtype=np.int64))
        for one in configs
    ]
    capacity = np.full(given.cluster.num_nodes, 1 << 40)
    return build_problem_data(given, fitting, capacity)


CONFIGS = [
    make_config(dp=8, mbs=1, num_layers=4, expert_model_parallel_size=ep, use_distributed_optimizer=ep < 4)
    for ep in (1, 2, 4)
]
CONFIGS += [
    make_config(
        tp=2,
        pp=pp,
        dp=4 // pp,
        num_layers=4,
        sequence_parallel=True,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
        recompute_granularity="full",
    )
    for pp, ep, etp in ((1, 2, 2), (1, 4, 1), (2, 2, 1), (2, 2, 2), (2, 1, 2), (2, 4, 1))
]
CONFIGS += [
    make_config(
        pp=2,
        dp=4,
        num_layers=4,
        expert_model_parallel_size=ep,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        use_distributed_optimizer=True,
    )
    for ep in (1, 2, 4)
]


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_integer_forms_against_placed_times(number: int, dispatcher: str) -> None:
    """
    On every order of the hosts, relaxations are never above the simulator.

    Where blocks stay inside, and nothing overlaps, critical paths in ticks are the simulated time.
    """
    job = given(number)
    job = replace(job, training=replace(job.training, moe_token_dispatcher_type=dispatcher, expert_imbalance=1.3))
    chosen = CONFIGS[number]
    data = integers(job, [chosen])
    assert data.candidates
    for one in data.candidates:
        inside = (chosen.data_parallel_size // one.grid[1]) * chosen.tensor_model_parallel_size % (
            chosen.expert_model_parallel_size * chosen.expert_tensor_size
        ) == 0
        assert inside == links_decide(job, chosen, one.tile)
        for nodes in orders(job, chosen, one.tile):
            least = 1 - TICKS if inside and not chosen.overlap_grad_reduce else 0.0
            assert least < learned(job, data, one, nodes) <= 1 + 1e-9
            simulated = estimate(job, chosen, tile_placement(chosen, one.tile, nodes)).iteration_time_s
            assert objective_ticks(data, one, nodes) * data.tick_s <= simulated * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seed", "space"),
    [
        (0, {"pipeline_parallel": (1,), "tensor_parallel": (1,)}),
        (1, {"pipeline_parallel": (2,), "expert_parallel": (4,)}),
        (2, {"tensor_parallel": (1, 2), "pipeline_parallel": (2,)}),
        (3, {"expert_parallel": (2, 4), "expert_tensor_parallel": (1,), "pipeline_parallel": (1, 2)}),
    ],
)
def test_optimum_is_the_best_of_all_placements(seed: int, space: dict[str, tuple[int, ...]]) -> None:
    """Solve finds the plan that simulating every placement of every candidate finds; its bounds are below that."""
    job = given(seed)
    limits = SearchSpace(
        num_gpus=8,
        micro_batch_size=(1,),
        virtual_pipeline=(1,),
        recompute=(None,),
        uneven_layers=False,
        **space,  # type: ignore[arg-type]
    )
    plan = optimize(job, limits, OptimizeParams(time_limit_s=60.0, workers=1))
    placed = [
        (chosen, tile_placement(chosen, candidate.tile, nodes))
        for chosen in enumerate_candidates(job, limits)
        for candidate in integers(job, [chosen]).candidates
        for nodes in orders(job, chosen, candidate.tile)
    ]
    best = float(estimate_many(job, placed).min())
    assert plan.estimate.iteration_time_s == pytest.approx(best, rel=2e-6)
    assert plan.certificate.status == "OPTIMAL"
    assert plan.certificate.lower_bound_s <= best * (1 + 1e-9)
    assert plan.certificate.objective_s == plan.estimate.iteration_time_s
    assert "expert-parallel groups" in plan.certificate.scope
    verify(job, plan)


def test_every_block_of_every_order_can_be_numbered() -> None:
    """No candidate has a packing that megatron-core's expert ranks do not allow, context parallelism included."""
    job = given(0)
    limits = SearchSpace(num_gpus=8, context_parallel=(1, 2), recompute=(None,), uneven_layers=False)
    candidates = enumerate_candidates(job, limits)
    kinds = {(one.context_parallel_size, one.expert_model_parallel_size, one.expert_tensor_size) for one in candidates}
    assert {(1, 1, 1), (1, 4, 1), (1, 4, 2), (2, 2, 1), (2, 1, 1)} <= kinds
    for chosen in candidates:
        for block in host_tiles(chosen, 2, "slurm"):
            nodes = np.arange(4)[: int(np.prod(block.node_grid(chosen)))].reshape(block.node_grid(chosen))
            assert np.isfinite(placed_times(job, chosen, tile_placement(chosen, block, nodes)).reduction_s).all()


def test_sizes_that_do_not_divide_are_named() -> None:
    """Six experts on eight ranks."""
    job = replace(given(0), model=replace(MOE, num_experts=6))
    with pytest.raises(InfeasibleError, match="num_experts=6 is no multiple of expert_model_parallel_size=4"):
        enumerate_candidates(job, SearchSpace(num_gpus=8, expert_parallel=(4,), micro_batch_size=(1,)))


def test_exchanges_end_where_none_helps() -> None:
    """With six hosts, one unused: no exchange of two makes the last placement faster, and it is among the best."""
    job = given(5, hosts=6)
    chosen = make_config(dp=10, num_layers=4, expert_model_parallel_size=5)
    job = replace(job, model=replace(MOE, num_experts=5), training=replace(job.training, global_batch_size=10))
    data = integers(job, [chosen])
    candidate = data.candidates[0]
    assert not experts_stay_inside(job, chosen, candidate.tile)
    clock = Clock().after(60.0)
    tree = HostTree(job, data, candidate)
    tree.go_on(np.inf, clock, 10**6)
    start = np.arange(5).reshape(candidate.grid)

    def seconds(nodes: np.ndarray) -> float:
        return estimate(job, chosen, tile_placement(chosen, candidate.tile, nodes)).iteration_time_s

    nodes = improve_by_swaps(job, data, candidate, start, clock)
    assert tree.bound_s <= seconds(nodes) < seconds(start)
    assert seconds(nodes) <= tree.bound_s * 1.02
    seats = [*nodes.ravel().tolist(), *set(range(6)) - set(nodes.ravel().tolist())]
    for one, other in combinations(range(6), 2):
        after = seats.copy()
        after[one], after[other] = seats[other], seats[one]
        assert seconds(np.array(after[:5]).reshape(nodes.shape)) >= seconds(nodes) * (1 - 1e-9)


def test_hosts_without_room_are_never_taken() -> None:
    """Every placement that is looked at has the memory; with no host large enough there is none."""
    job = given(6)
    chosen = make_config(pp=2, dp=4, num_layers=4, expert_model_parallel_size=4)
    fitting = FittingCandidate(config=chosen, need_bytes=np.array([2 << 20, 4 << 20]))
    capacity = np.array([2 << 20, 4 << 20, 2 << 20, 4 << 20])
    data = build_problem_data(job, [fitting], capacity)
    candidate = next(one for one in data.candidates if one.tile.stages == 1)
    clock = Clock().after(60.0)
    tree = HostTree(job, data, candidate)
    tree.go_on(np.inf, clock, 10**6)
    assert tree.best is not None
    assert set(tree.best[0][1].ravel().tolist()) == {1, 3}
    nodes = improve_by_swaps(job, data, candidate, np.array([0, 2, 1, 3]).reshape(candidate.grid), clock)
    assert set(nodes[1].ravel().tolist()) == {1, 3}
    tight = replace(data, capacity_mib=np.array([2, 2, 2, 4]))
    none = HostTree(job, tight, candidate)
    none.go_on(np.inf, clock, 10**6)
    assert (none.best, none.bound_s, none.is_done) == (None, np.inf, True)
