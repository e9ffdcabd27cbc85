"""Reductions, tied embeddings and parameter gathers around the schedule."""

from dataclasses import replace

import numpy as np
import pytest
from pipelines import causes, pipeline, random_pipeline

from pipette_opt.costs.overlap import exposed
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.times import PlacedBatch, PlacedTimes
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.simulate.critical_path import Walked, walk
from pipette_opt.simulate.estimate import estimate, reduction_ends, simulate_times
from pipette_opt.specs import ClusterSpec, GpuSpec, Instance, LinkMatrix, ModelSpec, NodeSpec, TrainingSpec

GPU = GpuSpec(name="a", memory_bytes=80 * 10**9, peak_flops={"bf16": 300e12}, memory_bytes_per_s=2e12)


def bucketed(times: PlacedTimes, *buckets: int) -> PlacedTimes:
    """The same with reductions in so many pieces beside the last backwards of the stages."""
    return replace(times, reduction_buckets=np.array(buckets))


def test_buckets_overlap_the_last_backward() -> None:
    """
    One stage, two micro-batches, f = 1, b = 2, a reduction of 3 s.

    After the last backward: 6 + 3. In two buckets: the first is ready at 5 and reduced at 6.5, the second at 8. In many
    small ones the reduction runs from 4 on.
    """
    times = pipeline([1.0], [2.0], reduction=[3.0])
    assert simulate_times(times, 2, "async").iteration_time_s == 9.0
    assert simulate_times(bucketed(times, 1), 2, "async").iteration_time_s == 9.0
    assert simulate_times(bucketed(times, 2), 2, "async").iteration_time_s == 8.0
    assert simulate_times(bucketed(times, 3000), 2, "async").iteration_time_s == pytest.approx(7, abs=1e-3)


def test_a_short_reduction_leaves_its_last_bucket() -> None:
    """A reduction that hides behind the backward shows its last bucket only."""
    times = bucketed(pipeline([1.0], [2.0], reduction=[0.4]), 4)
    assert simulate_times(times, 2, "async").iteration_time_s == pytest.approx(6 + 0.1)


def test_chunks_are_reduced_by_their_layers() -> None:
    """
    Two stages of two chunks, all operations 1 s; chunk 0 has 3/4 of the layers of stage 0, and 1/4 of stage 1's.

    Of 2 s stage 0 reduces the last 1.5 s after its last backward; stage 1 the last 0.5 s, but its second chunk's 1.5 s
    begin only 1 s before that backward ends.
    """
    chunk = np.ones((2, 2, 1))
    times = pipeline(chunk, chunk, reduction=[2.0, 2.0])
    shares = np.array([[0.75, 0.25], [0.25, 0.75]])
    unequal = replace(bucketed(times, 1, 1), reduction_shares=shares)
    walked = walk(times, 4, "async")
    batch, one = PlacedBatch.of(unequal), Walked(walked.launch_s[None], walked.finish_s[None])
    first, last = reduction_ends(batch, one)[:, 0]
    np.testing.assert_allclose(first, walked.launch_s[1, :, 0] + [0.5, 1.5])
    np.testing.assert_allclose(last - walked.finish_s[:, 0], [1.5, 1.0])


@pytest.mark.parametrize("seed", range(20))
def test_buckets_one_by_one(seed: int) -> None:
    """The closed form of the last bucket's end is what a simulation of all buckets gives."""
    rng = np.random.default_rng(seed)
    backward, whole, buckets = rng.uniform(1, 3, 3), float(rng.uniform(0, 6)), int(rng.integers(1, 9))
    times = bucketed(pipeline(np.ones((1, 1, 3)), backward[None, None], reduction=[whole]), buckets)
    finish = 2 * (1 + backward)
    end = 0.0
    for bucket in range(1, buckets + 1):
        ready = (finish - (1 - bucket / buckets) * backward).max()
        end = max(end, ready) + whole / buckets
    assert simulate_times(times, 2, "async").iteration_time_s == pytest.approx(end)


def test_chunks_are_reduced_when_they_are_done() -> None:
    """
    Two stages of two chunks, all operations 1 s: 4 micro-batches end with B2.1 B3.1 B2.0 B3.0 on both stages.

    Stage 0 reduces chunk 1 (1 s) beside B2.0; stage 1 one backward later; only chunk 0's second is left.
    """
    chunk = np.ones((2, 2, 1))
    times = pipeline(chunk, chunk, reduction=[2.0, 2.0])
    after, beside = (simulate_times(one, 4, "async").iteration_time_s for one in (times, bucketed(times, 1, 1)))
    assert after == beside + 1.0
    walked = walk(times, 4, "async")
    # B3.1 of stage 0 is followed by B2.0 and B3.0; stage 1 waits for one backward more.
    assert walked.finish_s[0, 0] - walked.launch_s[1, 0, 0] == 2.0
    assert walked.launch_s[1, 1, 0] == walked.finish_s[1, 0] - 1.0


def test_the_slowest_replica_holds_each_bucket() -> None:
    """A bucket is reduced when its slowest replica has it."""
    forward = np.array([[[1.0, 5.0]]])
    times = bucketed(pipeline(forward, forward, reduction=[2.0]), 2)
    # The second replica's only backward runs from 5 to 10: buckets at 7.5 and 10.
    assert simulate_times(times, 1, "async").iteration_time_s == 11.0


def test_embedding_joins_the_first_and_the_last_stage() -> None:
    """Three stages: the last one is reduced late, so the first waits for it; the middle stage does not."""
    times = replace(pipeline([1.0] * 3, [2.0] * 3, reduction=[0.0, 0.0, 9.0]), embedding_s=0.5)
    simulated = simulate_times(times, 4, "async")
    assert simulated.iteration_time_s == (4 + 2) * 3 - 4 + 9 + 0.5
    # The last stage, which is late, decides: its path has the reduction, and the first one waits.
    found = causes(times, 4, "async")
    assert found.critical_path["data_parallel"] == 9.5
    assert found.pipeline["data_parallel"] == pytest.approx((9 + 2 * 0.5) / 3)
    middle = replace(times, reduction_s=np.array([0.0, 90.0, 0.0]))
    assert simulate_times(middle, 4, "async").iteration_time_s == (4 + 2) * 3 - 2 + 90


def overlapped(times: PlacedTimes, buckets: list[int], gather: list[float], slowdown: float = 0.0) -> PlacedTimes:
    """The same with gradients and parameters sent beside compute, as ``costs/overlap.py`` does it."""
    one = PlacedBatch.of(replace(times, gather_s=np.array(gather)))
    found = exposed(np.array([buckets]), one.forward_s, one.backward_s, one.reduction_s, one.gather_s, slowdown)
    return replace(one, **found._asdict()).one(0)


def test_the_first_stage_works_on_the_parameters_it_has() -> None:
    """
    A gather of 2 s in four buckets, forward 1 s: each bucket takes longer than a quarter of the forward.

    The last bucket is there at 2, and a quarter of the forward follows: 1.25 late. A gather of 0.5 s shows its first
    bucket only.
    """
    times = pipeline([1.0], [2.0])
    assert simulate_times(overlapped(times, [4], [2.0]), 4, "async").iteration_time_s == 13.25
    assert simulate_times(overlapped(times, [4], [0.5]), 4, "async").iteration_time_s == 12.125


def test_later_stages_wait_for_all_parameters_one_after_the_other() -> None:
    """Three equal stages gather 0.5 s each: later ones ask when their first input is there, so all waits add up."""
    times = pipeline([1.0] * 3, [2.0] * 3)
    assert simulate_times(overlapped(times, [1, 1, 1], [0.5] * 3), 4, "async").iteration_time_s == 18.0 + 1.5


def test_chunks_are_gathered_from_the_start() -> None:
    """
    Two stages of two chunks, forwards 1 s: a gather of 4 s brings chunk 0 at 2 and chunk 1 at 4.

    The first forward ends at 3 instead of 1; chunk 1's first one starts at 4, when the delay is in already.
    """
    chunk = np.ones((2, 2, 1))
    times = overlapped(pipeline(chunk, chunk), [1, 1], [4.0, 4.0])
    plain = simulate_times(pipeline(chunk, chunk), 4, "async").iteration_time_s
    assert simulate_times(times, 4, "async").iteration_time_s == plain + 2.0
    late = overlapped(pipeline(chunk, chunk), [1, 1], [1.0, 8.0])  # stage 1 has chunk 0 at 4, chunk 1 at 8
    assert simulate_times(late, 4, "async").iteration_time_s > plain + 2.0


def test_later_chunks_are_gathered_when_their_turn_comes() -> None:
    """
    Two stages of three chunks, forwards 1 s, gathers of 1 s a chunk: chunks 0 and 1 are there at 1 and 2.

    Chunk 2 is launched when the first forward of chunk 1 is ``rank`` forwards away: after two on stage 0, after one on
    stage 1, where the second gather ends later than that. A forward follows each arrival.
    """
    chunk = np.ones((3, 2, 1))
    times = overlapped(pipeline(chunk, chunk), [1, 1], [3.0, 3.0])
    assert times.ready_s is not None
    np.testing.assert_allclose(times.ready_s[:, 0, 0], [2.0, 3.0, 4.0])
    np.testing.assert_allclose(times.ready_s[:, 1, 0], [2.0, 3.0, 4.0])
    short = overlapped(pipeline(chunk, chunk), [1, 1], [0.3, 0.3])
    assert short.ready_s is not None
    np.testing.assert_allclose(short.ready_s[:, 0, 0], [1.1, 1.2, 2.0 + 0.1 + 1.0])
    np.testing.assert_allclose(short.ready_s[:, 1, 0], [1.1, 1.2, 1.0 + 0.1 + 1.0])


def test_compute_beside_collectives_is_slower() -> None:
    """
    One stage, f = 1, b = 2, four buckets of a reduction of 1 s and a gather of 1 s, slowdown of a tenth.

    Three quarters of both run beside compute: 0.075 s each; the first bucket of the gather and the last of the
    reduction are left.
    """
    times = overlapped(pipeline([1.0], [2.0], reduction=[1.0]), [4], [1.0], slowdown=0.1)
    simulated = simulate_times(times, 4, "async")
    assert simulated.iteration_time_s == pytest.approx(12 + 0.25 + 0.075 + 0.075 + 0.25)
    found = causes(times, 4, "async")
    assert found.pipeline == pytest.approx(found.critical_path)
    assert found.pipeline["data_parallel"] == pytest.approx(0.65)


@pytest.mark.parametrize("seed", range(40))
def test_causes_add_up_whatever_is_overlapped(seed: int) -> None:
    """Of random pipelines, on the pipeline and on the critical path."""
    rng = np.random.default_rng(seed)
    pp, m = int(rng.integers(1, 6)), int(rng.integers(1, 12))
    kind = ["near", "uneven", "wild", "binary"][seed % 4]
    plain = replace(
        random_pipeline(rng, kind, pp, 3),
        reduction_s=rng.uniform(0, 5, pp),
        embedding_s=float(rng.uniform(0, 2)) if pp > 1 else 0.0,
        optimizer_s=0.5,
    )
    buckets = [int(rng.integers(1, 5)), *[1] * (pp - 1)]
    times = overlapped(plain, buckets, rng.uniform(0, 3, pp).tolist(), float(rng.uniform(0, 1)))
    if seed % 3 == 0:
        times = bucketed(plain, *rng.integers(0, 4, pp))
    for p2p in ("blocking", "async"):
        causes(times, m, p2p)


@pytest.mark.parametrize("seed", range(10))
def test_equal_stages_by_a_formula(seed: int) -> None:
    """
    With equal stages and no transfers: every stage waits for all gathers; a later one ends earlier by its backwards.

    The first stage gathers and reduces in four buckets beside compute, which is slowed down.
    """
    rng = np.random.default_rng(seed)
    pp, m = int(rng.integers(1, 5)), int(rng.integers(4, 9))
    reduction, gather = (float(rng.uniform(0, 4)) for _ in range(2))
    slowdown, forward, backward, later = float(rng.uniform(0, 1)), 1.0, 2.0, 3 / 4
    plain = replace(pipeline([forward] * pp, [backward] * pp, reduction=[reduction] * pp))
    times = overlapped(plain, [4, *[1] * (pp - 1)], [gather] * pp, slowdown)
    slower = slowdown * later * min(reduction, backward)
    left = max(reduction / 4, reduction - later * (backward + slower)) + slower
    waits = gather / 4 + later * max(gather - forward, 0.0) + slowdown * later * min(gather, forward)
    work = (pp + m - 1) * (forward + backward) + (pp - 1) * gather
    expected = max(work + left + waits, *(work - backward * stage + reduction for stage in range(1, pp)), 0.0)
    assert simulate_times(times, m, "async").iteration_time_s == pytest.approx(expected)


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
    from pipette_opt.parallel import identity_placement
    from pipette_opt.simulate.orders import named_schedule

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
