"""What runs beside compute: exact over equal links, and over others by the rings of each row."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job, make_links

from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.compute import stage_compute
from pipette_opt.costs.placed import placed_times
from pipette_opt.parallel import ParallelConfig, host_tiles, tile_placement
from pipette_opt.parallel.layout import layout_of
from pipette_opt.problem.beside import least_ring_parts_s, pass_seconds
from pipette_opt.problem.build import FittingCandidate, build_problem_data, with_paths
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.specs import Instance

SPACE = SearchSpace(
    tensor_parallel=(1,),
    pipeline_parallel=(1, 2, 4),
    context_parallel=(1,),
    micro_batch_size=(1,),
    virtual_pipeline=(1, 4),
    recompute=(None,),
)

MOST = 24
"""Configurations that are looked at, at least."""


def job(values: np.ndarray, slowdown: float) -> Instance:
    """Eight hosts of two GPUs."""
    made = make_job(
        make_cluster(8, gpus=2, link_matrices=(make_links(values, 8),)), replace(LLAMA_8B, num_layers=8), 32, 1024
    )
    stack = replace(made.stack, overlap_slowdown=slowdown, collective_s=1e-4)
    slow_to_start = replace(made.cluster, inter_node_latency_s=5e-5)
    return replace(made, cluster=slow_to_start, stack=stack)


def beside_compute(made: Instance) -> list[ParallelConfig]:
    """Configurations with something beside compute."""
    found = [one for one in enumerate_candidates(made, SPACE) if one.overlap_grad_reduce]
    return found[:: max(1, len(found) // MOST)]


def with_layout(config: ParallelConfig, rng: np.random.Generator) -> ParallelConfig:
    """The same layers in chunks of random sizes, which may be empty."""
    shape = config.num_chunks, config.pipeline_model_parallel_size
    held = rng.multinomial(sum(config.layers_per_stage), np.full(shape[0] * shape[1], 1 / np.prod(shape))).reshape(
        shape
    )
    return replace(
        config,
        layers_per_stage=tuple(held.sum(axis=0).tolist()),
        pipeline_model_parallel_layout=layout_of(held.tolist()),
    )


def shares(made: Instance, configs: list[ParallelConfig], rng: np.random.Generator) -> list[float]:
    """The relaxation with the placement's own critical paths as a share of the simulated time, placements at random."""
    found = []
    for config in configs:
        fitting = FittingCandidate(config=config, need_bytes=np.zeros(config.pipeline_model_parallel_size, dtype=int))
        data = build_problem_data(made, [fitting], np.full(8, 1 << 40))
        for candidate in data.candidates:
            nodes = rng.permutation(8)[: candidate.num_cells].reshape(candidate.grid)
            times = placed_times(made, config, tile_placement(config, candidate.tile, nodes))
            counts = critical_counts(times, candidate.num_microbatches, data.p2p, deciding_starts=True)
            form = objective_ticks(data, with_paths(made, data, candidate, [counts]), nodes) * data.tick_s
            simulated = simulate_times(times, candidate.num_microbatches, data.p2p).iteration_time_s
            found.append(form / simulated)
    return found


@pytest.mark.parametrize(("gb_per_s", "slowdown"), [(1.0, 0.2), (20.0, 0.0)])
def test_equal_links_make_the_form_exact(gb_per_s: float, slowdown: float) -> None:
    """Every ring is a best ring then: waits, slowdown and queued reductions are counted to the end."""
    rng = np.random.default_rng(0)
    made = job(np.full((8, 8), gb_per_s), slowdown)
    configs = beside_compute(made)
    assert {one.num_chunks for one in configs} == {1, 4}
    assert {one.overlap_param_gather for one in configs} == {False, True}
    found = np.array(shares(made, configs, rng))
    assert (found <= 1 + 1e-9).all()
    assert (found >= 1 - 1e-6).all()


@pytest.mark.search
@pytest.mark.parametrize("slowest", [1.0, 0.5])
@pytest.mark.parametrize("seed", range(2))
def test_other_links_make_it_exact_too(seed: int, slowest: float) -> None:
    """Each row has the rings of its own hosts; two slow hosts are slower still to each other."""
    rng = np.random.default_rng(seed)
    speed = np.where(np.arange(8) < 2, slowest, 1.0)
    made = job(rng.uniform(1.0 / slowest**4, 25.0, (8, 8)) * speed * speed[:, None], 0.1)
    found = np.array(shares(made, beside_compute(made), rng))
    assert (found <= 1 + 1e-9).all()
    assert (found >= 1 - 1e-6).all()


def test_collectives_of_sharded_parameters_are_rings_where_reductions_are_hierarchical() -> None:
    """A pass with ZeRO 3 takes as long as simulated on equal links: the algorithm is of the last reduction only."""
    made = make_job(make_cluster(2, 400.0, gpus=4, nics_per_node=1), LLAMA_8B, 16, 1024, allreduce="hierarchical")
    config = make_config(dp=8, num_layers=32, use_distributed_optimizer=True, zero_stage=3)
    (tile,) = host_tiles(config, 4, made.launcher)
    times = placed_times(made, config, tile_placement(config, tile, np.array([0, 1]).reshape(tile.node_grid(config))))
    forward, backward = pass_seconds(made, config, stage_compute(made, config), tile)
    assert forward[0, 0] == pytest.approx(times.forward_s[0, :, 0])
    assert backward[0, 0] == pytest.approx(times.backward_s[0, :, 0])


def test_a_stage_without_experts_has_no_ring_of_experts() -> None:
    """At every rate that rings of rows with experts can have."""
    model = replace(LLAMA_8B, num_layers=4, num_experts=4, moe_ffn_hidden_size=1024, num_dense_layers=2)
    rates = np.random.default_rng(0).uniform(5.0, 25.0, (4, 4))
    made = make_job(make_cluster(4, rates, gpus=2), model, 8, 1024)
    config = make_config(pp=2, dp=4, num_layers=4, expert_model_parallel_size=2, use_distributed_optimizer=True)
    tile = next(each for each in host_tiles(config, 2, made.launcher) if each.stages == 1)
    dense, experts = least_ring_parts_s(made, config, tile)[0]
    assert len(dense) == len(experts) == 2
    assert not experts[:, 0].any()
    assert (experts[:, 1] > 0).all()


def test_nothing_beside_compute_adds_nothing() -> None:
    """Paths to where a reduction may start early are of no use then."""
    made = job(np.full((8, 8), 10.0), 0.1)
    configs = [replace(one, overlap_grad_reduce=False, overlap_param_gather=False) for one in beside_compute(made)]
    found = np.array(shares(made, list(dict.fromkeys(configs)), np.random.default_rng(1)))
    assert found == pytest.approx(1.0, abs=1e-6)


def test_parts_of_a_reduction_inside_a_host_are_exact() -> None:
    """One replica with two context ranks in a host: a chunk's part of one step also moves a part of the own data."""
    made = job(np.full((8, 8), 10.0), 0.1)
    config = make_config(
        pp=4,
        context_parallel_size=2,
        virtual_pipeline_model_parallel_size=2,
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
    )
    assert shares(made, [config], np.random.default_rng(1)) == pytest.approx([1.0], abs=1e-6)


@pytest.mark.parametrize("slowdown", [0.0, 0.3])
@pytest.mark.parametrize("is_equal", [True, False])
def test_unequal_chunks(is_equal: bool, slowdown: float) -> None:
    """Random layouts: below the simulator, and near it over equal links, where reductions may queue for one another."""
    rng = np.random.default_rng(0)
    made = job(np.full((8, 8), 2.0) if is_equal else rng.uniform(0.5, 3.0, (8, 8)), slowdown)
    configs = [with_layout(one, rng) for one in beside_compute(made) if one.num_chunks > 1]
    assert any(one.pipeline_model_parallel_layout for one in configs)
    found = shares(made, configs, rng)
    assert max(found) <= 1 + 1e-6
    assert min(found) > (0.95 if is_equal else 0.0)


def test_buckets_of_experts_are_reduced_during_the_last_backward() -> None:
    """With experts on one host, the relaxation is exact also where the first stage's reduction decides the end."""
    rng = np.random.default_rng(3)
    made = job(rng.uniform(0.2, 2.0, (8, 8)), 0.1)
    made = replace(made, model=replace(made.model, num_experts=4, moe_ffn_hidden_size=4096))
    config = make_config(
        dp=16,
        num_layers=8,
        expert_model_parallel_size=2,
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        ddp_bucket_size=10_000_000,
    )
    (found,) = shares(made, [config], rng)
    assert 1 - 1e-6 <= found <= 1 + 1e-9
