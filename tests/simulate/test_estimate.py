from dataclasses import replace

import numpy as np
import pytest
from factories import TINY, make_cluster, make_config, make_job
from pipelines import pipeline

from pipette_opt.base.errors import InputError
from pipette_opt.costs.placed import placed_times
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement
from pipette_opt.read.model import read_model
from pipette_opt.simulate.critical_path import critical_path
from pipette_opt.simulate.estimate import estimate, simulate_times
from pipette_opt.specs import (
    ClusterSpec,
    GpuSpec,
    Instance,
    LinkMatrix,
    ModelSpec,
    NodeSpec,
    SparseAttention,
    TrainingSpec,
)

FAST = GpuSpec(name="fast", memory_bytes=80 * 10**9, peak_flops={"bf16": 300e12}, memory_bytes_per_s=2e12)
SLOW = GpuSpec(name="slow", memory_bytes=40 * 10**9, peak_flops={"bf16": 100e12}, memory_bytes_per_s=1e12)


@pytest.fixture
def instance() -> Instance:
    """A small GPT on three hosts of two GPUs, the last host slower."""
    model = ModelSpec(
        name="small",
        num_layers=4,
        hidden_size=512,
        ffn_hidden_size=2048,
        num_attention_heads=8,
        num_query_groups=8,
        kv_channels=64,
        vocab_size=1024,
        max_position_embeddings=512,
    )
    cluster = ClusterSpec(
        name="three",
        nodes=tuple(NodeSpec(host=f"n{i}", gpu=gpu, num_gpus=2) for i, gpu in enumerate((FAST, FAST, SLOW))),
        intra_node_bytes_per_s=2e11,
        link_matrices=(LinkMatrix(concurrent_flows=1, bytes_per_s=np.full((3, 3), 1e10)),),
    )
    return Instance(model=model, cluster=cluster, training=TrainingSpec(global_batch_size=16, seq_length=512))


@pytest.fixture
def config() -> ParallelConfig:
    """Two stages of two tensor ranks."""
    return ParallelConfig(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        data_parallel_size=1,
        micro_batch_size=2,
        layers_per_stage=(2, 2),
    )


def on(config: ParallelConfig, *nodes: int) -> Placement:
    """Ranks in order on the given hosts."""
    return identity_placement(config, 2, np.array(nodes), "tp-cp-ep-dp-pp")


def test_slow_reduction_makes_another_stage_last() -> None:
    """Stage 1 ends two seconds earlier, but its reduction takes three longer."""
    times = pipeline([1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.5, 3.5])
    simulated = simulate_times(times, 2, "blocking")
    assert simulated.critical_stage == 1
    assert simulated.iteration_time_s == 7.0 + 3.5


def test_slowest_replica_decides() -> None:
    """The reduction waits for all replicas: one slow one holds up the iteration."""
    forward = np.ones((1, 2, 3))
    forward[0, 0, 1] = 2.0
    times = pipeline(forward, np.ones((1, 2, 3)))
    simulated = simulate_times(times, 4, "async")
    assert simulated.critical_replica == 1
    assert simulated.iteration_time_s == critical_path(times, 4, "async")[0, 1]


def test_estimate(instance: Instance, config: ParallelConfig) -> None:
    """Throughput and utilisation follow from the iteration time, the batch and the GPUs used."""
    result = estimate(instance, config, on(config, 0, 2))
    times = placed_times(instance, config, on(config, 0, 2))
    assert result.iteration_time_s == simulate_times(times, 8, "blocking").iteration_time_s
    assert result.tokens_per_s == pytest.approx(16 * 512 / result.iteration_time_s)
    assert result.tokens_per_s_per_gpu == pytest.approx(result.tokens_per_s / 4)
    peak = 2 * 300e12 + 2 * 100e12
    flops = instance.model.flops_per_token(512) * 16 * 512
    assert result.mfu == pytest.approx(flops / result.iteration_time_s / peak)
    assert 0 < result.mfu < 1
    assert result.hfu == pytest.approx(result.mfu)
    for causes in (result.breakdown, result.critical_path):
        assert sum(causes.values()) == pytest.approx(result.iteration_time_s)


def test_executed_flops_by_hand(config: ParallelConfig) -> None:
    """
    Of 8 layers of width h with 12 h^2 weights, half see 448 of 2,048 tokens and half 1,024, 12 h FLOPs for each seen.

    Unfused kernels compute all 2,048 scores. Recomputing the attention core adds 4 of its 12, whole layers also 2 of 6.
    """
    model = replace(TINY, window_size=(511, 0), window_attn_skip_freq=2)
    h, head, weights = 1024, 6 * 1024 * 50257, 8 * 12 * 1024**2
    config = replace(config, layers_per_stage=(4, 4))
    seen, all_tokens = 4 * (448 + 1024) * h, 8 * 2048 * h
    for kernel, recompute, expected in (
        ("flash", None, 6 * weights + 12 * seen),
        ("unfused", None, 6 * weights + 12 * all_tokens),
        ("flash", "selective", 6 * weights + 16 * seen),
        ("flash", "full", 8 * weights + 16 * seen),
    ):
        job = make_job(make_cluster(2, gpus=2), model, 16, 2048)
        job = replace(job, training=replace(job.training, attention_kernel=kernel))
        result = estimate(job, replace(config, recompute_granularity=recompute), on(config, 0, 1))
        flops = 6 * weights + 12 * seen + head
        assert result.hfu is not None
        assert result.hfu / result.mfu == pytest.approx((expected + head) / flops)


@pytest.mark.parametrize("seed", range(30))
def test_hardware_utilisation_is_between_that_of_the_model_and_one(seed: int) -> None:
    """Random windows, indexers, lengths and recomputation: kernels compute what the model needs, below the peak."""
    rng = np.random.default_rng(seed)
    name = str(rng.choice(["llama-3-8b", "gemma-3-27b", "deepseek-v3", "llama-4-scout", "qwen3-next-80b-a3b"]))
    model = read_model(name)
    if name == "deepseek-v3" and rng.random() < 0.7:
        model = replace(model, sparse_attention=SparseAttention(topk=int(rng.choice([512, 2048]))))
    job = make_job(make_cluster(1), model, 8, int(2 ** rng.integers(11, 18)))
    kernel = "flash" if model.sparse_attention else str(rng.choice(["flash", "unfused"]))
    job = replace(job, training=replace(job.training, attention_kernel=kernel))
    one = make_config(tp=8, num_layers=model.num_layers, recompute_granularity=rng.choice([None, "selective", "full"]))
    result = estimate(job, one, identity_placement(one, 8, np.arange(1), "tp-cp-ep-dp-pp"))
    assert result.hfu is not None
    assert result.mfu * (1 - 1e-9) <= result.hfu < 1


def test_utilisation_is_below_the_share_of_compute(instance: Instance) -> None:
    """
    A deep pipeline with few micro-batches idles half of the time, and no rank computes above the peak.

    So bubble and MFU cannot add up to more than 1; that of one stage, once shown, could.
    """
    deep = replace(instance, model=replace(instance.model, num_layers=8, hidden_size=4096, ffn_hidden_size=16384))
    nodes = tuple(NodeSpec(host=f"n{index}", gpu=FAST, num_gpus=2) for index in range(4))
    links = (LinkMatrix(concurrent_flows=1, bytes_per_s=np.full((4, 4), 1e11)),)
    deep = replace(deep, cluster=replace(deep.cluster, nodes=nodes, link_matrices=links))
    config = ParallelConfig(
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=8,
        data_parallel_size=1,
        micro_batch_size=2,
        layers_per_stage=(1,) * 8,
    )
    found = estimate(deep, config, on(config, 0, 1, 2, 3))
    assert found.breakdown["bubble"] / found.iteration_time_s == pytest.approx(7 / 15, abs=0.05)
    assert found.mfu < found.breakdown["compute"] / found.iteration_time_s
    assert found.critical_path["bubble"] == 0.0


def test_estimate_prefers_fast_hosts_and_hidden_sends(instance: Instance, config: ParallelConfig) -> None:
    """A slower host makes the iteration longer; sends that are hidden do not."""
    fast = estimate(instance, config, on(config, 0, 1)).iteration_time_s
    assert estimate(instance, config, on(config, 0, 2)).iteration_time_s > fast
    assert estimate(replace(instance, p2p="async"), config, on(config, 0, 1)).iteration_time_s < fast


def test_estimate_refuses_a_broken_batch(instance: Instance, config: ParallelConfig) -> None:
    """A batch that does not divide is the user's error, with the numbers."""
    training = replace(instance.training, global_batch_size=7)
    with pytest.raises(InputError, match="global_batch_size=7"):
        estimate(replace(instance, training=training), config, on(config, 0, 1))


def test_estimate_needs_a_peak(instance: Instance, config: ParallelConfig) -> None:
    """A GPU without a peak for the precision is the user's error; one that is not used is not."""
    other = replace(SLOW, name="other", peak_flops={"fp16": 1e14})
    nodes = (*instance.cluster.nodes[:2], replace(instance.cluster.nodes[2], gpu=other))
    changed = replace(instance, cluster=replace(instance.cluster, nodes=nodes))
    assert estimate(changed, config, on(config, 0, 1)).mfu > 0
    with pytest.raises(InputError, match=r"other.*bf16"):
        estimate(changed, config, on(config, 0, 2))
