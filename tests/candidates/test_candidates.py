"""Candidates: rules on both sides of their edges, and the enumeration against loops over everything."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from factories import LLAMA_8B, TINY, make_cluster, make_config, make_job
from hypothesis import given, settings
from hypothesis import strategies as st

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.candidates import (
    LEGALITY_RULES,
    SearchSpace,
    broken_rules,
    check_legal,
    choose_num_gpus,
    enumerate_candidates,
    enumerate_with_reasons,
    world_sizes,
)
from pipette_opt.parallel import ParallelConfig, RankGrid
from pipette_opt.specs import Instance, Mamba, ModelSpec, TrainingSpec

TRAINING = TrainingSpec(global_batch_size=64, seq_length=1024)

MOE = {"num_experts": 8, "moe_router_topk": 2}

BESIDE = {"overlap_moe_expert_parallel_comm": True}
MIXED = {"expert_model_parallel_size": 2, "dp": 2}
AGAIN = {"recompute_granularity": "selective"}

HYBRID = {"hybrid_layer_pattern": "M-*-M-*-", "mamba": Mamba(num_heads=32, num_groups=2)}

FULLY = {"dp": 8, "use_distributed_optimizer": True, "zero_stage": 3}

EDGES = [
    # rule, what is changed in (model, training, configuration) to break it, and the least that mends it
    ("attention heads", ({"num_attention_heads": 18, "num_query_groups": 2}, {}, {"tp": 4}), {"tp": 2}),
    ("query groups", ({"num_attention_heads": 24, "num_query_groups": 6}, {}, {"tp": 4}), {"tp": 2}),
    ("layer widths", ({"num_query_groups": 1, "kv_channels": 3}, {}, {"tp": 4}), {"tp": 2}),
    ("layer widths", (HYBRID, {}, {"tp": 4}), {"tp": 2}),
    ("context parallel", (HYBRID, {}, {"context_parallel_size": 2}), {"context_parallel_size": 1}),
    ("layer widths", ({"ffn_hidden_size": 4098}, {}, {"tp": 4}), {"tp": 2}),
    ("sequence parallel", ({}, {}, {"tp": 1, "sequence_parallel": True}), {"tp": 2}),
    ("sequence length", ({}, {"seq_length": 1026}, {"tp": 4, "sequence_parallel": True}), {"tp": 2}),
    ("sequence length", ({}, {"seq_length": 1026}, {"context_parallel_size": 2}), {"context_parallel_size": 1}),
    ("sequence length", ({}, {"seq_length": 1028}, {"context_parallel_size": 4}), {"context_parallel_size": 2}),
    (
        "sequence length",
        ({}, {"seq_length": 1028}, {"tp": 4, "sequence_parallel": True, "context_parallel_size": 2}),
        {"tp": 2},
    ),
    ("sharded parameters", ({}, {}, FULLY | {"pp": 2, "virtual_pipeline_model_parallel_size": 2}), {"zero_stage": 1}),
    ("sharded parameters", ({}, {"optimizer": "muon"}, FULLY), {"zero_stage": 1}),
    (
        "sharded parameters",
        ({}, {"optimizer": "muon"}, FULLY | {"zero_stage": 1, "num_distributed_optimizer_instances": 2}),
        {"num_distributed_optimizer_instances": 1},
    ),
    (
        "sharded parameters",
        (MOE, {}, FULLY | {"expert_model_parallel_size": 4, "num_distributed_optimizer_instances": 4}),
        {"num_distributed_optimizer_instances": 2},
    ),
    ("context parallel", ({"window_size": (127, 0)}, {}, {"context_parallel_size": 2}), {"context_parallel_size": 1}),
    (
        "context parallel",
        (
            {"softmax_type": "learnable"},
            {"cp_comm_type": "all_gather"},
            {"context_parallel_size": 2},
        ),
        {"context_parallel_size": 1},
    ),
    (
        "context parallel",
        (
            {"window_size": (127, 0), "softmax_type": "learnable", "num_query_groups": 8},
            {"cp_comm_type": "a2a"},
            {"tp": 8, "context_parallel_size": 2},
        ),
        {"tp": 4},
    ),
    *[
        ("context parallel", ({"num_query_groups": 4}, {"cp_comm_type": kind}, broken), mended)
        for kind, broken, mended in (
            ("a2a+p2p", {"context_parallel_size": 4, "context_a2a_size": 3}, {"context_a2a_size": 2}),
            ("a2a+p2p", {"tp": 2, "context_parallel_size": 4, "context_a2a_size": 4}, {"context_a2a_size": 2}),
            ("p2p", {"context_parallel_size": 4, "context_a2a_size": 2}, {"context_a2a_size": 1}),
        )
    ],
    (
        "context parallel",
        ({}, {"attention_kernel": "unfused"}, {"context_parallel_size": 2}),
        {"context_parallel_size": 1},
    ),
    ("experts", ({}, {}, {"expert_model_parallel_size": 2, "dp": 2}), {"expert_model_parallel_size": 1}),
    ("experts", (MOE, {}, {"expert_model_parallel_size": 16, "dp": 16, "mbs": 1}), {"expert_model_parallel_size": 8}),
    ("expert ranks", (MOE, {}, {"expert_model_parallel_size": 4, "dp": 2}), {"dp": 4}),
    (
        "expert ranks",
        (MOE, {}, {"tp": 2, "sequence_parallel": True, "expert_model_parallel_size": 4, "dp": 2}),
        {"expert_tensor_parallel_size": 1},
    ),
    (
        "expert widths",
        (MOE | {"moe_ffn_hidden_size": 130}, {}, {"tp": 4, "sequence_parallel": True}),
        {"expert_tensor_parallel_size": 2},
    ),
    (
        "layer widths",
        (MOE | {"moe_shared_expert_intermediate_size": 130}, {}, {"tp": 4, "sequence_parallel": True}),
        {"tp": 2},
    ),
    ("expert sequence", (MOE, {}, {"tp": 2}), {"sequence_parallel": True}),
    *[
        ("expert overlap", (MOE, BESIDE | training, MIXED | broken), mended)
        for training, broken, mended in (
            ({}, {"expert_model_parallel_size": 1}, {"expert_model_parallel_size": 2}),
            ({}, {"recompute_granularity": "full"}, {"recompute_granularity": "selective"}),
            ({}, {"pp": 2}, {"pp": 2, "virtual_pipeline_model_parallel_size": 2}),
        )
    ],
    (
        "cuda graphs",
        ({}, {"cuda_graph": True, "cuda_graph_modules": ("attn", "mlp")}, {"recompute_granularity": "full"}),
        {"recompute_granularity": "selective"},
    ),
    ("layers", ({}, {}, {"pp": 4, "layers_per_stage": (2, 1, 2, 4)}), {"layers_per_stage": (2, 1, 2, 3)}),
    ("layers", ({}, {}, {"pp": 3, "layers_per_stage": (4, 0, 4)}), {"layers_per_stage": (3, 1, 4)}),
    ("layers", ({}, {}, {"pp": 2, "layers_per_stage": (4, 5)}), {"layers_per_stage": (3, 5)}),
    ("batch", ({}, {}, {"dp": 4, "mbs": 32}), {"mbs": 16}),
    ("batch", ({}, {}, {"dp": 3}), {"dp": 4}),
    ("interleaving", ({}, {}, {"pp": 4, "dp": 8, "mbs": 4, "virtual_pipeline_model_parallel_size": 2}), {"mbs": 2}),
    (
        "interleaving",
        ({}, {"global_batch_size": 6}, {"pp": 4, "virtual_pipeline_model_parallel_size": 2}),
        {"virtual_pipeline_model_parallel_size": None},
    ),
    ("fp8 shapes", ({"ffn_hidden_size": 4000}, {"fp8": True}, {"tp": 4}), {"tp": 2}),
    ("fp8 shapes", ({}, {"fp8": True, "seq_length": 1032}, {}), {"mbs": 2}),
    ("sequence parallel", ({}, {"tp_comm_overlap": True}, {"tp": 2}), {"sequence_parallel": True}),
    ("offloading", ({}, {"cpu_offloading_num_layers": 2}, {"pp": 2, "dp": 2}), {"pp": 1}),
    ("offloading", ({}, {"cpu_offloading_num_layers": 2}, AGAIN), {"recompute_granularity": None}),
    ("recompute modules", ({}, {}, AGAIN | {"recompute_modules": ("moe_act",)}), {"recompute_modules": ("mlp",)}),
    (
        "recompute modules",
        ({"num_experts": 8}, {}, AGAIN | {"recompute_modules": ("ops",)}),
        {"recompute_modules": ("mlp",)},
    ),
    ("recompute modules", ({}, {}, AGAIN | {"recompute_modules": ("mla_up_proj",)}), {"recompute_modules": ("mlp",)}),
    (
        "recompute modules",
        ({}, {"fp8": True}, AGAIN | {"recompute_modules": ("layernorm",)}),
        {"recompute_modules": ("core_attn",)},
    ),
    (
        "recompute modules",
        (
            MOE | {"moe_shared_expert_intermediate_size": 512},
            {"other_arguments": (("--moe-shared-expert-overlap",),)},
            AGAIN | {"recompute_modules": ("shared_experts",)},
        ),
        {"recompute_modules": ("moe",)},
    ),
    (
        "fp8 shapes",
        (MOE | {"moe_ffn_hidden_size": 1000 * 4}, {"fp8": True}, {"tp": 4, "sequence_parallel": True}),
        {"expert_tensor_parallel_size": 1},
    ),
    (
        "fp8 shapes",
        (MOE | {"moe_shared_expert_intermediate_size": 4000}, {"fp8": True}, {"tp": 4, "sequence_parallel": True}),
        {"tp": 2},
    ),
]


@pytest.mark.parametrize(("rule", "broken", "mended"), EDGES)
def test_both_sides_of_each_rule(rule: str, broken: tuple[dict, dict, dict], mended: dict) -> None:
    """A configuration breaks exactly this rule, and one change of a degree makes it legal."""
    model, training = replace(TINY, **broken[0]), replace(TRAINING, **broken[1])
    assert list(broken_rules(model, training, make_config(**broken[2]))) == [rule]
    assert check_legal(model, training, make_config(**{**broken[2], **mended})) == []


def test_fp8_asks_nothing_of_an_mlp_that_is_not_there() -> None:
    """With experts in every layer the width of dense layers shapes nothing; one dense layer has it."""
    training, chosen = replace(TRAINING, fp8=True), make_config(tp=4, sequence_parallel=True)
    model = replace(TINY, **MOE, ffn_hidden_size=4000)
    assert check_legal(replace(model, moe_ffn_hidden_size=4096), training, chosen) == []
    assert check_legal(replace(model, moe_ffn_hidden_size=4096, num_dense_layers=1), training, chosen)


def test_learned_positions_must_cover_the_sequence() -> None:
    """2048 learned positions serve 2048 tokens and not 2049; rotary positions serve any number."""
    assert check_legal(TINY, replace(TRAINING, seq_length=2048), make_config()) == []
    longer = replace(TRAINING, seq_length=2049)
    assert check_legal(TINY, longer, make_config()) == ["seq_length=2049 is above max_position_embeddings=2048"]
    assert check_legal(replace(TINY, position_embedding_type="rope"), longer, make_config()) == []


def test_what_replicas_share_is_searched_where_asked() -> None:
    """Each strategy once wherever there are replicas; groups of shared parameters with and without states over them."""
    space = SearchSpace(
        num_gpus=8,
        tensor_parallel=(1,),
        pipeline_parallel=(1, 8),
        context_parallel=(1,),
        micro_batch_size=(1,),
        recompute=(None,),
        virtual_pipeline=(1,),
        overlap_grad_reduce=False,
        data_parallel_sharding_strategy=("no_shard", "optim", "optim_grads", "optim_grads_params"),
        num_distributed_optimizer_instances=(1, 2),
    )
    found = enumerate_candidates(make_job(make_cluster(1), TINY, seq_length=1024), space)
    replicated = [one for one in found if one.pipeline_model_parallel_size == 1]
    shared = [(one.sharding_stage, one.num_distributed_optimizer_instances, one.state_groups) for one in replicated]
    assert shared == [(0, 1, 1), (1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1), (3, 1, 1), (3, 2, 1), (3, 2, 2)]
    assert {one.sharding_stage for one in found if one.pipeline_model_parallel_size == 8} == {0}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data_parallel_sharding_strategy": ("fsdp",)}, "must be some of no_shard, optim, optim_grads"),
        (
            {"data_parallel_sharding_strategy": ("optim",), "use_distributed_optimizer": (True,)},
            "repeats --use-distributed-optimizer",
        ),
        (
            {"num_distributed_optimizer_instances": (2,), "data_parallel_sharding_strategy": ("no_shard",)},
            "needs states that replicas share",
        ),
        (
            {"num_distributed_optimizer_instances": (2,), "use_distributed_optimizer": (False,)},
            "needs states that replicas share",
        ),
    ],
)
def test_sharing_that_cannot_be_asked_for(options: dict, said: str) -> None:
    """Unknown words, two ways to say the same, groups of nothing."""
    with pytest.raises(InputError, match=said):
        SearchSpace(**options)


def test_every_rule_has_an_edge() -> None:
    """No rule without a test of both its sides."""
    assert {rule for rule, _, _ in EDGES} | {"position embeddings"} == set(LEGALITY_RULES)


def test_fewer_query_groups_than_tensor_ranks() -> None:
    """8 groups on 16 ranks are repeated, and that is legal."""
    assert check_legal(LLAMA_8B, TRAINING, make_config(tp=16, num_layers=32)) == []


def packs(parallel: ParallelConfig, per_host: int, launcher: str) -> bool:
    """Whether hosts can hold equal rectangles of the (stage, replica) grid, tried with the rank numbers themselves."""
    slot = parallel.tensor_model_parallel_size * parallel.context_parallel_size
    pp, dp = parallel.pipeline_model_parallel_size, parallel.data_parallel_size
    if slot >= per_host:
        return slot % per_host == 0
    used = min(per_host, slot * pp * dp)
    for stages, replicas in product(range(1, pp + 1), range(1, dp + 1)):
        if pp % stages or dp % replicas or slot * stages * replicas != used:
            continue
        if launcher != "torchrun":
            return True
        for order in ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"):
            ranks = RankGrid.of(parallel, order).ranks()
            tiles = [
                np.sort(ranks[i : i + stages, j : j + replicas].ravel())
                for i, j in product(range(0, pp, stages), range(0, dp, replicas))
            ]
            if all(tile[-1] - tile[0] == len(tile) - 1 for tile in tiles):
                return True
    return False


def everything_legal(given: Instance, space: SearchSpace, num_gpus: int) -> Iterator[tuple[object, ...]]:
    """All even configurations by loops over all numbers and the rules written out once more."""
    model, training, numbers = given.model, given.training, range(1, num_gpus + 1)
    sizes = space.micro_batch_size or range(1, space.max_micro_batch_size + 1)
    for tp, pp, dp in product(space.tensor_parallel or numbers, numbers, numbers):
        if tp * pp * dp != num_gpus or pp not in (space.pipeline_parallel or [pp]):
            continue
        if dp not in (space.data_parallel or [dp]) or model.num_layers % pp:
            continue
        heads, groups = model.num_attention_heads, model.num_query_groups
        if heads % tp or model.ffn_hidden_size % tp or (groups % tp and tp % groups):
            continue
        if (model.kv_channels * (heads + 2 * groups)) % tp or model.max_position_embeddings < training.seq_length:
            continue
        for mbs, chunks in product(sizes, space.virtual_pipeline or range(1, space.max_virtual_pipeline + 1)):
            if training.global_batch_size % (dp * mbs) or model.num_layers % (pp * chunks):
                continue
            if chunks > 1 and (pp == 1 or (training.global_batch_size // (dp * mbs)) % pp):
                continue
            parallel = make_config(tp, pp, dp, mbs, model.num_layers)
            if packs(parallel, given.cluster.gpus_per_node, given.launcher):
                for recompute in space.recompute:
                    yield tp, pp, dp, mbs, chunks, recompute


def key(parallel: ParallelConfig) -> tuple[object, ...]:
    """What the loops above tell apart."""
    return (
        parallel.tensor_model_parallel_size,
        parallel.pipeline_model_parallel_size,
        parallel.data_parallel_size,
        parallel.micro_batch_size,
        parallel.num_chunks,
        parallel.recompute_granularity,
    )


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """Small clusters, and models and batches with awkward factors."""
    groups = draw(st.sampled_from([1, 2, 3, 4]))
    model = ModelSpec(
        name="random",
        num_layers=draw(st.integers(1, 12)),
        hidden_size=64,
        ffn_hidden_size=draw(st.sampled_from([64, 96, 100])),
        num_attention_heads=groups * draw(st.sampled_from([1, 2, 3, 4])),
        num_query_groups=groups,
        kv_channels=draw(st.sampled_from([1, 3, 8])),
        vocab_size=1000,
        max_position_embeddings=draw(st.sampled_from([64, 256])),
    )
    return make_job(
        make_cluster(draw(st.integers(1, 4)), gpus=draw(st.sampled_from([1, 2, 3, 4, 8]))),
        model,
        global_batch_size=draw(st.sampled_from([1, 6, 8, 12, 16, 30])),
        seq_length=draw(st.sampled_from([64, 100, 96])),
        launcher=draw(st.sampled_from(["torchrun", "slurm"])),
    )


def degrees() -> st.SearchStrategy[tuple[int, ...] | None]:
    """Nothing, or a few allowed values."""
    return st.none() | st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    """Spaces with some of the degrees listed."""
    return SearchSpace(
        tensor_parallel=draw(degrees()),
        pipeline_parallel=draw(degrees()),
        data_parallel=draw(degrees()),
        virtual_pipeline=draw(degrees()),
        micro_batch_size=draw(degrees()),
        recompute=draw(st.sampled_from([(None,), ("full", None)])),
    )


@pytest.mark.search
@settings(max_examples=200, deadline=None)
@given(instances(), spaces())
def test_even_candidates_are_exactly_the_legal_ones(given: Instance, space: SearchSpace) -> None:
    """With even stages the enumeration is what loops over all numbers find, without duplicates."""
    num_gpus = given.cluster.gpus_per_node * given.cluster.num_nodes
    space = replace(space, uneven_layers=False, num_gpus=num_gpus, context_parallel=(1,), overlap_grad_reduce=False)
    found = enumerate_with_reasons(given, space)
    assert found.world_sizes == (num_gpus,)
    assert len(set(found.candidates)) == len(found.candidates)
    keys = [key(candidate) for candidate in found.candidates]
    assert sorted(keys, key=str) == sorted(everything_legal(given, space, num_gpus), key=str)


@pytest.mark.search
@settings(max_examples=100, deadline=None)
@given(instances(), spaces())
def test_uneven_candidates_come_on_top(given: Instance, space: SearchSpace) -> None:
    """Uneven splits add candidates, all of them legal, and never take one away; counts add up."""
    space = replace(space, num_gpus=choose_num_gpus(given, space))
    found = enumerate_with_reasons(given, space)
    even = enumerate_with_reasons(given, replace(space, uneven_layers=False))
    assert set(even.candidates) <= set(found.candidates)
    assert all(check_legal(given.model, given.training, candidate) == [] for candidate in found.candidates)
    assert all(candidate.world_size == space.num_gpus for candidate in found.candidates)
    refused = found.num_combinations - len(found.candidates)
    assert max(found.rejected.values(), default=0) <= refused <= sum(found.rejected.values())
    assert found.rejected.keys() == found.examples.keys()


@pytest.mark.search
@settings(max_examples=100, deadline=None)
@given(instances(), spaces())
def test_chosen_gpus_have_a_candidate_if_any_count_has(given: Instance, space: SearchSpace) -> None:
    """If there is a legal candidate on some number of whole hosts, then on the number chosen."""
    per_host = given.cluster.gpus_per_node
    counts = [per_host * count for count in range(1, given.cluster.num_nodes + 1)]
    legal = [count for count in counts if enumerate_with_reasons(given, replace(space, num_gpus=count)).candidates]
    chosen = choose_num_gpus(given, space)
    if legal:
        assert chosen in legal
    elif chosen % per_host == 0:
        assert chosen == counts[-1]
    else:
        assert enumerate_with_reasons(given, replace(space, num_gpus=chosen)).candidates


def llama(num_nodes: int, global_batch_size: int = 512, **options: object) -> Instance:
    """An 80-layer model of 64 heads and 8 query groups on hosts of 8."""
    model = replace(LLAMA_8B, num_layers=80, num_attention_heads=64, hidden_size=8192, ffn_hidden_size=28672)
    return make_job(make_cluster(num_nodes), model, global_batch_size, 4096, **options)


HALF = {"tensor_parallel": (2,), "pipeline_parallel": (1,), "data_parallel": (2,)}
"""Half of a host, unless context parallelism takes the rest."""


@pytest.mark.search
@pytest.mark.parametrize(
    ("num_nodes", "pins", "num_gpus", "more"),
    [
        (16, {}, 128, set()),
        # 136 = 8 * 17: no factor 17 in heads or batch, and 17 stages of 80 layers are up to 5 deep: 136 * 80 / 85
        # = 128 busy GPUs less the bubble, no more than 16 hosts keep busy without one
        (17, {}, 128, {136}),
        (17, {"pipeline_parallel": (17,)}, 136, set()),
        # 120 = 8 * 15 by 15 stages of up to 6 layers: 107 busy; 112 by 7 stages of up to 12: 107 and less bubble
        (15, {}, 112, {120}),
        (17, {"tensor_parallel": (8,), "pipeline_parallel": (4,), "data_parallel": (2,)}, 64, set()),
        (17, {"num_gpus": 64}, 64, set()),
        (1, {**HALF, "context_parallel": (1,)}, 4, set()),
        (1, HALF, 8, set()),
    ],
)
def test_number_of_gpus(num_nodes: int, pins: dict, num_gpus: int, more: set[int]) -> None:
    """Where hosts can be kept busy, what comes near beside it, and what the pins ask for."""
    space = SearchSpace(**{"recompute": (None,), **pins})
    assert choose_num_gpus(llama(num_nodes), space) == num_gpus
    sizes = world_sizes(llama(num_nodes), space)
    assert {num_gpus, *more} == set(sizes)
    assert sizes == tuple(sorted(sizes, reverse=True))
    assert {candidate.world_size for candidate in enumerate_candidates(llama(num_nodes), space)} == set(sizes)


PLAIN = SearchSpace(context_parallel=(1,), overlap_grad_reduce=False)
"""Without the dimensions that multiply the rest."""


@pytest.mark.search
def test_size_and_order_of_the_default_search() -> None:
    """A few thousand candidates on 128 to 1024 GPUs, the same list every time, all forms of packing among them."""
    for num_nodes in (16, 64, 128):
        candidates = enumerate_candidates(llama(num_nodes, 1024), PLAIN)
        assert 500 < len(candidates) < 5000
        assert candidates == enumerate_candidates(llama(num_nodes, 1024), PLAIN)
    assert any(candidate.tensor_model_parallel_size == 16 for candidate in candidates)
    assert {candidate.sequence_parallel for candidate in candidates if candidate.tensor_model_parallel_size > 1} == {
        True
    }


def test_part_of_a_host() -> None:
    """Six of eight GPUs hold two tensor groups of three, though three does not divide eight."""
    model = replace(TINY, num_attention_heads=12, num_query_groups=12, ffn_hidden_size=768)
    space = SearchSpace(num_gpus=6, tensor_parallel=(3,), micro_batch_size=(1,), recompute=(None,))
    found = enumerate_candidates(make_job(make_cluster(1), model), space)
    assert {(c.pipeline_model_parallel_size, c.data_parallel_size) for c in found} == {(1, 2), (2, 1)}


def test_choices_on_request() -> None:
    """Sequence parallelism, distributed optimizer, context parallelism, splits: defaults, and what is asked for."""
    given = make_job(make_cluster(1), TINY)
    for candidate in enumerate_candidates(given, SearchSpace()):
        assert candidate.sequence_parallel == (candidate.tensor_model_parallel_size > 1)
        replicas = candidate.data_parallel_size * candidate.context_parallel_size
        assert candidate.use_distributed_optimizer == (replicas > 1)
    pinned = replace(PLAIN, tensor_parallel=(2,), pipeline_parallel=(2,), micro_batch_size=(1,), recompute=(None,))
    both = replace(pinned, sequence_parallel=(True, False), use_distributed_optimizer=(False, True))
    choices = {
        (candidate.sequence_parallel, candidate.use_distributed_optimizer)
        for candidate in enumerate_candidates(given, both)
    }
    assert choices == set(product((True, False), repeat=2))
    split = replace(pinned, layers_per_stage=((3, 5), (2, 2, 2, 2)), virtual_pipeline=(1,))
    assert [candidate.layers_per_stage for candidate in enumerate_candidates(given, split)] == [(3, 5)]
    context = enumerate_candidates(given, replace(pinned, context_parallel=(1, 2)))
    assert {(c.context_parallel_size, c.data_parallel_size) for c in context} == {(1, 2), (2, 1)}
    assert all(candidate.use_distributed_optimizer for candidate in context)


def test_context_sizes_and_overlap_are_searched() -> None:
    """By default every context size inside a host and every legal choice of overlap; pins narrow both."""
    given = make_job(make_cluster(2), TINY)
    pinned = SearchSpace(
        num_gpus=16, tensor_parallel=(2,), pipeline_parallel=(2,), micro_batch_size=(1,), recompute=(None,)
    )
    found = enumerate_candidates(given, pinned)
    assert {one.context_parallel_size for one in found} == {1, 2, 4}
    overlaps = {(one.overlap_grad_reduce, one.overlap_param_gather) for one in found}
    assert overlaps == {(False, False), (True, False), (True, True)}
    assert len(set(found)) == len(found)
    for pins, expected in (
        ({"overlap_grad_reduce": False}, {(False, False)}),
        ({"overlap_grad_reduce": True}, {(True, False), (True, True)}),
        ({"overlap_param_gather": True}, {(True, True)}),
        ({"overlap_param_gather": False}, {(False, False), (True, False)}),
        ({"use_distributed_optimizer": (False,)}, {(False, False), (True, False)}),
    ):
        narrowed = enumerate_candidates(given, replace(pinned, **pins))
        assert {(one.overlap_grad_reduce, one.overlap_param_gather) for one in narrowed} == expected
    alone = enumerate_candidates(given, replace(pinned, num_gpus=4))
    assert not any(one.overlap_grad_reduce for one in alone if one.data_parallel_size * one.context_parallel_size == 1)


def test_sequence_that_the_tensor_ranks_do_not_split() -> None:
    """Sequence parallelism is left off where it would be illegal, and refused where it is asked for."""
    given = make_job(make_cluster(1), TINY, seq_length=1026)
    space = replace(PLAIN, tensor_parallel=(2, 4), pipeline_parallel=(1,), micro_batch_size=(1,), recompute=(None,))
    found = {c.tensor_model_parallel_size: c.sequence_parallel for c in enumerate_candidates(given, space)}
    assert found == {2: True, 4: False}
    forced = enumerate_with_reasons(given, replace(space, sequence_parallel=(True,)))
    assert forced.rejected == {"sequence length": 1}
    assert [candidate.tensor_model_parallel_size for candidate in forced.candidates] == [2]


def test_torchrun_expresses_fewer_packings() -> None:
    """
    What torchrun cannot express is a tile that is whole in neither direction.

    Hosts of 4 tile a grid of 6 x 6 single GPUs by 2 x 2 only, since 4 does not divide 6.
    """
    space = SearchSpace(tensor_parallel=(1,), pipeline_parallel=(6,), data_parallel=(6,), micro_batch_size=(1,))
    model = replace(TINY, num_layers=6)
    free = make_job(make_cluster(9, gpus=4), model, global_batch_size=36)
    assert enumerate_candidates(free, space)
    with pytest.raises(InfeasibleError, match=r"6 x 6 groups of 1 GPUs do not pack onto hosts of 4 .* torchrun"):
        enumerate_candidates(replace(free, launcher="torchrun"), replace(space, num_gpus=36))


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ({"tensor_parallel": (6,)}, r"world size rules out \d+, e.g. tp \* cp = 6 \* 1 does not divide 128 GPUs"),
        ({"tensor_parallel": (128,)}, r"attention heads rules out \d+, e.g. num_attention_heads=64 is no multiple"),
        ({"pipeline_parallel": (128,)}, r"layers rules out \d+, e.g. num_layers=80 cannot be split into 128 stages"),
        ({"micro_batch_size": (3,)}, r"batch rules out \d+, e.g. global_batch_size=512 is no multiple of .* 3"),
        ({"data_parallel": (3,)}, r"leaves dp=\d+ of 128 GPUs, not 3"),
        ({"pipeline_parallel": (1,), "virtual_pipeline": (2,)}, "needs pipeline_model_parallel_size >= 2, got 1"),
        ({"sequence_parallel": (True,), "tensor_parallel": (1,)}, "needs tensor_model_parallel_size >= 2, got 1"),
        ({"layers_per_stage": ((1, 2, 3, 4),)}, r"\(1, 2, 3, 4\) does not split 80 layers"),
    ],
)
def test_pins_that_can_never_be_legal(pins: dict, words: str) -> None:
    """The error says which rule rules out how many combinations, with the numbers of the first."""
    space = SearchSpace(**pins, num_gpus=128)
    with pytest.raises(InfeasibleError, match=r"^0 of \d+ combinations are legal on 128 GPUs:") as error:
        enumerate_candidates(llama(16), space)
    found = enumerate_with_reasons(llama(16), space)
    assert str(error.value) == found.explain()
    assert found.num_combinations > 0
    error.match(words)


@pytest.mark.parametrize(
    ("settings_", "option"),
    [
        ({"tensor_parallel": (0,)}, "--tensor-parallel"),
        ({"pipeline_parallel": (4, -1)}, "--pipeline-parallel"),
        ({"data_parallel": ()}, "--data-parallel"),
        ({"virtual_pipeline": (1.5,)}, "--virtual-pipeline"),
        ({"micro_batch_size": (True,)}, "--micro-batch-size"),
        ({"max_micro_batch_size": 0}, "--max-micro-batch-size"),
        ({"num_gpus": 0}, "--num-gpus"),
        ({"recompute": ("half",)}, "--recompute"),
        ({"layers_per_stage": ((0, 8),)}, "--layers-per-stage"),
        ({"layers_per_stage": ((),)}, "--layers-per-stage"),
        ({"context_parallel": (0,)}, "--context-parallel"),
    ],
)
def test_bad_pins(settings_: dict, option: str) -> None:
    """A value that no run can have is refused where it is given, by the option's name."""
    with pytest.raises(InputError) as error:
        SearchSpace(**settings_)
    assert error.value.where == option


@pytest.mark.parametrize(("num_gpus", "words"), [(137, "17 x 8 = 136"), (12, "got 12; 8 or 16 would")])
def test_gpus_that_the_cluster_does_not_have(num_gpus: int, words: str) -> None:
    """More than listed, or a broken host."""
    with pytest.raises(InputError, match=words):
        enumerate_candidates(llama(17), SearchSpace(num_gpus=num_gpus))
