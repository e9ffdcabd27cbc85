"""Layers, kinds of GPU and degrees chosen together: against every split on every placement, by the simulator."""

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, A100_80, LLAMA_8B, make_cluster, make_config, make_job, make_links

from pipette_opt.base.units import GIB, TFLOP
from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.filter import keep_fitting, usable_bytes
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import host_tiles, tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.plan import Plan
from pipette_opt.prepare import Question, load_predictor, prepare, prunes
from pipette_opt.problem.families import LayerFamily
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.many import estimate_many
from pipette_opt.solver import joint
from pipette_opt.solver.joint import _bases, _Joint
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.specs import GatedDeltaNet, GpuSpec, Instance, Mamba, ModelSpec, NodeSpec
from pipette_opt.specs.model_gaps import not_modelled_of
from pipette_opt.verify import verify

pytestmark = pytest.mark.search

SLOW = GpuSpec(
    name="slow-32gb",
    memory_bytes=32 * GIB,
    peak_flops={"bf16": 125 * TFLOP, "fp16": 125 * TFLOP, "fp32": 15 * TFLOP},
    memory_bytes_per_s=0.9e12,
)
"""A made-up kind of GPU, two and a half times slower than an A100."""

FEW = SearchSpace(
    tensor_parallel=(2,),
    pipeline_parallel=(2, 3),
    context_parallel=(1,),
    micro_batch_size=(1,),
    virtual_pipeline=(1,),
    recompute=(None,),
    overlap_grad_reduce=False,
)


EXPERTS = replace(
    LLAMA_8B,
    num_layers=12,
    num_experts=8,
    moe_router_topk=2,
    moe_ffn_hidden_size=2048,
)
"""A model whose layers with experts are narrower than those without."""


def mixed(
    kinds: tuple[GpuSpec, ...], rng: np.random.Generator, model_layers: int = 12, model: ModelSpec = LLAMA_8B
) -> Instance:
    """Hosts of two GPUs, of these kinds, with links of their own."""
    values = rng.uniform(6.0, 25.0, (len(kinds), len(kinds)))
    hosts = make_cluster(
        len(kinds),
        gpus=2,
        nodes=tuple(NodeSpec(host=f"n{i}", gpu=gpu, num_gpus=2) for i, gpu in enumerate(kinds)),
        link_matrices=(make_links(values, len(kinds)),),
    )
    return make_job(hosts, replace(model, num_layers=model_layers), 24, 4096)


def fastest(job: Instance, space: SearchSpace) -> float:
    """The simulator's least time over all degrees, splits and placements."""
    placed = []
    for pp in space.pipeline_parallel or ():
        cuts = itertools.combinations(range(1, job.model.num_layers), pp - 1)
        every = tuple(tuple(int(n) for n in np.diff([0, *cut, job.model.num_layers])) for cut in cuts)
        listed = replace(space, pipeline_parallel=(pp,), layers_per_stage=every)
        predictor = load_predictor(0.01, job)
        found = keep_fitting(job, enumerate_candidates(job, listed), predictor)
        capacity = usable_bytes(job.cluster, predictor)
        for one in found.fitting:
            for block in host_tiles(one.config, 2, job.launcher):
                grid = block.node_grid(one.config)
                need = one.need_bytes.reshape(grid[0], -1).max(axis=1)
                for hosts in itertools.permutations(range(job.cluster.num_nodes), int(np.prod(grid))):
                    nodes = np.array(hosts).reshape(grid)
                    if (capacity[nodes].reshape(grid[0], -1).min(axis=1) >= need).all():
                        placed.append((one.config, tile_placement(one.config, block, nodes)))
    return float(estimate_many(job, placed).min())


def solved(job: Instance, space: SearchSpace) -> Plan:
    """The plan, with time enough to prove it."""
    return optimize(job, space, OptimizeParams(time_limit_s=30, workers=2))


@pytest.mark.parametrize("kinds", [(A100_80, A100_80, SLOW), (A100_80, SLOW, SLOW)])
def test_mixed_hosts_get_the_split_of_an_enumeration(kinds: tuple[GpuSpec, ...]) -> None:
    """Proven, by splits that no list of usual ones has."""
    job = mixed(kinds, np.random.default_rng(kinds.count(SLOW)))
    plan = solved(job, FEW)
    assert plan.estimate.iteration_time_s == pytest.approx(fastest(job, FEW), rel=1e-4)
    assert plan.certificate.status == "OPTIMAL"
    model = plan.certificate.joint_model
    assert model is not None
    assert model.solves >= 1
    assert len(set(plan.config.layers_per_stage)) > 1
    verify(job, plan)


@pytest.mark.parametrize("slower", [30.0, 300.0])
def test_slow_links_between_kinds_are_part_of_the_slowest_split(slower: float) -> None:
    """Where every plan crosses one, its time is beyond that of all work over the fastest links."""
    job = mixed((A100_80, SLOW, A100_80), np.random.default_rng(3), model_layers=4)
    (links,) = job.cluster.link_matrices
    rates = links.bytes_per_s.copy()
    rates[[0, 1, 1, 2], [1, 0, 2, 1]] /= slower
    job = replace(job, cluster=replace(job.cluster, link_matrices=(replace(links, bytes_per_s=rates),)))
    space = replace(FEW, pipeline_parallel=(3,), tensor_parallel=(1, 2))
    plan = solved(job, space)
    assert plan.estimate.iteration_time_s == pytest.approx(fastest(job, space), rel=1e-4)
    assert plan.certificate.status == "OPTIMAL"
    verify(job, plan)


@pytest.mark.parametrize(("dense", "chunks"), [(1, (1,)), (3, (1,)), (2, (1, 2))])
def test_first_layers_without_experts_are_a_kind_of_their_own(dense: int, chunks: tuple[int, ...]) -> None:
    """The plan is as fast as the fastest split of an enumeration, or faster with unequal chunks; the bound holds."""
    job = mixed((A100_80, A100_80, SLOW), np.random.default_rng(1), model=replace(EXPERTS, num_dense_layers=dense))
    space = replace(FEW, virtual_pipeline=chunks, expert_parallel=(1,), expert_tensor_parallel=(2,))
    plan, best = solved(job, space), fastest(job, space)
    assert plan.estimate.iteration_time_s <= best * (1 + 1e-4)
    if plan.config.pipeline_model_parallel_layout is None:
        assert plan.estimate.iteration_time_s == pytest.approx(best, rel=1e-4)
    assert plan.certificate.lower_bound_s <= plan.estimate.iteration_time_s * (1 + 1e-6)
    assert plan.certificate.joint_model is not None
    assert "uneven layers per stage other than lighter ends" not in plan.certificate.not_searched


HYBRID = replace(
    LLAMA_8B,
    num_layers=12,
    hybrid_layer_pattern="M-M*-M-M*-M-",
    mamba=Mamba(num_heads=128),
    position_embedding_type="none",
    rotary_base=10000,
    rope_scaling_factor=None,
    activation_func="squared_relu",
    gated_linear_unit=False,
)
"""Attention among state-space layers and MLPs, with a period of five that is cut off."""

DELTA = replace(LLAMA_8B, num_layers=12, linear_attention_freq=4, gated_delta_net=GatedDeltaNet())
"""Attention in every fourth layer only."""


@pytest.mark.parametrize(
    "model",
    [HYBRID, DELTA, replace(EXPERTS, moe_layer_freq=2)],
    ids=["hybrid", "delta nets", "every second experts"],
)
def test_patterns_get_the_split_of_an_enumeration(model: ModelSpec) -> None:
    """Whatever the kinds of layers: nothing beats the plan, no split is below the proven bound."""
    job = mixed((A100_80, A100_80, SLOW), np.random.default_rng(1), model=model)
    job = replace(job, not_modelled=not_modelled_of(job.model, job.training))
    space = replace(FEW, expert_parallel=(1,), expert_tensor_parallel=(2,)) if model.num_experts else FEW
    plan, best = solved(job, space), fastest(job, space)
    assert plan.estimate.iteration_time_s == pytest.approx(best, rel=1e-4)
    assert plan.certificate.lower_bound_s <= best * (1 + 1e-6)
    assert plan.certificate.joint_model is not None
    assert "uneven layers per stage other than lighter ends" not in plan.certificate.not_searched


def test_multi_token_prediction_takes_layers_from_the_last_stage() -> None:
    """As fast as the fastest split of an enumeration; the same model without it has more layers there."""
    kinds = (A100_80, A100_80, A100_80)
    plans = []
    for depths in (0, 2):
        model = replace(LLAMA_8B, mtp_num_layers=depths)
        job = mixed(kinds, np.random.default_rng(5), model=model)
        space = replace(FEW, pipeline_parallel=(3,))
        plans.append(solved(job, space))
        assert plans[-1].estimate.iteration_time_s == pytest.approx(fastest(job, space), rel=1e-4)
        verify(job, plans[-1])
    assert plans[1].config.layers_per_stage[-1] < plans[0].config.layers_per_stage[-1]


def test_memory_binds_in_the_model() -> None:
    """As fast, but with less room: a host gets the layers that fit it, and more are not proposed."""
    small = GpuSpec(
        name="a100-24gb",
        memory_bytes=24 * GIB,
        peak_flops=A100_40.peak_flops,
        memory_bytes_per_s=A100_80.memory_bytes_per_s,
    )
    roomy = GpuSpec(
        name="a100-80gb-too",
        memory_bytes=80 * GIB,
        peak_flops=A100_40.peak_flops,
        memory_bytes_per_s=A100_80.memory_bytes_per_s,
    )
    space = replace(FEW, pipeline_parallel=(2,), data_parallel=(1,))
    job = mixed((roomy, small), np.random.default_rng(0), model_layers=16)
    even = make_config(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        data_parallel_size=1,
        layers_per_stage=(8, 8),
        sequence_parallel=True,
    )
    assert keep_fitting(job, [even], load_predictor(0.01, job)).rejected  # both need more than the small host has
    plan = solved(job, space)
    assert plan.estimate.iteration_time_s == pytest.approx(fastest(job, space), rel=1e-4)
    assert plan.certificate.status == "OPTIMAL"
    assert max(plan.config.layers_per_stage) > 8


def test_layers_that_are_given_are_not_chosen() -> None:
    """Nor where uneven splits are refused: then there is no joint model, and the scope says what is left out."""
    job = mixed((A100_80, A100_80), np.random.default_rng(0))
    plan = solved(job, replace(FEW, pipeline_parallel=(2,), uneven_layers=False))
    assert plan.certificate.joint_model is None
    assert "uneven layers per stage" in plan.certificate.not_searched


@pytest.mark.parametrize(
    ("memory_gib", "dense", "depths"), [(24, None, 0), (80, None, 0), (24, 3, 0), (32, 3, 0), (80, 2, 0), (80, 1, 2)]
)
def test_bounds_of_families_hold_for_every_split(memory_gib: int, dense: int | None, depths: int) -> None:
    """Usual ones, too, recomputed or not, on every placement; where all has room, recomputation adds nothing."""
    small = replace(A100_80, name="small", memory_bytes=memory_gib * GIB)
    model = LLAMA_8B if dense is None else replace(EXPERTS, num_dense_layers=dense)
    model = replace(model, mtp_num_layers=depths)
    job = mixed((small, small, SLOW), np.random.default_rng(2), model_layers=6, model=model)
    space = replace(FEW, recompute=(None, "full"), virtual_pipeline=(1, 2), overlap_grad_reduce=None)
    if dense is not None:
        space = replace(space, expert_parallel=(1,), expert_tensor_parallel=(2,))
    prepared = prepare(Question(job, space, 0.01, keep=prunes, joint=JointLimits(time_limit_s=30)))
    joined, work, capacity = prepared.joined, WorkBounds(job), prepared.memory.capacity_bytes
    assert joined is not None
    bounds = []
    for one in prepared.memory.fitting:
        bounds.append(joined.split_bound_s(one.config))
        for block in host_tiles(one.config, 2, job.launcher):
            grid = block.node_grid(one.config)
            need = one.need_bytes.reshape(grid[0], -1).max(axis=1)
            for hosts in itertools.permutations(range(3), int(np.prod(grid))):
                nodes = np.array(hosts).reshape(grid)
                seconds = estimate(job, one.config, tile_placement(one.config, block, nodes)).iteration_time_s
                assert work.of_any_split(one.config) <= seconds
                if (capacity[nodes].reshape(grid[0], -1).min(axis=1) >= need).all():
                    assert bounds[-1] <= seconds * (1 + 1e-9)
    assert max(bounds) > 0


@pytest.mark.parametrize(("memory_gib", "dense"), [(24, None), (80, None), (12, 3), (80, 3)])
def test_recomputation_is_left_out_where_every_split_has_room_without(memory_gib: int, dense: int | None) -> None:
    """By the memory of every split on the smallest host, also where first layers without experts fill stages."""
    small = replace(A100_80, name="small", memory_bytes=memory_gib * GIB)
    model = LLAMA_8B if dense is None else replace(EXPERTS, num_dense_layers=dense)
    job = mixed((small, A100_80, A100_80), np.random.default_rng(2), model_layers=6, model=model)
    space = replace(FEW, recompute=(None, "full"), expert_parallel=(1,), num_gpus=4)
    predictor = load_predictor(0.01, job)
    search = _Joint(
        instance=job,
        space=space,
        predictor=predictor,
        max_oom_risk=0.01,
        limits=JointLimits(time_limit_s=30),
        clock=Clock(),
        work=WorkBounds(job),
    )
    bases = list(_bases(job, enumerate_candidates(job, space)))
    search._families(bases)
    room = int(usable_bytes(job.cluster, predictor).min())
    for base in (one for one in bases if one.recomputation is None):
        pp = base.pipeline_model_parallel_size
        cuts = itertools.combinations(range(1, 6), pp - 1)
        splits = [replace(base, layers_per_stage=tuple(np.diff([0, *cut, 6]).tolist())) for cut in cuts]
        fits = all(one.need_bytes.max() <= room for one in keep_fitting(job, splits, predictor).fitting)
        fits &= len(keep_fitting(job, splits, predictor).fitting) == len(splits)
        assert (base in search.roomy) <= fits
        assert (memory_gib == 80 and dense is None) <= (base in search.roomy)


def test_stopped_model_still_bounds() -> None:
    """With no time at all, the bound of what was not looked at is that of the work alone."""
    job = mixed((A100_80, A100_80, SLOW), np.random.default_rng(1))
    joined = prepare(Question(job, FEW, 0.01, keep=prunes, joint=JointLimits(time_limit_s=1e-3))).joined
    assert joined is not None
    assert 0 <= joined.model.bound_s <= fastest(job, FEW) * (1 + 1e-9)


def test_bounds_end_after_half_of_the_time_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other half is left for the proof, instead of asking the clock until all the time is over."""
    job, looks = mixed((A100_80, A100_80), np.random.default_rng(1)), []

    def slow(search: _Joint, bases: object) -> list[LayerFamily]:
        time.sleep(0.6)
        return []

    monkeypatch.setattr(joint, "BETWEEN_LOOKS", 1)
    monkeypatch.setattr(_Joint, "_families", slow)
    monkeypatch.setattr(_Joint, "_bound_again", lambda search, families: looks.append(families) or [])
    search = _Joint(
        instance=job,
        space=SearchSpace(),
        predictor=load_predictor(0.01, job),
        max_oom_risk=0.01,
        limits=JointLimits(time_limit_s=1.0),
        clock=Clock(),
        work=WorkBounds(job),
    )
    search.run(enumerate_candidates(job, SearchSpace()))
    assert len(looks) <= 4
