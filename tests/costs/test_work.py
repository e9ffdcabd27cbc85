"""The bound by work alone, against sums by hand, the form over the best links, and the simulator."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from factories import A100_40, A100_80, LLAMA_8B, TINY, make_cluster, make_config, make_job, make_random_cluster

from pipette_opt.candidates import SearchSpace, enumerate_candidates
from pipette_opt.costs.compute import stage_compute
from pipette_opt.costs.context import inside_stages_s
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.costs.work import WorkBounds
from pipette_opt.parallel import ParallelConfig, host_tiles, tile_placement
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance, ModelSpec

MIXTURE = replace(
    TINY,
    num_experts=8,
    moe_router_topk=2,
    moe_ffn_hidden_size=512,
    num_dense_layers=1,
    add_bias_linear=False,
    gated_linear_unit=True,
)

PREDICTING = replace(MIXTURE, position_embedding_type="rope", mtp_num_layers=2, mtp_use_repeated_layer=True)

SPACE = SearchSpace(micro_batch_size=(1, 2))


def job_of(model: ModelSpec, seed: int, **options: object) -> Instance:
    """Directed links of random speed."""
    return make_job(make_random_cluster(np.random.default_rng(seed), 4, gpus=4, **options), model, 32, 2048)


def some_configs(job: Instance, seed: int, number: int = 60) -> list[ParallelConfig]:
    """A random choice of what is legal."""
    found = enumerate_candidates(job, SPACE)
    chosen = np.random.default_rng(seed).choice(len(found), min(number, len(found)), replace=False)
    return [found[index] for index in sorted(chosen.tolist())]


def by_hand_s(job: Instance, one: ParallelConfig) -> float:
    """The longest path to a stage and back, for a model without experts in slots that fit on a host."""
    compute = stage_compute(job, one)
    forward, backward = inside_stages_s(job, one, compute, [0])
    chunks = compute.forward_s[0] + forward + compute.backward_s[0] + backward
    m = one.num_microbatches(job.training.global_batch_size)
    return max(chunks[0, :stage].sum() + m * chunks[:, stage].sum() for stage in range(chunks.shape[1]))


def test_the_sum_by_hand() -> None:
    """Interleaved or not, recomputed or not, even stages and others, where a reduction takes no time."""
    job = make_job(make_cluster(4, 1e6, gpus=4, intra_node_bytes_per_s=1e15), TINY, 32, 2048)
    work, configs = WorkBounds(job), some_configs(job, 0)
    assert {one.num_chunks > 1 for one in configs} == {True, False}
    assert {len(set(one.layers_per_stage)) > 1 for one in configs} == {True, False}
    for one in configs:
        slot = one.tensor_model_parallel_size * one.context_parallel_size
        if slot <= 4 and list(host_tiles(one, 4, job.launcher)):
            assert work(one) == pytest.approx(by_hand_s(job, one), rel=1e-8)


def test_the_reduction_by_hand() -> None:
    """Sixteen replicas on four hosts whose links are slow: all but the last micro-batch, then three bytes in four."""
    job = make_job(make_cluster(4, 0.01, gpus=4), TINY, 64, 2048)
    one = make_config(dp=16, use_distributed_optimizer=True)
    compute = stage_compute(job, one)
    passes_s = 3 * float(compute.forward_s.sum() + compute.backward_s.sum())
    moved = 15 / 16 * job.training.gradient_bytes * float(stage_parameters(TINY, one).own[0])
    rate = 4 * 0.01e9 * job.stack.inter_node
    assert WorkBounds(job)(one) == pytest.approx(passes_s + moved / rate, rel=1e-8)


@pytest.mark.search
@pytest.mark.parametrize("model", [TINY, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize("seed", range(3))
def test_never_above_the_form_over_the_best_links(model: ModelSpec, seed: int) -> None:
    """
    For every packing, up to the ticks that a form is rounded down by, where nothing runs beside compute.

    Not with block recomputation over tensor groups that span hosts, where a form counts the least of unequal layers.
    """
    job = job_of(model, seed)
    work, configs = WorkBounds(job), [one for one in some_configs(job, seed) if not one.overlap_grad_reduce]
    nothing = [FittingCandidate(config=one, need_bytes=np.zeros(len(one.layers_per_stage))) for one in configs]
    data = build_problem_data(job, nothing, np.full(4, 1 << 40))
    assert len(data.candidates) > 10
    for candidate in data.candidates:
        if candidate.tile.nodes_per_slot > 1 and candidate.config.recomputation == "block":
            continue
        full_s = (optimistic_ticks(data, candidate) + candidate.num_stages + 1) * data.tick_s
        assert 0.3 * full_s < work(candidate.config) <= full_s


@pytest.mark.search
@pytest.mark.parametrize("model", [TINY, MIXTURE, PREDICTING], ids=["dense", "mixture", "predicting"])
@pytest.mark.parametrize("slower", [1, 10, 300])
def test_never_above_the_simulator(model: ModelSpec, slower: int) -> None:
    """On random hosts, whatever runs beside compute, with two kinds of GPU, where links are slow or not."""
    links = np.random.default_rng(slower).uniform(5.0, 25.0, (4, 4)) / slower
    job = make_job(make_cluster(4, links, gpus=4, kinds=(A100_80, A100_40)), model, 32, 2048)
    work, rng = WorkBounds(job), np.random.default_rng(7)
    overlaps, closest = 0, 0.0
    for one in some_configs(job, 7, 40):
        overlaps += one.overlap_grad_reduce
        for block in host_tiles(one, 4, job.launcher):
            grid = block.node_grid(one)
            nodes = rng.permutation(4)[: int(np.prod(grid))].reshape(grid)
            simulated_s = estimate(job, one, tile_placement(one, block, nodes)).iteration_time_s
            assert work(one) <= simulated_s
            closest = max(closest, work(one) / simulated_s)
    assert overlaps > 3
    assert closest > 0.3


@pytest.mark.search
@pytest.mark.parametrize("model", [TINY, MIXTURE], ids=["dense", "mixture"])
def test_what_is_remembered_is_what_would_be_computed(model: ModelSpec) -> None:
    """The bound of a configuration does not depend on those that were asked for before."""
    job = job_of(model, 3)
    work = WorkBounds(job)
    for one in some_configs(job, 3, 80):
        assert work(one) == WorkBounds(job)(one)


def test_without_a_packing_there_is_no_plan() -> None:
    """Slots of three GPUs do not fill hosts of four."""
    job = make_job(make_cluster(3, gpus=4), replace(LLAMA_8B, num_attention_heads=24, num_query_groups=24), 32, 2048)
    assert WorkBounds(job)(make_config(tp=3, dp=4, num_layers=32)) == float("inf")


@pytest.mark.search
@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("counts", [(1, 1, 1), (1, 2), (2, 1)])
def test_slower_kinds_count_where_faster_hosts_are_too_few(counts: tuple[int, ...], unequal: bool) -> None:
    """Against every order of the hosts on perfect links; some bounds are near, and above those of the fastest kind."""
    names = ("fast", "half", "third")
    kinds = [replace(A100_80, name=names[number], peak_flops={"bf16": 312e12 / (number + 1)}) for number in range(3)]
    listed = tuple(kind for kind, count in zip(kinds, counts, strict=False) for _ in range(count))
    given = make_job(
        make_cluster(3, 1e6, gpus=2, kinds=listed, intra_node_bytes_per_s=1e15), TINY, 20 if unequal else 24, 2048
    )
    job = replace(given, training=replace(given.training, unequal_microbatches=unequal))
    alone = replace(job, cluster=make_cluster(3, 1e6, gpus=2, kinds=kinds[:1], intra_node_bytes_per_s=1e15))
    near, higher, work, fastest = [], 0, WorkBounds(job), WorkBounds(alone)
    for one in some_configs(job, 3, 20):
        placed = [
            (one, tile_placement(one, block, np.array(order).reshape(block.node_grid(one))))
            for block in host_tiles(one, 2, job.launcher)
            for order in permutations(range(3), int(np.prod(block.node_grid(one))))
        ]
        best_s = float(estimate_many(job, placed).min())
        assert work(one) <= best_s * (1 + 1e-9)
        near.append(work(one) / best_s)
        higher += work(one) > 1.1 * fastest(one)
    assert max(near) > 0.9
    assert higher > 5
