"""The roofline: limits, monotony, and what recomputation adds."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.base.units import TFLOP
from pipette_opt.costs.compute import (
    forced_kinds,
    head_times_s,
    layer_times_s,
    optimizer_time_s,
    stage_compute,
)
from pipette_opt.costs.products import matmul_time_s, plain_format
from pipette_opt.costs.work import WorkBounds
from pipette_opt.parallel import identity_placement, tile_placement
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import DEFAULT_STACK, ComputeProfile, ProfileKey

PEAK = 312 * TFLOP


def product(m: int, n: int, k: int) -> float:
    """One bf16 product on an A100."""
    training = make_job(make_cluster(1)).training
    form = plain_format(A100_80, training, DEFAULT_STACK)
    return matmul_time_s(m, n, k, form=form, gpu=A100_80, rates=DEFAULT_STACK)


def test_a_large_product_is_bound_by_compute() -> None:
    """A product of 8192 cubed attains the best share, within a few percent for its inner size."""
    ideal = 2 * 8192**3 / (PEAK * A100_80.efficiency.wide.share)
    assert ideal < product(8192, 8192, 8192) < 1.05 * ideal


def test_a_thin_product_is_bound_by_memory() -> None:
    """One row reads the whole matrix."""
    weights = 2 * 8192 * 8192 / (A100_80.memory_bytes_per_s * DEFAULT_STACK.streaming)
    assert product(1, 8192, 8192) == pytest.approx(weights, rel=0.2)


def test_few_results_do_not_fill_the_chip() -> None:
    """A quarter of the results takes more than a quarter of the time."""
    start = A100_80.efficiency.wide.start_s
    assert product(256, 256, 8192) - start > 1.5 * (product(512, 512, 8192) - start) / 4


def test_never_above_the_peak() -> None:
    """No shape beats the dense peak."""
    rng = np.random.default_rng(0)
    for m, n, k in rng.integers(1, 20000, (500, 3)).tolist():
        assert product(m, n, k) > 2 * m * n * k / PEAK


def test_full_recomputation_adds_a_forward() -> None:
    """Backward grows by exactly the forward."""
    job = make_job(make_cluster(1))
    forward, backward = layer_times_s(job, make_config(), A100_80)
    again = layer_times_s(job, make_config(recompute_granularity="full"), A100_80)
    assert again == (forward, pytest.approx(forward + backward))


def test_tensor_parallelism_splits_the_work_imperfectly() -> None:
    """Eight ranks are more than four and at most eight times as fast."""
    job = make_job(make_cluster(1), LLAMA_8B, seq_length=4096)
    one = sum(layer_times_s(job, make_config(num_layers=32), A100_80))
    eight = sum(layer_times_s(job, make_config(tp=8, num_layers=32, sequence_parallel=True), A100_80))
    assert one / 8 < eight < one / 4


def test_head_and_embedding_make_stages_unequal() -> None:
    """The last stage has the head, the first only the look-up; the middle ones are equal."""
    job = make_job(make_cluster(1), LLAMA_8B, seq_length=4096)
    times = stage_compute(job, make_config(pp=4, num_layers=32))
    forward = times.forward_s[0, 0]
    head = head_times_s(LLAMA_8B, job.training, make_config(pp=4, num_layers=32), A100_80, DEFAULT_STACK)[0]
    assert forward[1] == forward[2] < forward[0] < forward[3]
    assert forward[3] - forward[1] == pytest.approx(head)


def test_chunks_add_up_to_the_stage() -> None:
    """Interleaving moves work between chunks, not away."""
    job = make_job(make_cluster(1))
    whole = stage_compute(job, make_config(pp=2)).forward_s.sum(axis=1)
    chunked = stage_compute(job, make_config(pp=2, virtual_pipeline_model_parallel_size=2)).forward_s.sum(axis=1)
    np.testing.assert_allclose(whole, chunked)


def test_embedding_and_head_in_the_place_of_a_layer() -> None:
    """
    30 layers in four chunks of four stages, the first and the last with one layer less than the others' two.

    All others are those of 32 layers; these two differ by one layer's time, and all 30 layers are somewhere.
    """
    job = make_job(make_cluster(1), LLAMA_8B, seq_length=4096)
    even = make_config(pp=4, num_layers=32, virtual_pipeline_model_parallel_size=4)
    counted = replace(even, layers_per_stage=(7, 8, 8, 7))
    layer = layer_times_s(job, even, A100_80)
    job_of_30 = replace(job, model=replace(LLAMA_8B, num_layers=30))
    for way, name in enumerate(("forward_s", "backward_s")):
        less = getattr(stage_compute(job, even), name) - getattr(stage_compute(job_of_30, counted), name)
        assert less[0, 0, 0] == pytest.approx(layer[way])
        assert less[0, -1, -1] == pytest.approx(layer[way])
        assert np.count_nonzero(less) == 2


def test_a_profile_replaces_the_roofline() -> None:
    """Measured times are used for their sizes, and for no others."""
    key = ProfileKey(gpu="a100-80gb", tensor_model_parallel_size=1, micro_batch_size=1, seq_length=1024)
    job = make_job(make_cluster(1), profile=ComputeProfile(layers={key: (0.5, 1.25)}))
    assert layer_times_s(job, make_config(), A100_80) == (0.5, 1.25)
    assert layer_times_s(job, make_config(recompute_granularity="full"), A100_80) == (0.5, 1.75)
    assert layer_times_s(job, make_config(mbs=2), A100_80)[0] < 0.5


def test_the_distributed_optimizer_splits_the_step() -> None:
    """Eight replicas do an eighth each."""
    job = make_job(make_cluster(1))
    whole = optimizer_time_s(job, make_config(dp=8), A100_80)
    assert optimizer_time_s(job, make_config(dp=8, use_distributed_optimizer=True), A100_80) == pytest.approx(whole / 8)


def test_a_slow_host_is_a_floor() -> None:
    """A small layer takes what its launches take, a large one what the device takes."""
    job = make_job(make_cluster(1))
    slow = DEFAULT_STACK.with_constants({"host_kernel_s": 1e-3})
    floor = layer_times_s(job, make_config(), A100_80, slow)[0]
    assert floor == pytest.approx(11e-3, rel=0.01)
    quick = DEFAULT_STACK.with_constants({"host_kernel_s": 1e-9})
    assert layer_times_s(job, make_config(), A100_80, quick) == pytest.approx(
        layer_times_s(job, make_config(), A100_80)
    )


def test_ranks_of_a_group_wait_for_each_other() -> None:
    """Where the host decides: two all-reduces in a pass, each with four ranks squared; nothing without a group."""
    job = make_job(make_cluster(1))
    slow = DEFAULT_STACK.with_constants({"host_kernel_s": 1e-3})
    waiting = slow.with_constants({"group_wait_s": 1e-4})
    four = make_config(tp=4)
    extra = layer_times_s(job, four, A100_80, waiting)[0] - layer_times_s(job, four, A100_80, slow)[0]
    assert extra == pytest.approx(2 * 4**2 * 1e-4, rel=1e-3)
    assert layer_times_s(job, make_config(), A100_80, waiting) == layer_times_s(job, make_config(), A100_80, slow)


def test_norms_of_many_kernels_are_slower() -> None:
    """By the activations they read and write, 16 more forward and 42 more backward for each of two norms."""
    job = make_job(make_cluster(1), LLAMA_8B, seq_length=4096)
    written_out = replace(job, training=replace(job.training, fused_norm=False))
    extra = np.array(layer_times_s(written_out, make_config(num_layers=32), A100_80)) - layer_times_s(
        job, make_config(num_layers=32), A100_80
    )
    one = 4096 * 4096 * 2 / (A100_80.memory_bytes_per_s * DEFAULT_STACK.streaming)
    np.testing.assert_allclose(extra, [2 * 16 * one, 2 * 42 * one])


def test_straggling_and_fixed_costs() -> None:
    """Each doubling of the hosts slows every stage; each micro-batch and iteration costs something."""
    job, one = make_job(make_cluster(1)), make_config()
    many = make_config(dp=32)
    rates = DEFAULT_STACK.with_constants({"straggling": 0.02, "micro_batch_s": 1e-3, "iteration_s": 0.5})
    plain, slower = stage_compute(job, many), stage_compute(job, many, rates)
    hosts = 32 / job.cluster.gpus_per_node
    np.testing.assert_allclose(slower.forward_s, plain.forward_s * (1 + 0.02 * np.log2(hosts)) + 0.5e-3)
    assert slower.optimizer_s == pytest.approx(plain.optimizer_s + 0.5)
    np.testing.assert_allclose(stage_compute(job, one, rates).forward_s, stage_compute(job, one).forward_s + 0.5e-3)


@pytest.mark.parametrize(("gpus_per_node", "threads"), [(8, 8), (4, 8 + 2 * 2), (2, 8 + 2 * 4)])
def test_a_ring_waits_for_its_ranks_and_for_the_proxies_of_each_of_its_hosts(gpus_per_node: int, threads: int) -> None:
    """In a pipeline over hosts: eight tensor ranks on one, two and four hosts; two all-reduces in a pass."""
    job = make_job(make_cluster(16 // gpus_per_node, gpus=gpus_per_node))
    slow = DEFAULT_STACK.with_constants({"host_kernel_s": 1e-3})
    pipeline = make_config(tp=8, pp=2)
    for proxies, expected in ((2.0, threads), (0.0, 8)):
        waiting = replace(slow, pipelined_wait_s=1e-4, proxy_threads=proxies)
        extra = layer_times_s(job, pipeline, A100_80, waiting)[0] - layer_times_s(job, pipeline, A100_80, slow)[0]
        assert extra == pytest.approx(2 * expected * 1e-4, rel=1e-3)
    alone = make_config(tp=8)
    assert layer_times_s(job, alone, A100_80, waiting) == layer_times_s(job, alone, A100_80, slow)


def test_layers_in_16_bits_at_the_ends() -> None:
    """A quarter of the layers: a quarter of their time, spread over all; nothing without products in fewer bits."""
    h100 = read_gpu_entry("h100").gpu
    chosen = make_config(tp=1, dp=8, num_layers=32, sequence_parallel=False)

    def layer_s(*, fp8: bool, first: int = 0, last: int = 0) -> float:
        model = replace(LLAMA_8B, num_layers_at_start_in_bf16=first, num_layers_at_end_in_bf16=last)
        given = make_job(make_cluster(1), model, seq_length=4096)
        return sum(layer_times_s(replace(given, training=replace(given.training, fp8=fp8)), chosen, h100))

    narrow, wide = layer_s(fp8=True), layer_s(fp8=False)
    assert narrow < wide
    assert layer_s(fp8=False, first=3, last=5) == wide
    assert layer_s(fp8=True, first=3, last=5) == pytest.approx(0.75 * narrow + 0.25 * wide)


SLOW = replace(A100_80, name="slow", memory_bytes_per_s=A100_80.memory_bytes_per_s / 4, peak_flops={"bf16": 60e12})


@pytest.mark.parametrize("seed", range(10))
def test_hosts_that_idle_change_no_time(seed: int) -> None:
    """
    A job on hosts of one type takes equally long beside idle hosts of a slower and of a faster type.

    The optimizer step, and the waits and attention that hide messages, are those of the hosts in use.
    """
    rng = np.random.default_rng(seed)
    fast = replace(A100_80, name="fast", memory_bytes_per_s=8e12, peak_flops={"bf16": 1e15})
    kinds = (A100_80, SLOW, fast)
    links = rng.uniform(5.0, 25.0, (6, 6))
    mixed = make_cluster(6, links, gpus=4, kinds=kinds)
    model = replace(LLAMA_8B, num_layers=8)
    if seed % 2:
        model = replace(model, num_experts=4, moe_router_topk=2, moe_ffn_hidden_size=2048)
    tp, cp = ((1, 1), (1, 2), (2, 1))[int(rng.integers(3))]
    one = make_config(
        tp=tp,
        pp=2,
        dp=2,
        context_parallel_size=cp,
        use_distributed_optimizer=True,
        expert_model_parallel_size=int(rng.choice([1, 2])) if seed % 2 else 1,
    )
    number = int(np.ceil(one.world_size / 4))
    for kind in range(3):
        hosts = np.arange(kind, 6, 3)[:number]
        own = np.arange(kind, 6, 3)
        alone = make_cluster(2, links[np.ix_(own, own)], gpus=4, kinds=kinds[kind : kind + 1])
        found, expected = (
            estimate(
                make_job(cluster, model, seq_length=2048), one, identity_placement(one, 4, nodes, "tp-cp-ep-dp-pp")
            )
            for cluster, nodes in ((mixed, hosts), (alone, np.arange(number)))
        )
        assert found.iteration_time_s == pytest.approx(expected.iteration_time_s, rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_forced_types_by_brute_force(seed: int) -> None:
    """The fastest slowest type of any choice of hosts is the fastest of those that every choice has."""
    rng = np.random.default_rng(seed)
    kinds = tuple(replace(A100_80, name=f"kind {number}") for number in range(int(rng.integers(1, 4))))
    cluster = make_cluster(6, gpus=1, kinds=kinds)
    nodes = tuple(replace(node, gpu=kinds[int(rng.integers(len(kinds)))]) for node in cluster.nodes)
    cluster = replace(cluster, nodes=nodes)
    seconds = rng.uniform(1.0, 2.0, len(cluster.gpu_kinds))
    for num_hosts in range(1, 7):
        slowest = [seconds[cluster.kind_of_node[list(hosts)]].max() for hosts in combinations(range(6), num_hosts)]
        forced = forced_kinds(cluster, num_hosts, seconds)
        assert seconds[forced].min() == min(slowest)
        assert all(set(forced) & set(cluster.kind_of_node[list(hosts)]) for hosts in combinations(range(6), num_hosts))


@pytest.mark.parametrize("seed", range(10))
def test_bounds_hold_for_any_types_in_use(seed: int) -> None:
    """Random hosts of three types, of which some idle: work and ticks stay below the simulator."""
    rng = np.random.default_rng(seed)
    fast = replace(A100_80, name="fast", memory_bytes_per_s=8e12, peak_flops={"bf16": 1e15})
    cluster = make_cluster(6, rng.uniform(5.0, 25.0, (6, 6)), gpus=2, kinds=(A100_80, SLOW, fast))
    job = make_job(cluster, replace(LLAMA_8B, num_layers=8), seq_length=2048)
    one = make_config(
        tp=2, pp=int(rng.choice([1, 2])), dp=2, use_distributed_optimizer=True, overlap_grad_reduce=seed % 2 == 0
    )
    need = np.full(one.pipeline_model_parallel_size, 1 << 30)
    fitting = [FittingCandidate(config=one, need_bytes=need)]
    problem = build_problem_data(job, fitting, np.full(6, 1 << 36))
    for candidate in problem.candidates:
        for _ in range(5):
            nodes = rng.permutation(6)[: candidate.num_cells].reshape(candidate.grid)
            seconds = estimate(job, one, tile_placement(one, candidate.tile, nodes)).iteration_time_s
            assert objective_ticks(problem, candidate, nodes) * problem.tick_s <= seconds
            assert WorkBounds(job)(one) <= seconds
