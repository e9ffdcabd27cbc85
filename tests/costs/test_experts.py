"""What experts hold, send and compute, against counts by hand."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.base.units import GB
from pipette_opt.costs.collectives import OWN_PART, gradient_traffic, tensor_traffic
from pipette_opt.costs.compute import layer_times_s, stage_compute
from pipette_opt.costs.exchange import (
    _least_load_s_per_byte,
    beside_exchange,
    exchange_s,
    expert_layer_s,
    expert_rings,
    shown_exchange_s,
)
from pipette_opt.costs.expert_layer import expert_kernels, expert_times_s
from pipette_opt.costs.experts import coupled_replicas, distinct_shares, expert_traffic, rows_of_expert
from pipette_opt.costs.layer_kinds import layers_of_kinds
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.layers.parameters import layer_parameters
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import DEFAULT_STACK, LayerKind, ModelSpec, TrainingSpec

MOE = replace(LLAMA_8B, name="moe", num_experts=8, moe_router_topk=2)
TRAINING = TrainingSpec(global_batch_size=64, seq_length=4096)


def split(**options: object):  # type: ignore[no-untyped-def]
    """Tensor 2 with sequence parallelism, data 8, expert 4: 16 ranks of a stage in two blocks of eight."""
    given: dict[str, object] = {"tp": 2, "dp": 8, "num_layers": 32, "sequence_parallel": True}
    return make_config(**{**given, "expert_model_parallel_size": 4, **options})


def test_tokens_and_bytes_by_hand() -> None:
    """
    One sequence of 4096 tokens, two tensor ranks: each has 2048 tokens of 4096 x 2 bytes, twice as topk is 2.

    Eight ranks hold each expert once, so 8 x 2048 x 2 copies fall on 8 experts: 4096 rows each.
    """
    one = expert_traffic(MOE, TRAINING, split())
    assert one.sent_bytes == 2048 * 2 * 4096 * 2
    assert (one.num_exchanges, one.num_rings, one.ring_size) == (2, 2, 2)
    assert one.gathered_bytes == 2 * one.sent_bytes
    assert rows_of_expert(MOE, TRAINING, split()) == 4096.0
    assert coupled_replicas(MOE, split()) == 4
    assert split().expert_data_parallel_size == 2
    narrow = split(expert_tensor_parallel_size=1)
    assert expert_traffic(MOE, TRAINING, narrow).num_rings == 0
    assert rows_of_expert(MOE, TRAINING, narrow) == 2048.0
    assert (coupled_replicas(MOE, narrow), narrow.expert_data_parallel_size) == (2, 4)


def test_gathering_dispatcher_by_hand() -> None:
    """All tokens of a block of eight ranks go to each of them, and back: no all-to-all."""
    gathering = replace(TRAINING, moe_token_dispatcher_type="allgather")
    one = expert_traffic(MOE, gathering, split())
    assert (one.num_exchanges, one.num_rings, one.ring_size) == (0, 2, 8)
    assert one.gathered_bytes == 8 * 2048 * 4096 * 2
    forward, backward = expert_rings(MOE, gathering, split(recompute_granularity="full"))
    assert forward.hop_bytes == 2 * 7 / 8 * one.gathered_bytes
    assert backward.hop_bytes == 2 * forward.hop_bytes
    assert forward.num_steps == 14


def test_imbalance_is_the_busiest_rank_s() -> None:
    """Rows and bytes of the busiest rank; never more than all tokens on one rank, and nothing with one rank."""
    skewed = replace(TRAINING, expert_imbalance=1.5)
    assert rows_of_expert(MOE, skewed, split()) == 1.5 * 4096
    assert expert_traffic(MOE, skewed, split()).sent_bytes == 1.5 * 2048 * 2 * 4096 * 2
    assert rows_of_expert(MOE, replace(TRAINING, expert_imbalance=9.0), split()) == 4 * 4096
    alone = split(expert_model_parallel_size=1)
    assert rows_of_expert(MOE, skewed, alone) == rows_of_expert(MOE, TRAINING, alone)


def test_dense_layers_come_first_over_chunks_and_stages() -> None:
    """Two stages of two chunks of two layers: of three dense layers two are on the first stage, one on the second."""
    model = replace(MOE, num_layers=8, num_dense_layers=3)
    chunked = make_config(pp=2, virtual_pipeline_model_parallel_size=2)

    def moe_layers(model: ModelSpec, chosen: ParallelConfig) -> list[list[int]]:
        """Layers with experts of each chunk and stage."""
        found = layers_of_kinds(model, chosen)
        return [[*map(int, row)] for row in sum(one * kind.has_experts for kind, one in found.items())]

    assert moe_layers(model, chunked) == [[0, 1], [2, 2]]
    assert moe_layers(replace(MOE, num_layers=8), chunked) == [[2, 2], [2, 2]]
    counted = replace(chunked, layers_per_stage=(3, 3))
    assert moe_layers(replace(model, num_layers=6), counted) == [[0, 0], [2, 1]]
    assert moe_layers(replace(LLAMA_8B, num_layers=8), chunked) == [[0, 0], [0, 0]]


def test_parameters_of_a_stage() -> None:
    """One rank has all of the model's, the vocabulary padded; with blocks of eight, an eighth of the experts."""
    alone = make_config(num_layers=32)
    rest = stage_parameters(MOE, alone).total
    padding = 2 * (MOE.padded_vocab_size(1) - MOE.vocab_size) * MOE.hidden_size
    assert rest.sum() == MOE.num_parameters + padding
    assert stage_parameters(MOE, split()).experts.sum() == 32 * layer_parameters(MOE, MOE.layers[0]).experts / 8


def test_gradients_of_experts_go_round_their_own_ring() -> None:
    """Two blocks: half of twice the bytes; one block: nothing to reduce."""
    (one,) = gradient_traffic(MOE, TRAINING, split(), experts=True)
    assert one.hop_bytes == 2 * (2 - 1) / 2 * 4 * 32 * layer_parameters(MOE, MOE.layers[0]).experts / 8
    (none,) = gradient_traffic(MOE, TRAINING, split(expert_model_parallel_size=8), experts=True)
    assert (none.hop_bytes, none.num_steps) == (0.0, 0)


def test_tensor_groups_of_a_layer_with_experts() -> None:
    """Attention only: half of a dense layer's; shared experts take the MLP's place."""
    dense = tensor_traffic(MOE, TRAINING, split(), LayerKind())[0]
    routed = tensor_traffic(MOE, TRAINING, split(), MOE.layers[0])[0]
    shared = replace(MOE, moe_shared_expert_intermediate_size=1024)
    assert routed.hop_bytes == dense.hop_bytes / 2
    assert routed.num_calls == dense.num_calls / 2
    assert tensor_traffic(shared, TRAINING, split(), MOE.layers[0])[0] == dense


def test_exchange_inside_and_across_by_hand() -> None:
    """Inside, seven parts of 1 MB and the own one at 200 GB/s; across, the busiest host's load in the same time."""
    spec = make_cluster(2, intra_node_latency_s=1e-6, inter_node_latency_s=5e-6)
    inside = float(exchange_s(spec, DEFAULT_STACK, 1e6, 7 / spec.intra_node_bytes_per_s, False, 0.0, 5e-6))
    assert inside == pytest.approx(1e-6 + (7 + OWN_PART) * 1e6 / (200 * GB))
    across = float(exchange_s(spec, DEFAULT_STACK, 1e6, 3 / spec.intra_node_bytes_per_s, True, 16 / (20 * GB), 5e-6))
    assert across == pytest.approx(5e-6 + 16e6 / (20 * GB))


@pytest.mark.parametrize(("experts", "topk", "ep"), [(8, 2, 4), (8, 3, 8), (6, 6, 3), (12, 1, 4)])
def test_tokens_sent_once_to_ranks_together(experts: int, topk: int, ep: int) -> None:
    """Every choice of distinct experts, counted out: how many tokens have one among the first ranks' experts."""
    model = replace(MOE, num_experts=experts, moe_router_topk=topk)
    chosen = split(dp=ep, tp=1, sequence_parallel=False, expert_model_parallel_size=ep)
    shares = distinct_shares(model, replace(TRAINING, moe_token_dispatcher_type="flex"), chosen)
    choices = list(combinations(range(experts), topk))
    for ranks in range(1, ep + 1):
        local = experts // ep * ranks
        tokens = sum(min(choice) < local for choice in choices)
        copies = sum(sum(one < local for one in choice) for choice in choices)
        assert shares[ranks] == pytest.approx(tokens / copies)
    assert shares[ep] == pytest.approx(1 / topk)
    assert (distinct_shares(model, TRAINING, chosen) == 1.0).all()


@pytest.mark.parametrize(("groups", "chosen", "topk", "ep"), [(4, 2, 2, 8), (4, 2, 4, 4), (2, 1, 2, 4), (4, 3, 3, 8)])
def test_groups_of_experts_keep_tokens_on_fewer_ranks(groups: int, chosen: int, topk: int, ep: int) -> None:
    """Eight experts: every choice of groups, then of experts in them, counted out."""
    model = replace(MOE, moe_router_topk=topk, moe_router_num_groups=groups, moe_router_group_topk=chosen)
    config = split(dp=ep, tp=1, sequence_parallel=False, expert_model_parallel_size=ep)
    shares = distinct_shares(model, replace(TRAINING, moe_token_dispatcher_type="flex"), config)
    size = 8 // groups
    choices = [
        choice
        for kept in combinations(range(groups), chosen)
        for choice in combinations([group * size + one for group in kept for one in range(size)], topk)
    ]
    for ranks in range(1, ep + 1):
        local = 8 // ep * ranks
        tokens = sum(min(choice) < local for choice in choices)
        copies = sum(sum(one < local for one in choice) for choice in choices)
        assert shares[ranks] == pytest.approx(tokens / copies)


def test_experts_at_a_width_of_their_own() -> None:
    """A quarter of the width: a quarter of the weights and of what is sent, and two projections on every rank."""
    narrow = replace(MOE, moe_latent_size=1024)
    kind = MOE.layers[0]
    assert layer_parameters(narrow, kind).experts == layer_parameters(MOE, kind).experts / 4
    more = layer_parameters(narrow, kind).replicated - layer_parameters(MOE, kind).replicated
    assert more == 2 * 4096 * 1024
    less = MOE.branches(kind)[1].multiplications - narrow.branches(kind)[1].multiplications
    assert less == 2 * 3 * 14336 * (4096 - 1024) - more
    assert expert_traffic(narrow, TRAINING, split()).sent_bytes == expert_traffic(MOE, TRAINING, split()).sent_bytes / 4
    tables = [stage_table(model, TRAINING, [split(pp=1, dp=8)]) for model in (MOE, narrow)]
    own = tables[1].own_parameters[0] - tables[0].own_parameters[0]
    assert own == 32 * more
    assert tables[1].expert_parameters[0] == tables[0].expert_parameters[0] / 4
    kept = [float(formula_bytes(table).saved[0]) for table in tables]
    tokens = 4096 / 2
    assert kept[0] - kept[1] == pytest.approx(32 * tokens * 2 * (2 * 2 * (4096 - 1024) - 1024))


def test_tokens_beside_compute_and_the_host() -> None:
    """Time in which the device waits hides tokens for nothing, compute at the price of its slowing down."""
    stack = replace(DEFAULT_STACK, overlap_slowdown=0.1)
    assert float(shown_exchange_s(5.0, 0.0, 0.0, stack)) == 5.0
    assert float(shown_exchange_s(5.0, 2.0, 0.0, stack)) == 3.0
    assert float(shown_exchange_s(5.0, 2.0, 1.0, stack)) == pytest.approx(2.1)
    assert float(shown_exchange_s(5.0, 2.0, 10.0, stack)) == pytest.approx(0.3)
    assert float(shown_exchange_s(5.0, 9.0, 10.0, stack)) == 0.0


def test_what_is_beside_tokens() -> None:
    """Compute only if the job overlaps it; the wait for the host without tensor parallelism, and not with graphs."""
    slow = replace(DEFAULT_STACK, host_kernel_s=1e-3)
    given = replace(make_job(make_cluster(1), MOE, seq_length=4096), stack=slow)
    alone = split(tp=1, dp=8, sequence_parallel=False)
    found = beside_exchange(given, alone, MOE.layers[0], [0])
    assert found.compute_s == 0.0
    assert min(found.idle_s) > 0.0
    assert beside_exchange(given, split(), MOE.layers[0], [0]).idle_s == (0.0, 0.0)
    graphs = replace(given, training=replace(given.training, cuda_graph=True, overlap_moe_expert_parallel_comm=True))
    beside = beside_exchange(graphs, alone, MOE.layers[0], [0])
    assert beside.idle_s == (0.0, 0.0)
    assert beside.compute_s == pytest.approx(sum(layer_times_s(graphs, alone, A100_80)) / 2)
    assert expert_layer_s(graphs, alone, MOE.layers[0], 8, 8) < expert_layer_s(
        replace(given, stack=DEFAULT_STACK), alone, MOE.layers[0], 8, 8
    )


def test_one_expert_is_a_dense_model() -> None:
    """With one expert and topk 1 the products are the dense layer's; router and sorting come on top, a few percent."""
    single = replace(LLAMA_8B, num_experts=1, moe_router_topk=1)
    plain = make_config(num_layers=32)
    dense = make_job(make_cluster(1), LLAMA_8B, seq_length=4096)
    routed = make_job(make_cluster(1), single, seq_length=4096)
    before, after = layer_times_s(dense, plain, A100_80), layer_times_s(routed, plain, A100_80)
    for one, other in zip(before, after, strict=True):
        assert one < other < 1.06 * one
    assert expert_layer_s(routed, plain, MOE.layers[0], 8, 8) == (0.0, 0.0)
    router = 32 * LLAMA_8B.hidden_size
    assert single.num_parameters == LLAMA_8B.num_parameters + router


def test_more_local_experts_are_less_efficient() -> None:
    """The same rows in more and smaller products take no less time; more imbalance takes more."""
    times = []
    for experts in (1, 8, 64, 512):
        model = replace(MOE, num_experts=experts, moe_router_topk=1)
        times.append(sum(expert_times_s(model, TRAINING, make_config(num_layers=32), A100_80, DEFAULT_STACK)))
    assert times == sorted(times)
    assert times[-1] > 1.2 * times[0]
    loads = [replace(TRAINING, expert_imbalance=one) for one in (1.0, 1.1, 1.7, 3.0)]
    spread = [sum(expert_times_s(MOE, one, split(), A100_80, DEFAULT_STACK)) for one in loads]
    assert spread == sorted(set(spread))


def test_gradients_of_weights_are_read_and_written_for_few_tokens() -> None:
    """
    Each expert has 32 tokens: gradients of all weights are read and added to in 4 or 2 bytes, whatever the products.

    128 tokens, two copies of each on 8 experts: 32 rows, 64 FLOPs for each weight and two bytes or more: bound by
    memory, so the formats differ by twice two bytes for each weight of the experts.
    """
    few, alone = replace(TRAINING, seq_length=128), make_config(num_layers=32)
    assert rows_of_expert(MOE, few, alone) == 32.0
    wide = expert_times_s(MOE, few, alone, A100_80, DEFAULT_STACK)
    narrow = replace(few, accumulate_allreduce_grads_in_fp32=False)
    slim = expert_times_s(MOE, narrow, alone, A100_80, DEFAULT_STACK)
    memory = A100_80.memory_bytes_per_s * DEFAULT_STACK.streaming
    assert wide[0] == slim[0]
    weights = 8 * 3 * MOE.hidden_size * MOE.expert_ffn_size + 8 * MOE.hidden_size  # and the router's
    assert wide[1] - slim[1] == pytest.approx(2 * (4 - 2) * weights / memory)


def test_gradients_of_weights_are_free_for_many_tokens() -> None:
    """With 4096 tokens for each expert the products for weights take what those for inputs do, within a tenth."""
    narrow = replace(TRAINING, accumulate_allreduce_grads_in_fp32=False)
    wide = expert_times_s(MOE, TRAINING, split(), A100_80, DEFAULT_STACK)
    slim = expert_times_s(MOE, narrow, split(), A100_80, DEFAULT_STACK)
    assert wide == pytest.approx(slim, rel=1e-4)  # the router's few weights remain
    assert wide[1] == pytest.approx(2 * wide[0], rel=0.1)


def test_biases_of_experts_by_hand() -> None:
    """
    Four ranks of experts, two experts each with 4096 tokens of 4096 x 2 bytes: 6 passes forward, 8 backward.

    Two launches forward and four backward for each expert, and one for all.
    """
    biased = replace(MOE, add_bias_linear=True)
    plain = expert_times_s(MOE, TRAINING, split(), A100_80, DEFAULT_STACK)
    found = expert_times_s(biased, TRAINING, split(), A100_80, DEFAULT_STACK)
    copies_s = 2 * 4096 * 4096 * 2 / (A100_80.memory_bytes_per_s * DEFAULT_STACK.streaming)
    assert found[0] - plain[0] == pytest.approx(6 * copies_s + 5 * DEFAULT_STACK.kernel_s)
    assert found[1] - plain[1] == pytest.approx(8 * copies_s + 9 * DEFAULT_STACK.kernel_s)
    assert expert_kernels(biased, split()) - expert_kernels(MOE, split()) == 5


def test_stage_with_dense_layers_first() -> None:
    """A stage's work is the sum of its dense layers' and its others'."""
    model = replace(MOE, num_dense_layers=20)
    given = make_job(make_cluster(1), model, seq_length=4096)
    halves = make_config(pp=2, num_layers=32)
    dense = layer_times_s(given, halves, A100_80)
    routed = layer_times_s(given, halves, A100_80, kind=model.layers[-1])
    first, second = stage_compute(given, halves).backward_s[0, 0]
    apart = stage_compute(make_job(make_cluster(1), replace(model, num_dense_layers=31), seq_length=4096), halves)
    assert first == pytest.approx(float(apart.backward_s[0, 0, 0]))
    assert second - float(apart.backward_s[0, 0, 1]) == pytest.approx(11 * (routed[1] - dense[1]))


def test_least_load_of_hosts_is_that_of_the_best_group() -> None:
    """Never above the load of any group of three hosts, and equal to the best one's if links are equal."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        rates = rng.uniform(1.0, 9.0, (6, 6))
        np.fill_diagonal(rates, np.nan)
        rates[0, 1] = np.nan
        best = np.inf
        for group in combinations(range(6), 3):
            if {0, 1} <= set(group):
                continue
            inside = 1.0 / rates[np.ix_(group, group)]
            best = min(best, max(np.nansum(inside, axis=1).max(), np.nansum(inside, axis=0).max()))
        assert _least_load_s_per_byte(rates, 3) <= best * (1 + 1e-12)
    assert _least_load_s_per_byte(np.full((4, 4), 2.0), 3) == 1.0
