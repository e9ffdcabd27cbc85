"""Times of a family are linear in its layers, and its room is what the memory filter allows."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.candidates import SearchSpace, overlap_choices
from pipette_opt.costs.compute import stage_compute
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.filter import usable_bytes
from pipette_opt.parallel import tile_placement
from pipette_opt.prepare import load_predictor
from pipette_opt.problem.beside import chunk_seconds
from pipette_opt.problem.family_times import layer_families, with_rings
from pipette_opt.problem.path_counts import plain_counts
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.longest_paths import critical_counts


@pytest.mark.parametrize("chunks", [1, 2])
def test_stage_times_are_linear_in_layers(chunks: int) -> None:
    """Of any split, on both kinds of GPU."""
    job = make_job(make_cluster(4, kinds=(A100_80, A100_40)), LLAMA_8B, 32, 4096)
    vpp = chunks if chunks > 1 else None
    base = make_config(
        tensor_model_parallel_size=4,
        pipeline_model_parallel_size=4,
        data_parallel_size=2,
        layers_per_stage=(chunks,) * 4,
        virtual_pipeline_model_parallel_size=vpp,
    )
    for family in layer_families(job, [base], load_predictor(0.01, job), 0.01):
        split = family.with_units([units // chunks for units in (10, 2, 16, 4)])
        seconds = np.stack(chunk_seconds(job, split, stage_compute(job, split), family.tile))
        layers = np.array(split.layers_per_chunk)
        linear = family.fixed_s + layers[None, None] * family.layer_s[:, :, None, None]
        np.testing.assert_allclose(seconds, linear, rtol=1e-9)


@pytest.mark.search
@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize("slowdown", [0.0, 0.2])
def test_paths_with_what_runs_beside_are_below_the_simulator(chunks: int, slowdown: float) -> None:
    """Over slow links, at random splits and placements, with each choice of what is sent beside compute."""
    rng = np.random.default_rng(chunks)
    job = make_job(make_cluster(4, 3.0, kinds=(A100_80, A100_40)), LLAMA_8B, 32, 4096)
    job = replace(job, stack=replace(job.stack, overlap_slowdown=slowdown))
    base = make_config(
        tensor_model_parallel_size=4,
        pipeline_model_parallel_size=4,
        data_parallel_size=2,
        layers_per_stage=(chunks,) * 4,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        sequence_parallel=True,
        use_distributed_optimizer=True,
    )
    near = []
    plain = layer_families(job, [base], load_predictor(0.01, job), 0.01)
    for family in (with_rings(job, one, choice) for one in plain for choice in overlap_choices(SearchSpace(), base)):
        for _ in range(4):
            cuts = np.sort(rng.choice(np.arange(1, family.num_units), 3, replace=False))
            units = np.diff([0, *cuts, family.num_units])
            nodes = rng.permutation(4)[: np.prod(family.grid)].reshape(family.grid)
            split = family.with_units(units.tolist())
            placement = tile_placement(split, family.tile, nodes)
            found = estimate(job, split, placement).iteration_time_s
            critical = critical_counts(placed_times(job, split, placement), family.num_microbatches, job.p2p)
            for counts in (plain_counts(*family.schedule), critical):
                fixed, unit = family.reduced_path_s(counts)
                if not split.overlap_grad_reduce:
                    fixed, unit = fixed[counts.parts == 1], unit[counts.parts == 1]
                work = (fixed + unit * units).min(axis=1).sum(axis=1).max() + family.optimizer_s
                work += (family.fixed_step_s + family.step_s * units).max()
                assert work <= found * (1 + 1e-9)
            near.append(work / found)
    assert max(near) > 0.9


def test_room_is_that_of_the_memory_predictor() -> None:
    """The most layers that fit do, and one more does not."""
    job = make_job(make_cluster(4, kinds=(A100_80, A100_40)), LLAMA_8B, 64, 4096)
    base = make_config(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=4,
        data_parallel_size=4,
        micro_batch_size=2,
        layers_per_stage=(1,) * 4,
    )
    predictor = load_predictor(0.01, job)
    (family, *_) = layer_families(job, [base], predictor, 0.01)
    room = usable_bytes(job.cluster, predictor)[:2]
    assert (family.most_units < 32).any()
    for kind in range(2):
        for stage in range(4):
            for units in {int(family.most_units[kind, stage]), int(family.most_units[kind, stage]) + 1} & set(
                range(1, 33)
            ):
                held = replace(base, layers_per_stage=tuple(units if s == stage else 1 for s in range(4)))
                (found,) = predictor.predict(
                    job.model,
                    job.training,
                    [held],
                    gpus_per_node=8,
                    intra_node_bytes_per_s=job.cluster.intra_node_bytes_per_s,
                    max_oom_risk=0.01,
                )
                fits = bool(found.upper_bytes[stage] <= room[kind])
                assert fits == (units <= family.most_units[kind, stage])


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_work_of_any_split_is_below_that_of_each(chunks: int) -> None:
    """Compared with splits dealt at random."""
    rng, job = np.random.default_rng(5), make_job(make_cluster(2), LLAMA_8B, 32, 4096)
    work = WorkBounds(job)
    for _ in range(40):
        pp = int(rng.choice([2, 4, 8]))
        cuts = np.sort(rng.choice(np.arange(1, 32 // chunks), pp - 1, replace=False))
        layers = tuple(chunks * int(one) for one in np.diff(np.concatenate([[0], cuts, [32 // chunks]])))
        split = make_config(
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
            tensor_model_parallel_size=1,
            pipeline_model_parallel_size=pp,
            data_parallel_size=16 // pp,
            layers_per_stage=layers,
        )
        assert work.of_any_split(split) <= work(split) * (1 + 1e-9)
