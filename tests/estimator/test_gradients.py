"""Reductions, tied embeddings and parameter gathers around the schedule."""

from dataclasses import replace

import numpy as np
import pytest
from pipelines import pipeline, random_pipeline

from pipette_opt.costs.placed import placed_times
from pipette_opt.estimator import estimate, judge_times, lower_s, upper_s
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.specs import ClusterSpec, GpuSpec, Instance, LinkMatrix, ModelSpec, NodeSpec, TrainingSpec

GPU = GpuSpec(name="a", memory_bytes=80 * 10**9, peak_flops={"bf16": 300e12}, memory_bytes_per_s=2e12)


def test_buckets_overlap_the_last_backward() -> None:
    """
    One stage, two micro-batches, f = 1, b = 2, a reduction of 3 s.

    After the last backward: 6 + 3. In two buckets: the first is ready at 5 and reduced at 6.5, the second at 8. In many
    small ones the reduction runs from 4 on.
    """
    times = pipeline([1.0], [2.0], reduction=[3.0])
    assert judge_times(times, 2, "async").iteration_time_s == 9.0
    assert judge_times(replace(times, reduction_buckets=1), 2, "async").iteration_time_s == 9.0
    assert judge_times(replace(times, reduction_buckets=2), 2, "async").iteration_time_s == 8.0
    assert judge_times(replace(times, reduction_buckets=3000), 2, "async").iteration_time_s == pytest.approx(
        7, abs=1e-3
    )


def test_a_short_reduction_leaves_its_last_bucket() -> None:
    """A reduction that hides behind the backward shows its last bucket only."""
    times = replace(pipeline([1.0], [2.0], reduction=[0.4]), reduction_buckets=4)
    assert judge_times(times, 2, "async").iteration_time_s == pytest.approx(6 + 0.1)


def test_chunks_are_reduced_when_they_are_done() -> None:
    """Two stages of two chunks: the second chunk's gradients are reduced while the first chunk still works."""
    chunk = np.ones((2, 2, 1))
    times = pipeline(chunk, chunk, reduction=[2.0, 2.0])
    one, two = (judge_times(replace(times, reduction_buckets=k), 4, "async").iteration_time_s for k in (0, 1))
    assert one == two + 1.0


def test_the_slowest_replica_holds_each_bucket() -> None:
    """A bucket is reduced when its slowest replica has it."""
    forward = np.array([[[1.0, 5.0]]])
    times = replace(pipeline(forward, forward, reduction=[2.0]), reduction_buckets=2)
    # The second replica's only backward runs from 5 to 10: buckets at 7.5 and 10.
    assert judge_times(times, 1, "async").iteration_time_s == 11.0


def test_embedding_joins_the_first_and_the_last_stage() -> None:
    """Three stages: the last one is reduced late, so the first waits for it; the middle stage does not."""
    times = replace(pipeline([1.0] * 3, [2.0] * 3, reduction=[0.0, 0.0, 9.0]), embedding_s=0.5)
    judged = judge_times(times, 4, "async")
    assert judged.iteration_time_s == (4 + 2) * 3 - 4 + 9 + 0.5
    assert sum(judged.breakdown.values()) == pytest.approx(judged.iteration_time_s)
    middle = replace(times, reduction_s=np.array([0.0, 90.0, 0.0]))
    assert judge_times(middle, 4, "async").iteration_time_s == (4 + 2) * 3 - 2 + 90


def test_gather_before_or_beside_the_forwards() -> None:
    """
    A gather of 2 s: before the forwards it adds 2; in four pieces it holds the first forward back.

    Its last piece is there at 2, and a quarter of the first forward (0.25) follows it: 1.25 late.
    """
    times = replace(pipeline([1.0], [2.0]), gather_s=np.array([2.0]))
    assert judge_times(times, 4, "async").iteration_time_s == 14.0
    assert judge_times(replace(times, gather_buckets=4), 4, "async").iteration_time_s == 13.25
    small = replace(times, gather_s=np.array([0.5]), gather_buckets=4)
    assert judge_times(small, 4, "async").iteration_time_s == 12.0


def test_late_stages_gather_while_they_wait() -> None:
    """A gather beside the forwards costs a later stage nothing if it ends before its first input is there."""
    times = replace(pipeline([1.0] * 3, [2.0] * 3), gather_s=np.array([0.0, 0.0, 2.0]), gather_buckets=2)
    assert judge_times(times, 4, "async").iteration_time_s == 18.0


@pytest.mark.parametrize("seed", range(40))
def test_forms_enclose_the_judge(seed: int) -> None:
    """Upper and lower form hold whatever is overlapped."""
    rng = np.random.default_rng(seed)
    pp, m = int(rng.integers(1, 6)), int(rng.integers(1, 12))
    kind = ["near", "uneven", "wild", "binary"][seed % 4]
    times = replace(
        random_pipeline(rng, kind, pp, 3),
        reduction_s=rng.uniform(0, 5, pp),
        reduction_buckets=int(rng.integers(0, 4)),
        gather_s=rng.uniform(0, 3, pp),
        gather_buckets=int(rng.integers(0, 4)),
        embedding_s=float(rng.uniform(0, 2)) if pp > 1 else 0.0,
        optimizer_s=0.5,
    )
    for p2p in ("blocking", "async"):
        judged = judge_times(times, m, p2p)
        assert lower_s(times, m, p2p) - 1e-9 <= judged.iteration_time_s <= upper_s(times, m, p2p) + 1e-9
        assert sum(judged.breakdown.values()) == pytest.approx(judged.iteration_time_s)
        assert min(judged.breakdown.values()) >= -1e-9


@pytest.fixture
def instance() -> Instance:
    """A small tied model on three hosts of two GPUs; the link from the last host to the first is slow."""
    bandwidth = np.full((3, 3), 1e10)
    bandwidth[2, 0] = 1e9
    model = ModelSpec(
        name="small",
        num_layers=3,
        hidden_size=512,
        ffn_hidden_size=2048,
        num_attention_heads=8,
        num_query_groups=8,
        kv_channels=64,
        vocab_size=1000,
        max_position_embeddings=512,
    )
    cluster = ClusterSpec(
        name="three",
        nodes=tuple(NodeSpec(host=f"n{i}", gpu=GPU, num_gpus=2) for i in range(3)),
        intra_node_bytes_per_s=2e11,
        link_matrices=(
            LinkMatrix(concurrent_flows=1, bytes_per_s=bandwidth),
            LinkMatrix(concurrent_flows=2, bytes_per_s=bandwidth),
        ),
    )
    return Instance(model=model, cluster=cluster, training=TrainingSpec(global_batch_size=8, seq_length=512))


def _placed(instance: Instance, hosts: list[int]) -> float:
    """Embedding time of three stages of two tensor ranks on the given hosts."""
    config = ParallelConfig(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=3,
        data_parallel_size=1,
        micro_batch_size=1,
        layers_per_stage=(1, 1, 1),
    )
    placement = Placement(order="tp-cp-ep-dp-pp", node=np.repeat(hosts, 2), local_rank=np.tile([0, 1], 3))
    return placed_times(instance, config, placement).embedding_s


def test_embedding_time_by_hand(instance: Instance) -> None:
    """
    Two tensor ranks each reduce half of 1024 x 512 fp32 gradients over the pair, sharing its bandwidth.

    The slower direction counts: between n2 and n0 1e9 B/s, halved by two rings.
    """
    half = 1024 / 2 * 512 * 4
    latency = 2 * instance.cluster.inter_node_latency_s
    assert _placed(instance, [0, 1, 2]) == pytest.approx(half / (1e9 / 2) + latency)
    assert _placed(instance, [0, 2, 1]) == pytest.approx(half / (1e10 / 2) + latency)


def test_no_embedding_time(instance: Instance) -> None:
    """Untied models have none."""
    untied = replace(instance, model=replace(instance.model, untie_embeddings_and_output_weights=True))
    assert _placed(untied, [0, 1, 2]) == 0.0


def test_unmeasured_embedding_link_counts_as_the_slowest(instance: Instance) -> None:
    """Stages 0 and 2 have no measured link: the slowest measured one stands in, and the plan is not refused."""
    matrices = []
    for matrix in instance.cluster.link_matrices:
        bandwidth = matrix.bytes_per_s.copy()
        bandwidth[0, 2] = np.nan
        matrices.append(LinkMatrix(concurrent_flows=matrix.concurrent_flows, bytes_per_s=bandwidth))
    holes = replace(instance, cluster=replace(instance.cluster, link_matrices=tuple(matrices)))
    assert _placed(holes, [0, 1, 2]) == _placed(instance, [0, 1, 2])


def test_estimate_with_a_schedule(instance: Instance) -> None:
    """A schedule can be given: ZB-H1 is faster than 1F1B on equal stages with hidden sends."""
    from pipette_opt.estimator.orders import named_schedule
    from pipette_opt.parallel import identity_placement

    config = ParallelConfig(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=3,
        data_parallel_size=1,
        micro_batch_size=1,
        layers_per_stage=(1, 1, 1),
    )
    placement = identity_placement(config, 2, np.arange(3), "tp-cp-ep-dp-pp")
    hidden = replace(instance, p2p="async")
    plain = estimate(hidden, config, placement)
    zero = estimate(hidden, config, placement, named_schedule("zb-h1", 3, 8))
    assert zero.iteration_time_s < plain.iteration_time_s
