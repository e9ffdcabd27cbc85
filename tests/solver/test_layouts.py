"""Unequal chunks near a plan: against every layout, and through to a verified plan."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, A100_80, LLAMA_8B, TINY, make_cluster, make_config, make_job

from pipette_opt.base.units import GIB
from pipette_opt.candidates import SearchSpace
from pipette_opt.memory.filter import keep_fitting
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import ParallelConfig, host_tiles, tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import load_predictor
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.many import estimate_many
from pipette_opt.solver.layouts import _promising, near_layouts, with_layers
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import GpuSpec, Instance
from pipette_opt.verify import verify

pytestmark = pytest.mark.search

SLOW = GpuSpec(
    name="slow-32gb",
    memory_bytes=32 * GIB,
    peak_flops={"bf16": 125e12, "fp16": 125e12, "fp32": 15e12},
    memory_bytes_per_s=0.9e12,
)


def job_of(num_layers: int, kinds: tuple[GpuSpec, ...] = (A100_80, SLOW), **model: object) -> Instance:
    """Two hosts of two GPUs."""
    spec = replace(LLAMA_8B, num_layers=num_layers, **model)  # type: ignore[arg-type]
    return make_job(make_cluster(2, 10.0, gpus=2, kinds=kinds), spec, 8, 4096)


def even(num_layers: int, chunks: int) -> ParallelConfig:
    """Two stages, as even as can be."""
    half = num_layers // 2
    return make_config(
        tp=2,
        pp=2,
        layers_per_stage=(num_layers - half, half),
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        sequence_parallel=True,
    )


def first_plan(job: Instance, chosen: ParallelConfig) -> FirstPlan:
    """On the hosts as listed."""
    (block,) = host_tiles(chosen, 2, job.launcher)
    nodes = np.arange(2).reshape(block.node_grid(chosen))
    seconds = estimate(job, chosen, tile_placement(chosen, block, nodes)).iteration_time_s
    return FirstPlan(config=chosen, tile=block, nodes=nodes, seconds=seconds)


def every(chosen: ParallelConfig, chunks: int) -> list[ParallelConfig]:
    """All layouts of two stages of so many chunks."""
    parts, total = 2 * chunks, sum(chosen.layers_per_stage)
    start = replace(chosen, virtual_pipeline_model_parallel_size=None)
    found = []
    for bars in itertools.combinations(range(total + parts - 1), parts - 1):
        held = (np.diff([-1, *bars, total + parts - 1]) - 1).reshape(chunks, 2)
        if (held.sum(axis=0) > 0).all():
            layers = tuple(held.sum(axis=0).tolist())
            one = replace(start, layers_per_stage=layers)
            found.append(
                with_layers(one, held)
                if chunks == 1
                else replace(
                    one,
                    virtual_pipeline_model_parallel_size=chunks,
                    pipeline_model_parallel_layout="E" + "|".join("t" * n for n in held.ravel()) + "L",
                )
            )
    return found


@pytest.mark.parametrize(
    "model", [{}, {"num_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 4096, "num_dense_layers": 1}]
)
@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("own", [1, 2])
def test_the_search_finds_the_best_layout(own: int, chunks: int, model: dict[str, int]) -> None:
    """Of all layouts with room, from a plan without chunks and from one with."""
    layers = 8 if chunks == 2 else 6
    job = job_of(layers, **model)
    first, predictor = first_plan(job, even(layers, own)), load_predictor(0.01, job)
    space = SearchSpace(virtual_pipeline=(1, chunks))
    found = near_layouts(job, space, first, predictor, 0.01, Clock())
    configs = [one.config for one in keep_fitting(job, every(first.config, chunks), predictor).fitting]
    times = estimate_many(job, [(one, tile_placement(one, first.tile, first.nodes)) for one in configs])
    best = float(times.min())
    assert best < first.seconds
    if found:  # equal chunks may be the best
        assert found[0].seconds == pytest.approx(best, rel=2e-4)
        assert found[0].config.num_chunks == chunks
    else:
        assert configs[int(times.argmin())].pipeline_model_parallel_layout is None


def test_memory_binds() -> None:
    """The slower of two kinds has little room: no layout gives it more than it holds."""
    small = replace(A100_40, name="a100-24gb", memory_bytes=24 * GIB)
    job = job_of(16, (A100_80, small))
    chosen = replace(even(16, 1), layers_per_stage=(12, 4))
    predictor = load_predictor(0.01, job)
    assert keep_fitting(job, [chosen], predictor).fitting
    assert keep_fitting(job, [even(16, 1)], predictor).rejected
    found = near_layouts(job, SearchSpace(), first_plan(job, chosen), predictor, 0.01, Clock())
    assert found
    assert len(keep_fitting(job, [one.config for one in found], predictor).fitting) == len(found)
    assert all(one.config.layers_per_stage[1] < 8 for one in found)


def test_nothing_is_moved_without_time_or_a_pipeline() -> None:
    """Then there is no plan but the given one."""
    job = make_job(make_cluster(2, gpus=2), TINY, 8, 1024)
    predictor = load_predictor(0.01, job)
    first = first_plan(job, even(8, 2))
    assert near_layouts(job, SearchSpace(), first, predictor, 0.01, Clock(ends_s=0.0)) == []
    alone = make_config(tp=2, dp=2, layers_per_stage=(8,))
    (block, *_) = host_tiles(alone, 2, job.launcher)
    plan = FirstPlan(config=alone, tile=block, nodes=np.arange(2).reshape(block.node_grid(alone)), seconds=1.0)
    assert near_layouts(job, SearchSpace(), plan, predictor, 0.01, Clock()) == []


def test_a_plan_with_a_layout_is_searched_and_verified() -> None:
    """Faster than the best plan with equal chunks; its scope says how many layouts there were."""
    job = job_of(7)
    space = SearchSpace(
        tensor_parallel=(2,),
        pipeline_parallel=(2,),
        context_parallel=(1,),
        micro_batch_size=(1,),
        virtual_pipeline=(1, 2),
        recompute=(None,),
        overlap_grad_reduce=False,
    )
    plan = optimize(job, space, OptimizeParams(time_limit_s=30, workers=2))
    verify(job, plan)
    first = first_plan(job, even(7, 1))
    of_all = [one for chunks in (1, 2) for one in every(first.config, chunks)]
    fitting = [one.config for one in keep_fitting(job, of_all, load_predictor(0.01, job)).fitting]
    orders = [np.array(order).reshape(first.nodes.shape) for order in ((0, 1), (1, 0))]
    times = estimate_many(job, [(one, tile_placement(one, first.tile, order)) for one in fitting for order in orders])
    equal = [not one.pipeline_model_parallel_layout for one in fitting for _ in orders]
    assert plan.config.pipeline_model_parallel_layout is not None
    assert plan.estimate.iteration_time_s < times[equal].min()
    assert plan.estimate.iteration_time_s == pytest.approx(times.min(), rel=1e-3)
    assert plan.certificate.lower_bound_s <= plan.estimate.iteration_time_s
    assert any(one.startswith("unequal model chunks of one stage but for") for one in plan.certificate.not_searched)


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("overlap", [False, True])
def test_no_move_that_helps_is_sorted_out(overlap: bool, chunks: int) -> None:
    """Each move after which the simulator finds the plan faster is among the promising ones; most others are not."""
    rng, total, kept, moves = np.random.default_rng(chunks), 12, 0, 0
    job = job_of(total)
    start = replace(even(total, chunks), overlap_grad_reduce=overlap, use_distributed_optimizer=overlap)
    for _ in range(6):
        cuts = np.sort(rng.choice(np.arange(1, total), 2 * chunks - 1, replace=False))
        held = np.diff([0, *cuts, total]).reshape(chunks, 2)
        plan = first_plan(job, with_layers(start, held))
        found = {move for some in _promising(job, plan, held, plan.seconds) for move in some}
        for source, target in itertools.permutations(range(held.size), 2):
            after = held.copy()
            after.flat[source] -= 1
            after.flat[target] += 1
            if (after.sum(axis=0) > 0).all():
                moves += 1
                if first_plan(job, with_layers(start, after)).seconds < plan.seconds:
                    assert (source, target) in found
        kept += len(found)
    assert 0 < kept < 0.75 * moves
