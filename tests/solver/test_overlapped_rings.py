"""The placement model knows rings beside compute: proven optima are those of all placements."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job, make_links

from pipette_opt.costs.placed import placed_times
from pipette_opt.parallel import ParallelConfig, tile_placement
from pipette_opt.problem import beside
from pipette_opt.problem.build import FittingCandidate, build_problem_data, with_paths
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.solve import solve
from pipette_opt.specs import Instance

BESIDE = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}

CONFIGS = (
    make_config(tp=2, pp=2, dp=2, num_layers=8, **BESIDE),
    make_config(tp=2, pp=2, dp=2, num_layers=8, virtual_pipeline_model_parallel_size=4, **BESIDE),
    make_config(tp=2, dp=4, num_layers=8, **BESIDE),
)


def job(rng: np.random.Generator, num_nodes: int) -> Instance:
    """Hosts of two GPUs, every link of its own speed and slow, so that rings decide."""
    links = make_links(rng.uniform(1.0, 12.0, (num_nodes, num_nodes)), num_nodes)
    made = make_job(make_cluster(num_nodes, gpus=2, link_matrices=(links,)), replace(LLAMA_8B, num_layers=8), 16, 1024)
    return replace(made, stack=replace(made.stack, overlap_slowdown=0.1))


def learned(made: Instance, config: ParallelConfig, rng: np.random.Generator, placements: int) -> ProblemData:
    """Return the relaxation of a configuration, with the critical paths of random placements."""
    fitting = FittingCandidate(config=config, need_bytes=np.zeros(config.pipeline_model_parallel_size, dtype=int))
    num_nodes = made.cluster.num_nodes
    data = build_problem_data(made, [fitting], np.full(num_nodes, 1 << 40))
    (candidate,) = data.candidates
    for _ in range(placements):
        nodes = rng.permutation(num_nodes)[: candidate.num_cells].reshape(candidate.grid)
        times = placed_times(made, config, tile_placement(config, candidate.tile, nodes))
        counts = critical_counts(times, candidate.num_microbatches, data.p2p, deciding_starts=True)
        candidate = with_paths(made, data, candidate, [counts])
    return replace(data, candidates=(candidate,))


@pytest.mark.search
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label())
def test_optimum_is_that_of_all_placements(config: ParallelConfig) -> None:
    """Five hosts, four cells: the proven optimum is the least relaxation, and below every simulated time."""
    rng = np.random.default_rng(7)
    made = job(rng, 5)
    data = learned(made, config, rng, 4)
    (candidate,) = data.candidates
    assert candidate.ring_level.max() > 1
    every = [np.array(order).reshape(candidate.grid) for order in itertools.permutations(range(5), 4)]
    relaxed = [objective_ticks(data, candidate, nodes) for nodes in every]
    for nodes, ticks in list(zip(every, relaxed, strict=True))[::5]:
        seconds = estimate(made, config, tile_placement(config, candidate.tile, nodes)).iteration_time_s
        assert ticks * data.tick_s <= seconds * (1 + 1e-9)
    result = solve(data, SolverParams(time_limit_s=20.0, workers=1))
    assert result.status == "OPTIMAL"
    assert result.lower_bound_ticks == min(relaxed)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label())
@pytest.mark.parametrize("most", [128, 3])
def test_few_levels_are_below_many(config: ParallelConfig, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relaxation is exact where its paths were found, and a lower bound if levels are rounded."""
    monkeypatch.setattr(beside, "MAX_LEVELS", most)
    beside.ring_levels.cache_clear()
    rng = np.random.default_rng(8)
    made = job(rng, 5)
    data = learned(made, config, rng, 1)
    (candidate,) = data.candidates
    nodes = np.random.default_rng(8)
    nodes.uniform(size=(5, 5))
    placed = nodes.permutation(5)[:4].reshape(candidate.grid)
    seconds = estimate(made, config, tile_placement(config, candidate.tile, placed)).iteration_time_s
    share = objective_ticks(data, candidate, placed) * data.tick_s / seconds
    assert share <= 1 + 1e-9
    assert (share > 1 - 2e-6) == (most == 128)
    beside.ring_levels.cache_clear()
