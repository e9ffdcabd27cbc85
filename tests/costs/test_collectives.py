"""Collectives against hand counts."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, TINY, make_cluster, make_config, make_job, make_links, make_random_cluster

from pipette_opt.base.units import GB
from pipette_opt.costs.beside_products import beside_head
from pipette_opt.costs.collectives import (
    INSIDE_STEP,
    NO_TRAFFIC,
    OWN_PART,
    RingTraffic,
    all_reduce_traffic,
    beside_traffic,
    end_traffic,
    gather_traffic,
    gradient_traffic,
    tensor_traffic,
)
from pipette_opt.costs.compute import stage_compute
from pipette_opt.costs.links import EachLink, NoLinks, RingShape
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.costs.work import WorkBounds
from pipette_opt.parallel import host_tiles, identity_placement, tile_placement
from pipette_opt.problem.beside import chunk_seconds
from pipette_opt.read.model import read_model
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import DEFAULT_STACK, LayerKind, TrainingSpec


def test_ring_traffic() -> None:
    """Four ranks: an all-reduce moves 6/4 of the buffer over each hop, a gather 3/4; one rank moves nothing."""
    assert all_reduce_traffic(100.0, 4) == (150.0, 6, 1)
    assert gather_traffic(100.0, 4) == (75.0, 3, 1)
    assert all_reduce_traffic(100.0, 1) == (0.0, 0, 1)


def test_gradient_traffic() -> None:
    """All-reduce of fp32 gradients, or reduce-scatter of them and gather of bf16 parameters."""
    job = make_job(make_cluster(2))
    plain, sharded = make_config(pp=2, dp=8), make_config(pp=2, dp=8, use_distributed_optimizer=True)
    first = stage_parameters(TINY, plain).own[0]
    assert gradient_traffic(TINY, job.training, plain)[0].hop_bytes == pytest.approx(2 * 7 / 8 * first * 4)
    assert gradient_traffic(TINY, job.training, sharded)[0].hop_bytes == pytest.approx(7 / 8 * first * (4 + 2))


def test_stage_parameters() -> None:
    """Two stages of a tied model: both hold the vocabulary, the first the positions, the last the final norm."""
    h, vocabulary = 1024, 50304
    layer = 12 * h * h + 13 * h
    first, last = stage_parameters(TINY, make_config(pp=2)).own
    assert first == 4 * layer + vocabulary * h + 2048 * h
    assert last == 4 * layer + vocabulary * h + 2 * h
    assert stage_parameters(TINY, make_config()).own[0] == 8 * layer + vocabulary * h + 2048 * h + 2 * h


def test_tensor_traffic() -> None:
    """Two all-reduces of s b h forward, and again under full recomputation; those of gradients are beside products."""
    job = make_job(make_cluster(1), seq_length=1024)
    one = 2 * 3 / 4 * 1024 * 1024 * 2
    forward, backward = tensor_traffic(TINY, job.training, make_config(tp=4), LayerKind())
    assert (forward.hop_bytes, backward) == (2 * one, (0.0, 0, 0))
    again = tensor_traffic(TINY, job.training, make_config(tp=4, recompute_granularity="full"), LayerKind())[1]
    assert again == forward


def test_tensor_traffic_with_sequence_parallelism() -> None:
    """Two gathers and two scatters of s b h forward, two gathers backward, and of each product another of both."""
    training = make_job(make_cluster(1), seq_length=1024).training
    split = make_config(tp=4, sequence_parallel=True)
    gather = gather_traffic(1024 * 1024 * 2, 4)
    forward, backward = tensor_traffic(TINY, training, split, LayerKind())
    assert forward == tuple(4 * each for each in gather)
    assert backward == tuple(2 * each for each in gather)
    assert beside_traffic(TINY, training, split, 1024) == (gather, gather)
    assert beside_traffic(TINY, training, make_config(tp=4), 1024) == (
        NO_TRAFFIC,
        all_reduce_traffic(1024 * 1024 * 2, 4),
    )


def test_fp8_is_gathered_in_one_byte() -> None:
    """
    A gather of one byte and a scatter of two in place of two each; without sequence parallelism nothing changes.

    Exposed are gathers and scatters forward, and gathers backward; each product gathers and scatters beside itself. The
    head stays in 16 bits.
    """
    job = make_job(make_cluster(2)).training
    narrow = replace(job, fp8=True)
    for sequence_parallel, shares in ((True, (0.75, 0.5, 0.5, 1.0)), (False, (1.0, 1.0, 1.0, 1.0))):
        shape = make_config(tp=4, sequence_parallel=sequence_parallel)
        traffic = (
            (*tensor_traffic(TINY, one, shape, LayerKind()), *beside_traffic(TINY, one, shape, 1024))
            for one in (job, narrow)
        )
        for share, wide, one in zip(shares, *traffic, strict=True):
            assert one.hop_bytes == pytest.approx(share * wide.hop_bytes)
            assert (one.num_steps, one.num_calls) == (wide.num_steps, wide.num_calls)
        head = [beside_traffic(TINY, one, shape, 1024, is_wide=True) for one in (job, narrow)]
        assert head[0] == head[1]


def test_rings_share_a_host_pair() -> None:
    """Eight rings of one flow each get an eighth; one ring with eight members on the host gets it all."""
    spec = make_cluster(2, link_matrices=(make_links(10.0, 2, 1), make_links(80.0, 2, 8)))
    traffic = all_reduce_traffic(1e9, 2)
    assert EachLink(spec).ring_s(RingShape(1, 2, 8), traffic)[0, 1] == pytest.approx(1e9 / (10 * GB))
    assert EachLink(spec).ring_s(RingShape(8, 2, 8), traffic)[0, 1] == pytest.approx(1e9 / (80 * GB))


def test_a_ring_with_several_members_is_bound_by_the_fabric_too() -> None:
    """A fast network does not make the hops inside a host faster."""
    spec = make_cluster(2, 500.0)
    traffic = all_reduce_traffic(1e9, 16)
    assert EachLink(spec).ring_s(RingShape(8, 2, 8), traffic)[0, 1] == pytest.approx(
        NoLinks(spec).ring_s(RingShape(8), traffic)[0]
    )


def test_missing_links_stay_missing() -> None:
    """No measurement, no time."""
    values = np.full((3, 3), 10.0)
    values[0, 2] = np.nan
    times = EachLink(make_cluster(3, values)).ring_s(RingShape(1, 3), all_reduce_traffic(1.0, 3))
    assert np.isnan(times[0, 2])
    assert not np.isnan(times[2, 0])


def test_the_rate_of_a_ring_levels_off() -> None:
    """From 2 to 4,096 hosts the bytes over a hop double at most; what else grows are steps, in proportion."""
    spec = make_cluster(2, 10.0)

    def parts_s(num_hosts: int) -> tuple[float, float]:
        traffic = gather_traffic(1e9, num_hosts)
        times = EachLink(spec).ring_s(RingShape(1, num_hosts, 1), traffic)
        steps_s = (num_hosts - 1) * spec.inter_node_latency_s
        return float(times[0, 1]) - steps_s, steps_s

    (two, one_step), (many, steps) = parts_s(2), parts_s(4096)
    assert two == pytest.approx(0.05)
    assert many == pytest.approx(2 * two, rel=1e-3)
    assert steps == pytest.approx(4095 * one_step)


def test_steps_inside_hosts_cost_less() -> None:
    """Of 16 ranks on two hosts every eighth step crosses, and the others are an eighth of a message inside."""
    spec = make_cluster(2, 1e3)
    traffic = RingTraffic(0.0, 15)
    times = EachLink(spec).ring_s(RingShape(8, 2, 8), traffic)
    step = spec.inter_node_latency_s / 8 + 7 / 8 * spec.intra_node_latency_s / 8
    assert float(times[0, 1]) == pytest.approx(15 * step)
    assert NoLinks(spec).ring_s(RingShape(8), traffic) == pytest.approx(15 * spec.intra_node_latency_s / 8)


def test_start_up_of_collectives() -> None:
    """Each call starts once; steps cost a share of the latency."""
    job = make_job(make_cluster(1))
    stack = DEFAULT_STACK.with_constants({"collective_s": 1e-3})
    forward, _ = tensor_traffic(TINY, job.training, make_config(tp=4), LayerKind())
    expected = (
        2e-3
        + forward.num_steps * INSIDE_STEP * job.cluster.intra_node_latency_s
        + forward.hop_bytes * (1 + OWN_PART * 2 / forward.num_steps) / job.cluster.intra_node_bytes_per_s
    )
    assert NoLinks(job.cluster, stack).ring_s(RingShape(4), forward) == pytest.approx(expected)


def test_half_of_the_pieces_beside_products_is_hidden() -> None:
    """With user buffers half of three of four pieces of each gather and scatter; none without sequence parallelism."""
    given = make_job(make_cluster(1), LLAMA_8B).training
    beside = replace(given, tp_comm_overlap=True)
    for split, share in ((True, 1 - 0.5 * 3 / 4), (False, 1.0)):
        chosen = make_config(tp=4, num_layers=32, sequence_parallel=split)
        for plain, shown in zip(
            *(tensor_traffic(LLAMA_8B, one, chosen, LLAMA_8B.layers[0]) for one in (given, beside)), strict=True
        ):
            assert shown.hop_bytes == share * plain.hop_bytes
            assert (shown.num_steps, shown.num_calls) == (share * plain.num_steps, plain.num_calls)


HIDDEN = 2048 * 4096 * 2
"""Bytes of the hidden states of 2,048 tokens of Llama 3 8B."""


@pytest.mark.parametrize("tp", [2, 8])
def test_traffic_of_the_ends_by_hand(tp: int) -> None:
    """
    A gather each way at the embedding with sequence parallelism, else an all-reduce forward; the head gathers forward.

    Its backward messages are beside its products. The loss reduces three numbers of four bytes for each token. Learned
    positions are added before the scatter.
    """
    sent, none = (tp - 1) / tp, (0.0, 0, 0)
    gather, reduction = (sent * HIDDEN, tp - 1, 1), (2 * sent * HIDDEN, 2 * (tp - 1), 1)
    loss = (3 * 2 * sent * 4 * 2048, 3 * 2 * (tp - 1), 3)
    training, plain = TrainingSpec(global_batch_size=8, seq_length=2048), make_config(tp=tp, num_layers=32)
    split = replace(plain, sequence_parallel=True)
    whole, parts = (end_traffic(LLAMA_8B, training, each) for each in (plain, split))
    assert whole == (((none, none), (reduction, none)), ((none, none), (loss, none)))
    assert parts == (((gather, gather), (none, none)), ((gather, none), (loss, none)))
    learned = end_traffic(TINY, training, split).embedding
    less = TINY.hidden_size / LLAMA_8B.hidden_size
    assert learned == ((none, (less * gather[0], *gather[1:])), ((less * reduction[0], *reduction[1:]), none))


def test_each_depth_of_prediction_has_ends_of_its_own() -> None:
    """
    Forward, the head gathers once; the depth looks up, gathers two inputs of its projection and its output, and heads.

    So 1 + 1 + 2 + 1 + 1 hidden states in 5 calls; backward the mirror without both heads, whose messages are beside
    their products. Three all-reduces for each of two losses.
    """
    model = replace(LLAMA_8B, mtp_num_layers=1)
    job = make_job(make_cluster(1), model, seq_length=2048)
    config = make_config(tp=8, num_layers=32, sequence_parallel=True)
    gathers, reductions = end_traffic(model, job.training, config).head
    assert gathers == ((6 * 7 / 8 * HIDDEN, 5 * 7, 5), (4 * 7 / 8 * HIDDEN, 3 * 7, 3))
    assert reductions == ((6 * 2 * 7 / 8 * 4 * 2048, 6 * 14, 6), (0.0, 0, 0))
    gather = (7 / 8 * HIDDEN, 7, 1)
    assert [each.traffic for each in beside_head(job, config, [0])] == [gather] * 4


def test_first_and_last_stage_send_more_by_hand() -> None:
    """
    Of equal stages, the first adds a gather each way, 7/8 of 16 MiB and 0.42 of an own eighth at 200 GB/s; so the last.

    The last also has three small all-reduces forward, 14/8 of 8 KiB and an own eighth. Seven steps are an eighth of a
    message each, and an all-reduce has twice as many. Backward, the head's longer products hide two gathers, and are
    slowed down by an eighth of these.
    """
    job = make_job(make_cluster(1, gpus=24), LLAMA_8B, seq_length=2048)
    one = make_config(tp=8, pp=3, layers_per_stage=(10, 10, 10), sequence_parallel=True)
    job = replace(job, model=replace(LLAMA_8B, num_layers=30))
    times = placed_times(job, one, identity_placement(one, 24, np.arange(1), "tp-cp-ep-dp-pp"))
    step = job.cluster.intra_node_latency_s / 8
    gather = (7 + 0.42) / 8 * HIDDEN / (200 * GB) + 7 * step
    loss = 3 * ((14 + 0.42) / 8 * 4 * 2048 / (200 * GB) + 14 * step)
    hidden = 2 * 0.125 * gather
    for found, last in ((times.tensor_forward_s[0, :, 0], gather + loss), (times.tensor_backward_s[0, :, 0], hidden)):
        assert found - found[1] == pytest.approx([gather, 0.0, last])


@pytest.mark.parametrize("seed", range(20))
def test_bounds_count_the_ends_as_placed_ranks_do(seed: int) -> None:
    """Random groups in hosts and over them: equal times inside, no more over the best links, and no bound above."""
    rng = np.random.default_rng(seed)
    model = replace(read_model(str(rng.choice(["llama-3-8b", "gpt-3-1.3b"]))), num_layers=8)
    model = replace(model, mtp_num_layers=int(rng.integers(0, 3)) * (model.name == "llama-3-8b"))
    tp, pp, gpus = int(2 ** rng.integers(0, 4)), int(2 ** rng.integers(0, 3)), int(rng.choice([2, 4]))
    cluster = make_random_cluster(rng, 32, gpus=gpus, intra_node_bytes_per_s=float(rng.choice([10, 200])) * GB)
    job = make_job(cluster, model, seq_length=2048)
    one = make_config(tp=tp, pp=pp, dp=2, sequence_parallel=bool(tp > 1 and rng.random() < 0.5))
    for tile in host_tiles(one, gpus, job.launcher):
        grid = tile.node_grid(one)
        placement = tile_placement(one, tile, rng.permutation(32)[: int(np.prod(grid))].reshape(grid))
        times = placed_times(job, one, placement)
        for found, least in zip(
            (times.forward_s, times.backward_s), chunk_seconds(job, one, stage_compute(job, one), tile), strict=True
        ):
            assert (least[0] <= found.min(axis=2) * (1 + 1e-9)).all()
            if tile.tensor_nodes == 1:
                assert found == pytest.approx(np.broadcast_to(least[0][..., None], found.shape))
        assert WorkBounds(job)(one) <= estimate(job, one, placement).iteration_time_s
