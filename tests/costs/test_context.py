"""Context parallelism: hand counts of the ring, and one clock in ticks and seconds."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job, make_random_cluster
from learned import TICKS, learned

from pipette_opt.base.units import GB, GIB
from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.collectives import gradient_traffic, tensor_traffic
from pipette_opt.costs.compute import stage_compute
from pipette_opt.costs.context import (
    context_traffic,
    ends_s,
    exchanged_traffic,
    hidden_by_attention_s,
    inside_layer_s,
    key_value_bytes,
)
from pipette_opt.costs.links import NoLinks, RingShape
from pipette_opt.costs.messages import p2p_bytes
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.ring_steps import ring_steps
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.costs.work import WorkBounds
from pipette_opt.parallel import ParallelConfig, host_tiles, identity_placement, tile_placement
from pipette_opt.problem.build import FittingCandidate, build_problem_data, links_decide
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance, LayerKind


def test_ring_by_hand() -> None:
    """
    32,768 tokens over four ranks, eight groups of 128 on two tensor ranks: 2 x 8192 x 4 x 128 x 2 bytes each.

    They make three steps; backward their gradients go along; recomputed attention makes them again.
    """
    job = make_job(make_cluster(2), LLAMA_8B, seq_length=32768)
    one = make_config(tp=2, pp=1, dp=2, num_layers=32, context_parallel_size=4)
    held = 2 * 8192 * 4 * 128 * 2
    assert key_value_bytes(LLAMA_8B, job.training, one) == held
    assert context_traffic(LLAMA_8B, job.training, one) == ((3 * held, 3, 1), (6 * held, 3, 1))
    again = replace(one, recompute_granularity="selective")
    assert context_traffic(LLAMA_8B, job.training, again)[1] == (9 * held, 6, 1)
    many = replace(one, tensor_model_parallel_size=16)
    assert key_value_bytes(LLAMA_8B, job.training, many) == 2 * 8192 * 128 * 2  # a group for each rank, repeated


@pytest.mark.parametrize("kind", ["a2a", "all_gather"])
def test_other_exchanges_by_hand(kind: str) -> None:
    """
    The same job: queries and output are 8192 x 16 x 128 x 2 bytes each, of which and of keys 3 of 4 go elsewhere.

    Gathered keys are three times what is held, backward again, and their gradients. Nothing runs beside attention, and
    an all-to-all leaves one block, gathering two.
    """
    job = make_job(make_cluster(2), LLAMA_8B, seq_length=32768)
    training = replace(job.training, cp_comm_type=kind)
    one = make_config(tp=2, pp=1, dp=2, num_layers=32, context_parallel_size=4)
    held, queries = 2 * 8192 * 4 * 128 * 2, 8192 * 16 * 128 * 2
    traffic = exchanged_traffic if kind == "a2a" else context_traffic
    forward, backward = traffic(LLAMA_8B, training, one)
    again = traffic(LLAMA_8B, training, replace(one, recompute_granularity="selective"))[1]
    if kind == "a2a":
        assert forward == backward == (3 / 4 * (held + 2 * queries), 4, 4)
        assert again == (6 / 4 * (held + 2 * queries), 8, 8)
    else:
        assert (forward, backward, again) == ((3 * held, 6, 2), (6 * held, 12, 4), (9 * held, 18, 6))
    assert ring_steps(training, one) == (0 if kind == "a2a" else 1)
    hidden = hidden_by_attention_s(replace(job, training=training), one, LLAMA_8B.layers[0], [0])
    assert hidden == (0.0, 0.0)


def test_an_exchange_inside_a_ring_by_hand() -> None:
    """
    The same job with pairs that exchange heads: the ring has one step, and hides behind half of attention.

    Half of what a rank holds of all four tensors goes to its neighbour.
    """
    job = make_job(make_cluster(2), LLAMA_8B, seq_length=32768)
    training = replace(job.training, cp_comm_type="a2a+p2p")
    one = make_config(tp=2, pp=1, dp=2, num_layers=32, context_parallel_size=4, context_a2a_size=2)
    held, queries = 2 * 8192 * 4 * 128 * 2, 8192 * 16 * 128 * 2
    assert context_traffic(LLAMA_8B, training, one) == ((held, 1, 1), (2 * held, 1, 1))
    assert exchanged_traffic(LLAMA_8B, training, one) == ((1 / 2 * (held + 2 * queries), 4, 4),) * 2
    assert ring_steps(training, one) == 1
    core = attention_times_s(LLAMA_8B, training, one, job.cluster.gpu_kinds[0], job.stack, LayerKind())
    hidden = hidden_by_attention_s(replace(job, training=training), one, LayerKind(), [0])
    assert hidden == pytest.approx((0.5 * core[0], 0.5 * core[1]))


@pytest.mark.parametrize(("size", "kind"), [(1, "p2p"), (4, "a2a")])
def test_an_exchange_of_one_rank_is_a_ring_and_of_all_is_none(size: int, kind: str) -> None:
    """Levels of one rank and of all ranks take the times of the other communication types, on random links."""
    rng = np.random.default_rng(11)
    job = make_job(make_random_cluster(rng, 4, gpus=2, intra_node_bytes_per_s=5 * GB), LLAMA_8B, seq_length=4096)
    levels, flat = (replace(job, training=replace(job.training, cp_comm_type=word)) for word in ("a2a+p2p", kind))
    one = make_config(tp=1, pp=1, dp=2, num_layers=32, context_parallel_size=4)
    placement = identity_placement(one, 2, np.arange(4), "tp-cp-ep-dp-pp")
    found = placed_times(levels, replace(one, context_a2a_size=size), placement)
    known = placed_times(flat, one, placement)
    for name in ("tensor_forward_s", "tensor_backward_s", "forward_s", "backward_s"):
        assert getattr(found, name) == pytest.approx(getattr(known, name))


def test_pairs_send_half_of_the_keys_over_hosts() -> None:
    """Four ranks on two hosts: two rings of two share the link, each with one step instead of three."""
    job = make_job(make_cluster(2, 1.0, gpus=2, nics_per_node=1), LLAMA_8B, seq_length=32768)
    job = replace(job, training=replace(job.training, cp_comm_type="a2a+p2p"))
    one = make_config(tp=1, pp=1, dp=1, num_layers=32, context_parallel_size=4, context_a2a_size=2)
    times = placed_times(job, one, identity_placement(one, 2, np.arange(2), "tp-cp-ep-dp-pp"))
    ring = context_traffic(LLAMA_8B, job.training, one)[0].hop_bytes / (1.0 * GB / 2)
    swap = NoLinks(job.cluster, job.stack).ring_s(RingShape(2), exchanged_traffic(LLAMA_8B, job.training, one)[0])[0]
    shown = max(ring - hidden_by_attention_s(job, one, LayerKind(), [0])[0], 0.0)
    assert shown > 0
    assert times.tensor_forward_s[0, 0, 0] == pytest.approx(32 * (shown + float(swap)))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_an_exchange_inside_a_host_keeps_one_own_part(ranks: int) -> None:
    """
    By hand: 4 all-to-alls send (n - 1) / n of four tensors, and the rank's own 1 / n of each costs 0.42 of a sent part.

    At 200 GB/s, n ranks with 32,768 / n tokens: 2 * 8 groups and 2 * 32 heads of 128 channels, 2 bytes each.
    """
    job = make_job(make_cluster(1), LLAMA_8B, seq_length=32768)
    job = replace(job, training=replace(job.training, cp_comm_type="a2a"))
    one = make_config(tp=1, pp=1, dp=8 // ranks, num_layers=32, context_parallel_size=ranks)
    held = 32768 / ranks * (2 * 8 + 2 * 32) * 128 * 2
    expected = 4 * job.cluster.intra_node_latency_s + held / ranks * (ranks - 1 + 0.42) / (200 * GB)
    times = placed_times(job, one, identity_placement(one, 8, np.arange(1), "tp-cp-ep-dp-pp"))
    assert times.tensor_forward_s[0, 0, 0] == pytest.approx(32 * expected)
    assert inside_layer_s(job, one, (0.0, 0.0), LayerKind(), [0])[0] == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(20))
def test_the_least_exchange_is_below_that_of_placed_ranks(seed: int) -> None:
    """Random exchanges, inside hosts, over hosts and across their borders: the bound that needs no placement holds."""
    rng = np.random.default_rng(seed)
    gpus, cp = int(rng.choice([2, 3, 4, 6])), int(rng.choice([4, 6, 12]))
    size = int(rng.choice([each for each in range(2, cp + 1) if cp % each == 0]))
    cluster = make_random_cluster(rng, 12, gpus=gpus, intra_node_bytes_per_s=float(rng.choice([10, 200])) * GB)
    job = make_job(cluster, LLAMA_8B, seq_length=12288)
    job = replace(job, training=replace(job.training, cp_comm_type="a2a+p2p"))
    one = make_config(tp=1, pp=1, dp=12 * gpus // cp, num_layers=32, context_parallel_size=cp, context_a2a_size=size)
    for tile in host_tiles(one, gpus, job.launcher):
        grid = tile.node_grid(one)
        hosts = rng.permutation(12)[: int(np.prod(grid))].reshape(grid)
        placed = placed_times(job, one, tile_placement(one, tile, hosts))
        least = inside_layer_s(job, one, (0.0, 0.0), LayerKind(), [0], tile)
        assert 32 * least[0] <= placed.tensor_forward_s.max() * (1 + 1e-9)
        assert 32 * least[1] <= placed.tensor_backward_s.max() * (1 + 1e-9)


def test_an_all_to_all_moves_less_than_a_ring_of_many_keys() -> None:
    """With a group for each head a ring sends all keys to all, an all-to-all a quarter of its four parts."""
    job = make_job(make_cluster(2), LLAMA_8B, seq_length=32768)
    model = replace(LLAMA_8B, num_query_groups=32)
    one = make_config(tp=1, pp=1, dp=2, num_layers=32, context_parallel_size=8)
    ring = context_traffic(model, job.training, one)[0].hop_bytes
    exchanged = exchanged_traffic(model, replace(job.training, cp_comm_type="a2a"), one)[0].hop_bytes
    assert exchanged == pytest.approx(ring * 2 / 8)  # 7/8 of four parts, not 7 times two


def test_what_attention_hides() -> None:
    """Three of four blocks run beside the ring."""
    job = make_job(make_cluster(2), LLAMA_8B, seq_length=32768)
    one = make_config(tp=2, pp=1, dp=2, num_layers=32, context_parallel_size=4)
    core = attention_times_s(LLAMA_8B, job.training, one, job.cluster.gpu_kinds[0], job.stack, LayerKind())
    assert hidden_by_attention_s(job, one, LayerKind(), [0]) == pytest.approx((0.75 * core[0], 0.75 * core[1]))


def test_what_else_is_spread() -> None:
    """Messages between stages shrink with the sequence; gradients are reduced over context ranks too."""
    job = make_job(make_cluster(2), LLAMA_8B, seq_length=32768)
    one = make_config(tp=2, pp=2, dp=1, num_layers=32, context_parallel_size=4)
    alone = replace(one, context_parallel_size=1)
    assert p2p_bytes(LLAMA_8B, job.training, one) == p2p_bytes(LLAMA_8B, job.training, alone) / 4
    first = stage_parameters(LLAMA_8B, one).own[0]
    assert gradient_traffic(LLAMA_8B, job.training, one)[0].hop_bytes == pytest.approx(2 * 3 / 4 * first * 4)


def test_a_slow_ring_shows() -> None:
    """A ring inside a host hides behind long attention; one over a slow link does not, and takes its time per layer."""
    job = make_job(make_cluster(2, 1.0, gpus=4), LLAMA_8B, seq_length=32768)
    one = make_config(tp=1, pp=1, dp=1, num_layers=32, context_parallel_size=4)
    inside = placed_times(job, one, identity_placement(one, 4, np.arange(1), "tp-cp-ep-dp-pp"))
    assert inside.tensor_forward_s.max() == 0.0
    spread = replace(one, context_parallel_size=8)
    across = placed_times(job, spread, identity_placement(spread, 4, np.arange(2), "tp-cp-ep-dp-pp"))
    moved = context_traffic(LLAMA_8B, job.training, spread)[0].hop_bytes
    hidden = hidden_by_attention_s(job, spread, LayerKind(), [0])[0]
    # Of the four members on a host the last alone sends to the other host: one flow of 1 GB/s.
    per_layer = moved / (1.0 * GB) - hidden
    assert per_layer > 0
    assert across.tensor_forward_s[0, 0, 0] == pytest.approx(32 * per_layer)


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_ticks_and_seconds(p2p: str) -> None:
    """
    The solver's objective counts context parallelism as the clock in seconds does.

    Not for tensor groups over hosts: stages with embeddings or head send more than their layers.
    """
    rng = np.random.default_rng(5)
    shapes = [
        make_config(tp=2, pp=2, dp=4, num_layers=32, context_parallel_size=4, sequence_parallel=True),
        make_config(tp=1, pp=4, dp=4, num_layers=32, context_parallel_size=4),
        make_config(tp=1, pp=8, dp=1, num_layers=32, context_parallel_size=8, recompute_granularity="full"),
        make_config(tp=8, pp=2, dp=2, num_layers=32, context_parallel_size=2, sequence_parallel=True),
        make_config(tp=2, pp=1, dp=2, num_layers=32, context_parallel_size=8),
        make_config(tp=4, pp=4, dp=1, num_layers=32, context_parallel_size=4, recompute_granularity="full"),
        make_config(tp=1, pp=1, dp=1, num_layers=32, context_parallel_size=64),
        make_config(tp=16, pp=2, dp=2, num_layers=32, sequence_parallel=True),
    ]
    job = make_job(make_random_cluster(rng, 9, intra_node_bytes_per_s=5 * GB), LLAMA_8B, seq_length=4096, p2p=p2p)
    fitting = [
        FittingCandidate(config=one, need_bytes=np.full(one.pipeline_model_parallel_size, GIB)) for one in shapes
    ]
    data = build_problem_data(job, fitting, np.full(9, 80 * GIB))
    assert len(data.candidates) >= len(shapes)
    for candidate in data.candidates:
        nodes = rng.permutation(9)[: candidate.num_cells].reshape(candidate.grid)
        times = placed_times(job, candidate.config, tile_placement(candidate.config, candidate.tile, nodes))
        assert times.tensor_forward_s.min() > 0.0
        least = 1 - TICKS if candidate.tile.tensor_nodes == 1 else 0.9
        assert least < learned(job, data, candidate, nodes) <= 1 + 1e-9


@pytest.mark.parametrize("kind", ["p2p", "all_gather", "a2a"])
def test_kinds_of_context_groups_over_hosts(kind: str) -> None:
    """
    The ring's slowest hop says what messages and gathers take, so that integers can express it; not so all-to-alls.

    Nor where tensor groups span hosts, too. No relaxation, and no bound by work, is above the simulated time.
    """
    rng = np.random.default_rng(7)
    job = make_job(make_random_cluster(rng, 9, intra_node_bytes_per_s=5 * GB), LLAMA_8B, seq_length=4096)
    job = replace(job, training=replace(job.training, cp_comm_type=kind))
    shapes = [
        make_config(tp=8, pp=1, dp=2, num_layers=32, context_parallel_size=2),
        make_config(tp=2, pp=2, dp=2, num_layers=32, context_parallel_size=8),
        make_config(tp=16, pp=1, dp=2, num_layers=32, context_parallel_size=2),
    ]
    for one in shapes:
        fitting = FittingCandidate(config=one, need_bytes=np.full(one.pipeline_model_parallel_size, GIB))
        data = build_problem_data(job, [fitting], np.full(9, 80 * GIB))
        (candidate,) = data.candidates
        assert links_decide(job, one, candidate.tile) == (kind != "a2a" and one.tensor_model_parallel_size <= 8)
        placed = [rng.permutation(9)[: candidate.num_cells].reshape(candidate.grid) for _ in range(10)]
        simulated_s = estimate_many(job, [(one, tile_placement(one, candidate.tile, nodes)) for nodes in placed])
        for nodes, seconds in zip(placed, simulated_s.tolist(), strict=True):
            assert 0.95 * seconds <= objective_ticks(data, candidate, nodes) * data.tick_s <= seconds
            assert WorkBounds(job)(one) <= seconds


def test_messages_between_hosts_by_hand() -> None:
    """
    Eight tensor ranks, two hosts: 2,048 tokens of one group of 128, keys and values, one message for each of 8 rings.

    All at once over links of 8 GB/s in sum; by all-to-all a rank sends half of its queries, keys, values and outputs.
    """
    job = make_job(make_cluster(2, 8.0, nics_per_node=1), LLAMA_8B, seq_length=4096)
    one = make_config(tp=8, pp=1, dp=1, num_layers=32, context_parallel_size=2)
    placement = identity_placement(one, 8, np.arange(2), "tp-cp-ep-dp-pp")
    alone_s = tensor_s(job, one)
    for kind, held in (("p2p", 2 * 128), ("all_gather", 2 * 128), ("a2a", (2 * 128 + 2 * 4096 // 8) / 2)):
        of_kind = replace(job, training=replace(job.training, cp_comm_type=kind))
        sent_s = 2048 * held * 2 / (8.0 * GB / 8)
        hidden_s = hidden_by_attention_s(of_kind, one, LayerKind(), [0])[0]
        ends = ends_s(of_kind, one, [0])[:, 0].sum()
        found_s = (placed_times(of_kind, one, placement).tensor_forward_s[0, 0, 0] - ends) / 32
        assert found_s == pytest.approx(alone_s + max(sent_s - hidden_s, 0.0), rel=1e-6)


def tensor_s(job: Instance, one: ParallelConfig) -> float:
    """What the tensor ranks of one layer send inside a host, forward, seconds."""
    ring = tensor_traffic(job.model, job.training, one, LayerKind())[0]
    idle = stage_compute(job, one).idle_s(False, [0])[0]
    return max(
        float(NoLinks(job.cluster, job.stack).ring_s(RingShape(one.tensor_model_parallel_size), ring)[0]) - idle, 0.0
    )
