from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from pipelines import pipeline, random_pipeline

from pipette_opt.costs.placed import placed_times
from pipette_opt.errors import InputError
from pipette_opt.estimator import critical_path, estimate, judge_times
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement
from pipette_opt.specs import ClusterSpec, GpuSpec, Instance, LinkMatrix, ModelSpec, NodeSpec, TrainingSpec
from pipette_opt.types import P2PMode

CAUSES = {"compute", "tensor_parallel", "bubble", "pipeline_parallel", "data_parallel", "optimizer"}
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


@pytest.mark.parametrize(("num_chunks", "p2p"), list(product([1, 2], ["blocking", "async"])))
@pytest.mark.parametrize("kind", ["equal", "near", "uneven", "wild", "binary"])
def test_breakdown_adds_up(num_chunks: int, p2p: P2PMode, kind: str) -> None:
    """The causes are non-negative and add up to the iteration time, whatever the pipeline."""
    rng = np.random.default_rng(5)
    for num_stages in range(2, 8):
        plain = random_pipeline(rng, kind, num_stages, 4, num_chunks)
        times = pipeline(
            plain.forward_s,
            plain.backward_s,
            plain.send_forward_s,
            plain.send_backward_s,
            rng.uniform(0, 5, num_stages),
            0.25,
        )
        m = num_stages * int(rng.integers(1, 4))
        judged = judge_times(times, m, p2p)
        assert set(judged.breakdown) == CAUSES
        assert min(judged.breakdown.values()) >= -1e-9
        assert sum(judged.breakdown.values()) == pytest.approx(judged.iteration_time_s, rel=1e-12)
        stage, replica = judged.critical_stage, judged.critical_replica
        work = m * (times.forward_s + times.backward_s)[:, stage, replica].sum()
        own = judged.breakdown["compute"] + judged.breakdown["tensor_parallel"]
        assert own == pytest.approx(work, rel=1e-9, abs=1e-9)


def test_breakdown_by_hand() -> None:
    """
    The two-stage example of the critical path: 9 s in blocking mode, of which stage 0 works 4.

    With free transfers it takes ``(m + pp - 1) (f + b)`` = 6, so 2 of bubble; the transfers add 3.
    """
    times = pipeline([1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.5, 1.0], 0.125)
    judged = judge_times(times, 2, "blocking")
    assert (judged.critical_stage, judged.critical_replica) == (0, 0)
    assert judged.breakdown == pytest.approx(
        {
            "compute": 3.6,
            "tensor_parallel": 0.4,
            "bubble": 2.0,
            "pipeline_parallel": 3.0,
            "data_parallel": 0.5,
            "optimizer": 0.125,
        }
    )
    assert judged.iteration_time_s == 9.625


def test_slow_reduction_makes_another_stage_last() -> None:
    """Stage 1 ends two seconds earlier, but its reduction takes three longer."""
    times = pipeline([1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.5, 3.5])
    judged = judge_times(times, 2, "blocking")
    assert judged.critical_stage == 1
    assert judged.iteration_time_s == 7.0 + 3.5


def test_slowest_replica_decides() -> None:
    """The reduction waits for all replicas: one slow one holds up the iteration."""
    forward = np.ones((1, 2, 3))
    forward[0, 0, 1] = 2.0
    times = pipeline(forward, np.ones((1, 2, 3)))
    judged = judge_times(times, 4, "async")
    assert judged.critical_replica == 1
    assert judged.iteration_time_s == critical_path(times, 4, "async")[0, 1]


def test_estimate(instance: Instance, config: ParallelConfig) -> None:
    """Throughput and utilisation follow from the iteration time, the batch and the GPUs used."""
    result = estimate(instance, config, on(config, 0, 2))
    times = placed_times(instance, config, on(config, 0, 2))
    assert result.iteration_time_s == judge_times(times, 8, "blocking").iteration_time_s
    assert result.tokens_per_s == pytest.approx(16 * 512 / result.iteration_time_s)
    assert result.tokens_per_s_per_gpu == pytest.approx(result.tokens_per_s / 4)
    peak = 2 * 300e12 + 2 * 100e12
    flops = instance.model.flops_per_token(512) * 16 * 512
    assert result.mfu == pytest.approx(flops / result.iteration_time_s / peak)
    assert 0 < result.mfu < 1
    assert sum(result.breakdown.values()) == pytest.approx(result.iteration_time_s)


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
