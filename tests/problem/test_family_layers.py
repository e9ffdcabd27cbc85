"""Families of models with several kinds of layers: every split is in one, and no bound is above a split."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, A100_80, TINY, make_cluster, make_config, make_job

from pipette_opt.candidates import SearchSpace, overlap_choices
from pipette_opt.costs.compute import optimizer_stages_s, stage_compute
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.filter import usable_bytes
from pipette_opt.parallel import ParallelConfig, tile_placement
from pipette_opt.prepare import load_predictor
from pipette_opt.problem.beside import chunk_seconds, least_rings_s
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.family_paths import family_paths
from pipette_opt.problem.family_times import layer_families, with_rings
from pipette_opt.problem.layer_patterns import beyond, least_splits, num_closed
from pipette_opt.problem.path_counts import plain_counts
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.specs import Instance, ModelSpec

NARROW = {"moe_ffn_hidden_size": 512, "moe_shared_expert_intermediate_size": 1024}
"""Experts far smaller than the feed-forward network of a layer without: such a layer is the slower one."""

WIDE = {"moe_ffn_hidden_size": 8192}
"""And far larger: the faster one."""


def model(dense: int, num_layers: int = 12, **experts: int) -> ModelSpec:
    """A model with eight experts in all layers but the first ``dense``."""
    known = {"num_experts": 8, "moe_router_topk": 2, "num_dense_layers": dense} | (experts or WIDE)
    return replace(TINY, num_layers=num_layers, add_bias_linear=False, add_qkv_bias=False, **known)  # type: ignore[arg-type]


def job_of(spec: ModelSpec) -> Instance:
    """Four hosts of two kinds of GPU."""
    return make_job(make_cluster(4, 5.0, gpus=2, kinds=(A100_80, A100_40)), spec, 16, 2048)


def base(pp: int, chunks: int, **options: object) -> ParallelConfig:
    """One configuration; what it leaves of eight GPUs is data parallel."""
    return make_config(
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=pp,
        data_parallel_size=8 // pp,
        layers_per_stage=(chunks,) * pp,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        **{"expert_model_parallel_size": 2 if pp < 8 else 1, **options},
    )


def splits(num_layers: int, pp: int, chunks: int) -> list[tuple[int, ...]]:
    """Every split into stages of whole units."""
    units = num_layers // chunks
    cuts = itertools.combinations(range(1, units), pp - 1)
    return [tuple(chunks * int(n) for n in np.diff([0, *cut, units])) for cut in cuts]


def family_of(families: list[LayerFamily], layers: tuple[int, ...]) -> tuple[LayerFamily, list[int]]:
    """The family that has a split with its stages of first layers as they are, and its units."""
    found = [(one, units) for one in families if (units := one.units_of(layers)) is not None]
    return next((one, units) for one, units in found if not (np.array(units) > one.most_units.max(axis=0)).any())


@pytest.mark.parametrize(("pp", "chunks"), [(2, 1), (3, 1), (4, 1), (2, 2), (4, 2), (4, 3)])
@pytest.mark.parametrize("dense", [0, 1, 2, 3, 5])
def test_every_split_is_in_one_way_to_hold_the_first_layers(pp: int, chunks: int, dense: int) -> None:
    """Stages of first layers alone hold just theirs, the next one its own or more, and no split is in two ways."""
    spec = model(dense) if dense else replace(model(1), num_dense_layers=0)
    ways = least_splits(
        spec,
        base(pp, chunks)
        if pp != 3
        else replace(base(4, 1), pipeline_model_parallel_size=3, layers_per_stage=(1, 1, 1)),
    )
    for layers in splits(12, pp, chunks):
        within = []
        for way in ways:
            least, closed = np.array(way.layers_per_stage), num_closed(spec, way)
            within.append(bool((least <= layers).all() and (least[:closed] == layers[:closed]).all()))
        assert sum(within) == 1


@pytest.mark.search
@pytest.mark.parametrize("experts", [NARROW, WIDE])
@pytest.mark.parametrize(("pp", "chunks"), [(2, 1), (4, 1), (2, 2), (4, 3)])
@pytest.mark.parametrize("dense", [1, 5])
def test_stage_times_are_those_of_the_simulator(dense: int, pp: int, chunks: int, experts: dict[str, int]) -> None:
    """Of every split, on both kinds of GPU, with no recomputation; and never above with recomputed first layers."""
    job = job_of(model(dense, **experts))
    for options in ({}, {"recompute_granularity": "full", "recompute_method": "block"}):
        families = layer_families(job, [base(pp, chunks, **options)], load_predictor(1.0, job), 1.0)
        families = [one for one in families if one.tile == families[0].tile]
        for layers in splits(12, pp, chunks)[:: 1 if pp == 2 else 11]:
            family, units = family_of(families, layers)
            for again in range(1, max(layers) // chunks + 1) if options else [1]:
                split = family.with_units(units, again)
                assert split.layers_per_stage == layers
                seconds = np.stack(chunk_seconds(job, split, stage_compute(job, split), family.tile))
                linear = family.fixed_s + np.array(units) * family.layer_s[:, :, None, None]
                linear[1] += np.minimum(np.array(units), again)[None, None] * family.recompute_s[:, None, None]
                linear[1] -= family.recompute_s[:, None, None]
                assert (linear <= seconds * (1 + 1e-9)).all()
                if dense == 1 or not options:
                    np.testing.assert_allclose(seconds, linear, rtol=1e-9)


@pytest.mark.search
@pytest.mark.parametrize("layers", [(1, 3), (2, 2), (3, 1)])
def test_block_recomputation_leaves_prediction_layers_out(layers: tuple[int, ...]) -> None:
    """The last stage's backward has no forward of multi-token-prediction layers, as in the simulator."""
    job = job_of(replace(TINY, num_layers=4, mtp_num_layers=2, position_embedding_type="rope"))
    config = base(2, 1, expert_model_parallel_size=1, recompute_granularity="full", recompute_method="block")
    family, units = family_of(layer_families(job, [config], load_predictor(1.0, job), 1.0), layers)
    chosen = family.with_units(units)
    whole = chunk_seconds(job, chosen, stage_compute(job, chosen), family.tile)
    for way, seconds in enumerate(whole):
        found = family.fixed_s[way][:, 0] + np.array(units) * family.layer_s[way][:, None]
        assert found == pytest.approx(seconds[:, 0])


@pytest.mark.parametrize("experts", [NARROW, WIDE])
@pytest.mark.parametrize(("pp", "chunks"), [(2, 1), (4, 1), (2, 2), (4, 3)])
@pytest.mark.parametrize("dense", [1, 3, 5])
def test_paths_are_below_the_simulator(dense: int, pp: int, chunks: int, experts: dict[str, int]) -> None:
    """At random splits and placements, with each choice of what is sent beside compute."""
    rng = np.random.default_rng([dense, pp, chunks])
    job, near = job_of(model(dense, **experts)), [0.0]
    one = base(pp, chunks, use_distributed_optimizer=True)
    plain = layer_families(job, [one], load_predictor(1.0, job), 1.0)
    for choice in overlap_choices(SearchSpace(), one):
        families = []
        for family in plain:
            (own,) = (
                c
                for c in overlap_choices(SearchSpace(), family.config)
                if c.overlap_grad_reduce == choice.overlap_grad_reduce
                and c.overlap_param_gather == choice.overlap_param_gather
            )
            families.append(with_rings(job, family, own))
        every = splits(12, pp, chunks)
        for layers in (every[int(place)] for place in rng.integers(len(every), size=3)):
            for block in {family.tile for family in families}:
                family, units = family_of([one for one in families if one.tile == block], layers)
                nodes = rng.permutation(4)[: np.prod(family.grid)].reshape(family.grid)
                split = family.with_units(units)
                placement = tile_placement(split, family.tile, nodes)
                found = estimate(job, split, placement).iteration_time_s
                critical = critical_counts(placed_times(job, split, placement), family.num_microbatches, job.p2p)
                for counts in (plain_counts(*family.schedule), critical):
                    paths = family_paths(family, counts)
                    work = (paths.fixed_s + paths.unit_s * np.array(units)).min(axis=1).sum(axis=1).max()
                    step = (family.fixed_step_s + family.step_s * np.array(units)).max()
                    assert work + family.optimizer_s + step <= found * (1 + 1e-9)
                    assert family.least_optimizer_s <= family.optimizer_s + step * (1 + 1e-9)
                    near.append((work + family.optimizer_s + step) / found)
    assert max(near) > 0.8


PATTERNS = ((0, 1) * 6, (1, 0, 0) * 4, (0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1, 0), (0, 0, *(0, 1) * 5))
"""Layers with experts: every second one, every third, no pattern at all, every second one after the first two."""


@pytest.mark.search
@pytest.mark.parametrize("experts", [NARROW, WIDE])
@pytest.mark.parametrize(("pp", "chunks"), [(2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_split_of_a_pattern_is_below_its_family(
    pattern: tuple[int, ...], pp: int, chunks: int, experts: dict[str, int]
) -> None:
    """Times of stages, the optimizer's step, and rings; of some split a stage is on the line."""
    job = job_of(replace(model(0, **experts), moe_layer_freq=pattern))
    for options in ({}, {"recompute_granularity": "full", "recompute_method": "block"}):
        one = base(pp, chunks, use_distributed_optimizer=True, **options)
        plain = layer_families(job, [one], load_predictor(1.0, job), 1.0)
        families = [with_rings(job, family, family.config) for family in plain if family.tile == plain[0].tile]
        nearest = np.inf
        for layers in splits(12, pp, chunks)[:: 1 if pp == 2 else 11]:
            family, units = family_of(families, layers)
            for again in range(1, max(layers) // chunks + 1) if options else [1]:
                split = family.with_units(units, again)
                seconds = np.stack(chunk_seconds(job, split, stage_compute(job, split), family.tile))
                linear = family.fixed_s + np.array(units) * family.layer_s[:, :, None, None]
                linear[1] += (np.minimum(np.array(units), again) - 1)[None, None] * family.recompute_s[:, None, None]
                assert (linear <= seconds * (1 + 1e-9)).all()
                nearest = min(nearest, float((seconds - linear).min()) / float(seconds.max()))
                step = family.fixed_step_s + family.step_s * np.array(units)
                assert (step <= optimizer_stages_s(job, split).max(axis=0) * (1 + 1e-9)).all()
                rings = least_rings_s(job, split, family.tile)
                assert rings is not None
                line = family.fixed_reduction_s + family.reduction_s * np.array(units)
                assert (line <= rings[0].max(axis=0) * (1 + 1e-9)).all()
        assert nearest < (1e-6 if chunks == 1 else 0.02) or bool(options) or pp > 2


def test_room_for_a_pattern_is_no_less_than_that_of_any_split() -> None:
    """Every split whose stages fit is within the room of its family."""
    wide = {"hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 32, "kv_channels": 128}
    job = job_of(replace(model(0), moe_layer_freq=PATTERNS[0], **wide))  # type: ignore[arg-type]
    predictor = load_predictor(0.01, job)
    room = usable_bytes(job.cluster, predictor)[:2]
    (family, *_) = layer_families(job, [base(4, 1)], predictor, 0.01)
    assert (family.most_units < family.num_units - 3).any()
    every = splits(12, 4, 1)
    for layers, found in zip(
        every,
        predictor.predict(
            job.model,
            job.training,
            [family.with_units(layers) for layers in every],
            gpus_per_node=2,
            intra_node_bytes_per_s=job.cluster.intra_node_bytes_per_s,
            max_oom_risk=0.01,
        ),
        strict=True,
    ):
        for kind in range(2):
            assert (np.array(layers) <= family.most_units[kind])[found.upper_bytes <= room[kind]].all()


@pytest.mark.parametrize("dense", [1, 2])
def test_room_is_that_of_the_memory_predictor(dense: int) -> None:
    """The most layers that fit, with the first layers where they are; no family where all stages have too little."""
    spec = replace(
        model(dense, num_layers=40), hidden_size=4096, num_attention_heads=32, num_query_groups=32, kv_channels=128
    )
    job = job_of(spec)
    predictor = load_predictor(0.01, job)
    room = usable_bytes(job.cluster, predictor)[:2]
    families = layer_families(job, [base(4, 1)], predictor, 0.01)
    found = {one.config: one for one in families if one.tile == families[0].tile}
    ways = least_splits(spec, base(4, 1))
    for way in ways:
        closed, number = num_closed(spec, way), 40 - sum(way.layers_per_stage) + 4
        most = np.zeros((2, 4), dtype=np.int64)
        sized = [beyond(way, (1,) * closed + (units,) * (4 - closed)) for units in range(1, number + 1)]
        need = predictor.predict(
            spec,
            job.training,
            sized,
            gpus_per_node=2,
            intra_node_bytes_per_s=job.cluster.intra_node_bytes_per_s,
            max_oom_risk=0.01,
        )
        for kind, stage in itertools.product(range(2), range(4)):
            most[kind, stage] = sum(int(one.upper_bytes[stage] <= room[kind]) for one in need)
        most[:, :closed] = np.minimum(most[:, :closed], 1)
        assert (way in found) == (most.max(axis=0).min() >= 1 and most.max(axis=0).sum() >= number)
        if way in found:
            assert (found[way].most_units == most).all()
            assert (most[:, closed:] < number).any()
    assert len(ways) == 2 ** (dense - 1)
    assert len(found) == 1


@pytest.mark.search
@pytest.mark.parametrize("experts", [NARROW, WIDE])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_work_of_any_split_is_below_that_of_each(chunks: int, experts: dict[str, int]) -> None:
    """Whether the first layers are faster or slower than the others, or layers are mixed."""
    mixed = [replace(model(0, **experts), moe_layer_freq=pattern) for pattern in PATTERNS]
    for spec in (*(model(dense, **experts) for dense in (1, 2, 4)), *mixed):
        work = WorkBounds(job_of(spec))
        for pp in (2, 4):
            for options in ({}, {"recompute_granularity": "full", "recompute_method": "block"}):
                one = base(pp, chunks, **options)
                least = min(work(replace(one, layers_per_stage=layers)) for layers in splits(12, pp, chunks))
                assert 0.3 * least < work.of_any_split(one) <= least * (1 + 1e-9)
