"""What the backward of a layer computes and sends again, module by module."""

from dataclasses import replace

import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.collectives import tensor_traffic
from pipette_opt.costs.compute import layer_times_s
from pipette_opt.costs.context import context_traffic
from pipette_opt.costs.exchange import passes
from pipette_opt.costs.expert_layer import activation_again_s, expert_times_s
from pipette_opt.costs.modules import module_forward_s
from pipette_opt.costs.products import product_s
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import DEFAULT_STACK, LatentAttention, LayerKind

MOE = replace(LLAMA_8B, name="moe", num_experts=8, moe_ffn_hidden_size=2048, moe_shared_expert_intermediate_size=1024)


def split(*modules: str, **options: object) -> ParallelConfig:
    """Tensor 2 with sequence parallelism, and some modules computed again."""
    again = {"recompute_granularity": "selective", "recompute_modules": modules} if modules else {}
    return make_config(**{"tp": 2, "dp": 4, "num_layers": 32, "sequence_parallel": True, **again, **options})


def again_s(*modules: str, has_experts: bool = False) -> float:
    """What modules add to the backward of a layer; the forward stays."""
    job = make_job(make_cluster(1), MOE if has_experts else LLAMA_8B)
    kept, chosen = (layer_times_s(job, one, A100_80) for one in (split(), split(*modules)))
    assert chosen[0] == kept[0]
    return chosen[1] - kept[1]


def test_each_module_adds_its_forward() -> None:
    """As the same functions say that make the forward."""
    job = make_job(make_cluster(1), MOE)
    given = (MOE, job.training, split(), A100_80, DEFAULT_STACK)
    core = attention_times_s(*given, MOE.layers[0])[0]
    assert again_s("core_attn") == pytest.approx(core)
    assert again_s("mlp") == pytest.approx(
        module_forward_s(LLAMA_8B.branches(LayerKind())[1].modules["mlp"], None, *given[1:])
    )
    assert again_s("moe_act", has_experts=True) == pytest.approx(activation_again_s(*given))
    shared = module_forward_s(MOE.branches(MOE.layers[0])[1].modules["shared_experts"], None, *given[1:])
    assert again_s("shared_experts", has_experts=True) == pytest.approx(shared)
    assert again_s("moe", has_experts=True) == pytest.approx(expert_times_s(*given)[0] + shared)
    together = again_s("core_attn", "moe_act", "shared_experts", has_experts=True)
    assert together == pytest.approx(core + activation_again_s(*given) + shared)


def test_latents_are_projected_again() -> None:
    """Two products of its four at the least, and no more than all of them; with the norm before a kernel more."""
    latent = replace(
        LLAMA_8B,
        num_query_groups=32,
        kv_channels=128,
        multi_latent_attention=LatentAttention(q_lora_rank=1024, kv_lora_rank=512),
    )
    job = make_job(make_cluster(1), latent)

    def backward_s(*modules: str) -> float:
        return layer_times_s(job, split(*modules), A100_80)[1]

    up = backward_s("mla_up_proj") - backward_s()
    flops = 2 * job.training.seq_length * 32 * (192 * 1024 + 256 * 512) / 2
    assert flops / 312e12 < up < 4 * flops / 312e12 + 100e-6
    assert 0 < backward_s("mla_up_proj", "layernorm") - backward_s("mla_up_proj") < up
    whole = layer_times_s(job, split(recompute_granularity="full"), A100_80)
    assert backward_s("core_attn", "mla_up_proj", "mlp", "layernorm") < whole[1]


def test_modules_of_other_layers_add_nothing() -> None:
    """Experts where there are none, a dense MLP where there are some; parts of what is computed again as a whole."""
    assert again_s("moe_act", "shared_experts", "layernorm") == 0.0
    assert again_s("mlp", has_experts=True) == 0.0
    whole = again_s("moe", has_experts=True)
    assert again_s("moe", "moe_act", "shared_experts", has_experts=True) == pytest.approx(whole)


def test_all_modules_take_less_than_whole_layers() -> None:
    """Projections of attention are in no module but ``full``."""
    job = make_job(make_cluster(1), LLAMA_8B)
    whole = layer_times_s(job, make_config(tp=2, dp=4, num_layers=32, recompute_granularity="full"), A100_80)
    kept = layer_times_s(job, make_config(tp=2, dp=4, num_layers=32), A100_80)
    assert 0 < again_s("core_attn", "mlp") < whole[1] - kept[1]


def test_a_mlp_is_gathered_again() -> None:
    """Half of what a layer's tensor ranks send in the forward, or nothing; of experts what their tokens need."""
    job = make_job(make_cluster(1), LLAMA_8B)
    model, training = LLAMA_8B, job.training
    for split_tokens in (False, True):
        forward, backward = tensor_traffic(model, training, split(sequence_parallel=split_tokens), model.layers[0])
        for given, module, share in ((model, "core_attn", 0), (model, "mlp", 0.5), (MOE, "shared_experts", 0.5)):
            chosen = split(module, sequence_parallel=split_tokens)
            again = tensor_traffic(given, training, chosen, given.layers[0])[1]
            assert again == tuple(own + share * more for own, more in zip(backward, forward, strict=True))
    assert [passes(split(name)) for name in ("moe", "moe_act")] == [(1, 2), (1, 1)]


def test_a_ring_of_attention_goes_round_again_only_for_attention() -> None:
    """Two passes of keys and values in the backward, and a third for the attention core."""
    training = make_job(make_cluster(1)).training
    sent = [
        context_traffic(LLAMA_8B, training, split(name, context_parallel_size=2, dp=2))[1].hop_bytes
        for name in ("mlp", "core_attn")
    ]
    assert sent[1] == 1.5 * sent[0]


def test_every_second_product_is_repeated_by_operation() -> None:
    """
    Keys, the output product and one of the MLP's first matrices, and no attention; FLOPs by hand.

    Of the 218.1 million multiplications of a token in a layer of Llama 3 8B: 4,096 x (1,024 + 4,096 + 14,336) are 79.7.
    """
    job = make_job(make_cluster(1), LLAMA_8B)
    given = (job.training, split(), A100_80, DEFAULT_STACK)
    repeated = [product for branch in LLAMA_8B.branches(LayerKind()) for product in branch.operations[1::2]]
    assert sum(product.outputs * product.inputs for product in repeated) == 79_691_776
    seconds = again_s("ops")
    products = sum(product_s(product, None, *given)[0] for product in repeated)
    assert products < seconds < 1.5 * products
    full, kept = (layer_times_s(job, config, A100_80)[1] for config in (split(recompute_granularity="full"), split()))
    assert 0.3 * (full - kept) < seconds < 0.5 * (full - kept)
