"""Context groups over hosts, from candidates to plans: forms and optimum against every placement, simulated."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from factories import TINY, make_config, make_job, make_random_cluster

from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.work import WorkBounds
from pipette_opt.export.targets import export
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import HostTile, ParallelConfig, host_tiles, tile_placement
from pipette_opt.plans.plan import Plan
from pipette_opt.problem.build import FittingCandidate, build_problem_data, links_decide
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.simulate.many import estimate_many
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.specs import Instance
from pipette_opt.verify import verify

pytestmark = pytest.mark.search

MOE = replace(TINY, name="moe", num_layers=4, num_experts=4, add_bias_linear=False, add_qkv_bias=False)


def given(seed: int, hosts: int = 4, batch: int = 8, **options: object) -> Instance:
    """Hosts of two GPUs on links from slow to faster."""
    rng = np.random.default_rng(seed)
    spec = make_random_cluster(rng, hosts, gpus=2, intra_node_latency_s=3e-6, inter_node_latency_s=1e-5)
    return make_job(spec, options.pop("model", TINY), batch, 2048, **options)  # type: ignore[arg-type]


def every(job: Instance, one: ParallelConfig, tile: HostTile) -> Iterator[np.ndarray]:
    """Every way to put a configuration on hosts."""
    grid = tile.node_grid(one)
    for nodes in permutations(range(job.cluster.num_nodes), int(np.prod(grid))):
        yield np.array(nodes).reshape(grid)


def simulated_s(job: Instance, one: ParallelConfig, tile: HostTile) -> np.ndarray:
    """Times of all placements."""
    return estimate_many(job, [(one, tile_placement(one, tile, nodes)) for nodes in every(job, one, tile)])


@pytest.mark.parametrize("kind", ["p2p", "all_gather", "a2a", "a2a+p2p"])
@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ("dense", {"tp": 2, "pp": 1, "dp": 2, "context_parallel_size": 2}),
        ("dense", {"tp": 1, "pp": 2, "dp": 1, "context_parallel_size": 4}),
        ("dense", {"tp": 4, "pp": 1, "dp": 1, "context_parallel_size": 2}),
        ("experts", {"tp": 2, "pp": 1, "dp": 2, "context_parallel_size": 2, "expert_model_parallel_size": 2}),
        ("experts", {"tp": 1, "pp": 1, "dp": 2, "context_parallel_size": 4, "expert_model_parallel_size": 4}),
    ],
)
def test_no_bound_is_above_a_placement(kind: str, model: str, degrees: dict[str, int]) -> None:
    """Bounds by work and by relaxation, and the relaxation of every placement, with and without overlap."""
    job = given(3, model=MOE if model == "experts" else TINY)
    job = replace(job, training=replace(job.training, cp_comm_type=kind))
    layers = job.model.num_layers
    for overlap, zero_stage in ((False, None), (True, None), (False, 3)):
        one = make_config(
            num_layers=layers,
            use_distributed_optimizer=True,
            zero_stage=zero_stage,
            overlap_grad_reduce=overlap,
            overlap_param_gather=overlap,
            sequence_parallel=degrees["tp"] > 1,
            expert_tensor_parallel_size=1 if model == "experts" else None,
            context_a2a_size=2 if kind == "a2a+p2p" and degrees["context_parallel_size"] == 4 else 1,
            **degrees,
        )
        fitting = FittingCandidate(config=one, need_bytes=np.zeros(one.pipeline_model_parallel_size, dtype=np.int64))
        data = build_problem_data(job, [fitting], np.full(4, 1 << 40))
        (candidate,) = data.candidates
        times = simulated_s(job, one, candidate.tile)
        forms = [objective_ticks(data, candidate, nodes) * data.tick_s for nodes in every(job, one, candidate.tile)]
        assert (np.array(forms) <= times * (1 + 1e-9)).all()
        assert WorkBounds(job)(one) <= times.min()
        assert candidate_bound(data, candidate) * data.tick_s <= times.min() * (1 + 1e-9)
        spans_both = degrees["tp"] == 4
        assert not (spans_both or kind == "a2a") or not links_decide(job, one, candidate.tile)


@pytest.mark.parametrize(
    ("seed", "kind", "pins"),
    [
        (0, "p2p", {"tensor_parallel": (2,), "context_parallel": (2,)}),
        (1, "p2p", {"tensor_parallel": (1,), "context_parallel": (4,), "pipeline_parallel": (1, 2)}),
        (2, "a2a", {"tensor_parallel": (2,), "context_parallel": (2,), "pipeline_parallel": (1,)}),
        (3, "p2p", {"tensor_parallel": (4,), "context_parallel": (2,)}),
        (5, "a2a+p2p", {"tensor_parallel": (1,), "context_parallel": (4,), "pipeline_parallel": (1,)}),
    ],
)
def test_optimum_is_the_best_of_all_placements(seed: int, kind: str, pins: dict[str, tuple[int, ...]]) -> None:
    """Solve proves the plan that simulating every placement of every candidate finds, and its ranks are right."""
    job = given(seed, batch=4)
    job = replace(job, training=replace(job.training, cp_comm_type=kind))
    space = SearchSpace(
        num_gpus=8,
        micro_batch_size=(1,),
        virtual_pipeline=(1,),
        recompute=(None,),
        uneven_layers=False,
        **pins,  # type: ignore[arg-type]
    )
    plan = optimize(job, space, OptimizeParams(time_limit_s=20.0, workers=1))
    best = min(
        float(simulated_s(job, one, tile).min())
        for one in enumerate_candidates(job, space)
        for tile in host_tiles(one, 2, job.launcher)
    )
    assert plan.estimate.iteration_time_s == pytest.approx(best, rel=2e-6)
    assert plan.certificate.status == "OPTIMAL"
    assert plan.certificate.lower_bound_s <= best * (1 + 1e-9)
    verify(job, plan)
    check_rank_map(plan)


def check_rank_map(plan: Plan) -> None:
    """
    Megatron-Core numbers tensor ranks first, then context ranks, replicas and stages.

    Ranks of a tensor group follow one another, on one host or more; those of a context group are on several.
    """
    entries = json.loads(export(plan, "rankmap-json")["rankmap.json"])["ranks"]
    tp, cp = plan.config.tensor_model_parallel_size, plan.config.context_parallel_size
    dp = plan.config.data_parallel_size
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    hosts: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for entry in entries:
        rank = entry["rank"]
        at = rank // (tp * cp * dp), rank // (tp * cp) % dp, rank // tp % cp, rank % tp
        assert [entry[name] for name in ("pp", "dp", "cp", "tp")] == list(at)
        groups[at[0], at[1], at[3]].append(rank)
        hosts[at[0], at[1], at[3]].add(entry["host"])
    assert all(len(group) == cp and len(set(np.diff(group))) == 1 for group in groups.values())
    assert all(len(on) > 1 for on in hosts.values())


def test_ranks_that_exchange_heads_stay_on_a_host() -> None:
    """Context groups over hosts of two GPUs: a ring of all ranks, or of pairs; pairs may also be pinned."""
    job = given(6, batch=4)
    job = replace(job, training=replace(job.training, cp_comm_type="a2a+p2p"))
    space = SearchSpace(
        num_gpus=8, recompute=(None,), tensor_parallel=(1,), pipeline_parallel=(1,), context_parallel=(4, 8)
    )
    sizes = {(one.context_parallel_size, one.context_a2a_size) for one in enumerate_candidates(job, space)}
    assert sizes == {(4, 1), (4, 2), (8, 1), (8, 2)}
    pinned = enumerate_candidates(job, replace(space, context_a2a=(2,)))
    assert {one.context_a2a_size for one in pinned} == {2}


def test_context_groups_over_hosts_are_searched_by_default() -> None:
    """One sequence in an iteration: without pins eight GPUs of four hosts may all share it, and replicas may not."""
    job = given(4, batch=1)
    space = SearchSpace(num_gpus=8, recompute=(None,), tensor_parallel=(2,), pipeline_parallel=(1,))
    sizes = {one.context_parallel_size for one in enumerate_candidates(job, space)}
    assert sizes == {4}
