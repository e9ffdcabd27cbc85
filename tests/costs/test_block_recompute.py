"""Block recomputation: hand counts, both ends, monotony, the simulator, the integer forms and the bound by work."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from factories import A100_40, A100_80, TINY, make_cluster, make_config, make_job

from pipette_opt.costs.compute import layer_times_s, stage_compute
from pipette_opt.costs.layer_kinds import counted_layers
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.work import WorkBounds
from pipette_opt.parallel import ParallelConfig, host_tiles, tile_placement
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance, ModelSpec

TWELVE = replace(TINY, num_layers=12)

MIXTURE = replace(
    TWELVE,
    num_experts=8,
    moe_router_topk=2,
    moe_ffn_hidden_size=512,
    num_dense_layers=5,
    add_bias_linear=False,
    gated_linear_unit=True,
)


def job_of(model: ModelSpec, **options: object) -> Instance:
    """Four hosts of four GPUs of two kinds, links of unequal speed."""
    links = np.random.default_rng(3).uniform(5.0, 25.0, (4, 4))
    return make_job(make_cluster(4, links, gpus=4, kinds=(A100_80, A100_40), **options), model, 32, 2048)


def block(number: int, **options: object) -> ParallelConfig:
    """Four uneven stages; ``number`` of 0 for no recomputation."""
    one = make_config(tp=2, pp=4, dp=2, mbs=1, num_layers=12, sequence_parallel=True, **options)
    one = replace(one, layers_per_stage=(2, 4, 5, 1))
    if number == 0:
        return one
    return replace(one, recompute_granularity="full", recompute_method="block", recompute_num_layers=number)


def whole(**options: object) -> ParallelConfig:
    """The same with all layers recomputed."""
    return replace(block(0, **options), recompute_granularity="full")


def seconds_of(job: Instance, one: ParallelConfig) -> float:
    """The simulator's, on the hosts as they are listed."""
    packing = next(host_tiles(one, 4, job.launcher))
    grid = packing.node_grid(one)
    nodes = np.arange(int(np.prod(grid))).reshape(grid)
    return estimate(job, one, tile_placement(one, packing, nodes)).iteration_time_s


def test_a_stage_by_hand() -> None:
    """Of 2, 4, 5 and 1 layers 2, 3, 3 and 1 are recomputed, so that each costs one more forward."""
    job, one = make_job(make_cluster(4, gpus=4), TWELVE, 32, 2048), block(3)
    assert one.recomputed_per_chunk == ((2, 3, 3, 1),)
    forward, backward = layer_times_s(job, block(0), A100_80)
    plain, mixed = stage_compute(job, block(0)), stage_compute(job, one)
    assert mixed.forward_s == pytest.approx(plain.forward_s)
    slower = (mixed.backward_s - plain.backward_s)[0, 0] / np.array([2, 3, 3, 1])
    assert slower == pytest.approx(slower[0])
    one_layer = stage_compute(job, replace(block(0), layers_per_stage=(3, 4, 4, 1))).forward_s[0, 0, 0]
    assert slower[0] == pytest.approx(one_layer - plain.forward_s[0, 0, 0])
    assert slower[0] >= forward
    assert backward > 0


def test_chunks_recompute_their_own_first_layers() -> None:
    """With two chunks of 2, 1, 2 and 1 layers a number of 1 is one layer of each chunk."""
    one = replace(block(1), layers_per_stage=(4, 2, 4, 2), virtual_pipeline_model_parallel_size=2)
    assert one.recomputed_per_chunk == ((1, 1, 1, 1), (1, 1, 1, 1))
    two = replace(one, recompute_num_layers=2)
    assert two.recomputed_per_chunk == ((2, 1, 2, 1), (2, 1, 2, 1))


def test_layers_with_experts_are_recomputed_last() -> None:
    """Stage 1 has three layers without and one with experts, of which a number of 4 recomputes all, of 3 the former."""
    of_stage = {
        (one.kind.has_experts, one.is_recomputed): one.layers[0].tolist() for one in counted_layers(MIXTURE, block(3))
    }
    assert of_stage == {
        (False, False): [0, 0, 0, 0],
        (False, True): [2, 3, 0, 0],
        (True, False): [0, 1, 2, 0],
        (True, True): [0, 0, 3, 1],
    } or of_stage == {
        (False, True): [2, 3, 0, 0],
        (True, False): [0, 1, 2, 0],
        (True, True): [0, 0, 3, 1],
    }


@pytest.mark.parametrize("model", [TWELVE, MIXTURE], ids=["dense", "mixture"])
def test_from_nothing_to_everything(model: ModelSpec) -> None:
    """The simulated time grows with the number of layers, from that without recomputation to that of all layers."""
    job = job_of(model)
    times = [seconds_of(job, block(number)) for number in range(7)]
    assert all(before < after for before, after in pairwise(times[:6]))
    assert times[5] == times[6] == seconds_of(job, whole())
    assert WorkBounds(job)(block(5)) == pytest.approx(WorkBounds(job)(whole()), rel=1e-12)


@pytest.mark.parametrize("model", [TWELVE, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("number", [1, 6])
def test_bounds_and_forms_agree_with_the_simulator(model: ModelSpec, tp: int, number: int) -> None:
    """Relaxations and the bound by work never exceed the simulated time."""
    job = job_of(model)
    one = replace(block(number), tensor_model_parallel_size=tp, sequence_parallel=tp > 1, data_parallel_size=1)
    one = replace(one, pipeline_model_parallel_size=2, layers_per_stage=(5, 7), data_parallel_size=max(8 // tp, 1))
    nothing = FittingCandidate(config=one, need_bytes=np.zeros(2, dtype=np.int64))
    data = build_problem_data(job, [nothing], np.full(4, 1 << 40))
    assert data.candidates or (tp == 8 and model is MIXTURE)
    for candidate in data.candidates:
        grid = candidate.tile.node_grid(one)
        nodes = np.arange(int(np.prod(grid))).reshape(grid)
        simulated_s = estimate(job, one, tile_placement(one, candidate.tile, nodes)).iteration_time_s
        assert WorkBounds(job)(one) <= simulated_s
        assert 0.5 * simulated_s < objective_ticks(data, candidate, nodes) * data.tick_s <= simulated_s * (1 + 1e-9)


def test_costs_of_many_together_are_those_of_each() -> None:
    """A batch holds configurations with and without recomputation."""
    from pipette_opt.costs.placed import placed_batch

    for model in (TWELVE, MIXTURE):
        job, placed = job_of(model), []
        for number in (0, 2, 6):
            one = block(number)
            packing = next(host_tiles(one, 4, job.launcher))
            grid = packing.node_grid(one)
            placed.append((one, tile_placement(one, packing, np.arange(int(np.prod(grid))).reshape(grid))))
        batch = placed_batch(job, placed)
        for index, (one, placement) in enumerate(placed):
            alone = placed_times(job, one, placement)
            assert batch.backward_s[index] == pytest.approx(alone.backward_s, rel=1e-12)
            assert batch.tensor_backward_s[index] == pytest.approx(alone.tensor_backward_s, rel=1e-12)


def test_what_is_computed_again_counts_as_executed() -> None:
    """The hardware's share of FLOPs grows with recomputed layers, per second of compute."""
    job = make_job(make_cluster(4, gpus=4), TWELVE, 32, 2048)
    packing = next(host_tiles(block(0), 4, job.launcher))
    grid = packing.node_grid(block(0))
    placement = tile_placement(block(0), packing, np.arange(int(np.prod(grid))).reshape(grid))
    ratios = [(simulated := estimate(job, one, placement)).hfu / simulated.mfu for one in (block(0), block(3), whole())]
    assert (ratios[1] - ratios[0]) == pytest.approx(9 / 12 * (ratios[2] - ratios[0]))
