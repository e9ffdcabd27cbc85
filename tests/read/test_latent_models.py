"""Models with latent attention: published sizes, readers, writers, and what is refused."""

from dataclasses import replace

import pytest
from factories import LLAMA_8B

from pipette_opt.layers.parameters import layer_parameters
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.model import read_model
from pipette_opt.specs import LatentAttention, ModelSpec, YarnScaling


def active_parameters(model: ModelSpec) -> float:
    """Parameters that one token passes, the embedding look-up not among them."""
    return model.flops_per_token(1) / 6


@pytest.mark.parametrize(
    ("preset", "total", "active"),
    [
        # The technical reports: arXiv 2405.04434 (V2 and V2-Lite), 2412.19437 (V3, main model),
        # 2507.20534 (Kimi K2, 1.04 T), 2508.06471 (GLM-4.5, 355 and 106 B; Air's 12 B leave out the head).
        ("deepseek-v2", 236e9, 21e9),
        ("deepseek-v2-lite", 15.7e9, 2.4e9),
        ("deepseek-v3", 671e9, 37e9),
        ("kimi-k2", 1.04e12, 32e9),
        ("glm-4.5", 355e9, 32e9),
        ("glm-4.5-air", 106e9, 12.8e9),
    ],
)
def test_parameters_as_published(preset: str, total: float, active: float) -> None:
    """All parameters, and those that a token passes, multi-token prediction left out."""
    model = replace(read_model(preset), mtp_num_layers=0)
    assert model.num_parameters == pytest.approx(total, rel=0.015)
    assert active_parameters(model) == pytest.approx(active, rel=0.03)


def test_multi_token_prediction_of_deepseek_v3() -> None:
    """14 B parameters (readme of huggingface.co/deepseek-ai/DeepSeek-V3), the shared embedding and head among them."""
    model = read_model("deepseek-v3")
    own = model.num_parameters - replace(model, mtp_num_layers=0).num_parameters
    assert own + 2 * model.vocab_size * model.hidden_size == pytest.approx(14e9, rel=0.05)
    twice = replace(model, mtp_num_layers=2, mtp_use_repeated_layer=True)
    assert twice.num_parameters == model.num_parameters
    assert twice.flops_per_token(1) > model.flops_per_token(1)


def test_moonlight_without_embeddings() -> None:
    """Table 5 of arXiv 2502.16982: 15.29 B parameters and 2.24 B active ones, embedding and head left out."""
    model = read_model("moonlight-16b-a3b")
    table = model.vocab_size * model.hidden_size
    assert (model.num_parameters - 2 * table) / 1e9 == pytest.approx(15.29, abs=0.01)
    assert (active_parameters(model) - table) / 1e9 == pytest.approx(2.24, abs=0.01)


def test_one_layer_of_deepseek_v2_by_hand() -> None:
    """Each matrix of its attention, and which of them tensor ranks split."""
    model = read_model("deepseek-v2")
    down = 5120 * 1536 + 5120 * (512 + 64)
    up = 1536 * 128 * 192 + 512 * 128 * (128 + 128)
    attention = model.mixer(model.layers[0]).parameters
    assert attention.replicated == down + 5120 + 1536 + 512
    assert attention.sharded == up + 128 * 128 * 5120
    norms = 2 * 5120 + 1536 + 512
    assert layer_parameters(model, model.layers[0]).total == down + up + 128 * 128 * 5120 + norms + 3 * 5120 * 12288


def test_scores_of_unequal_heads() -> None:
    """Queries times keys over 192 channels a head, times values over 128, for half of the sequence: 6 FLOPs each."""
    model = read_model("deepseek-v2")
    length = 4096
    scores = model.flops_per_token(length) - model.flops_per_token(1)
    assert scores == pytest.approx(6 * 60 * 128 * (192 + 128) * (length - 1) / 2)


ARGUMENTS = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --ffn-hidden-size 512 --vocab-size 100 --swiglu "
    "--max-position-embeddings 64 --position-embedding-type rope --disable-bias-linear --normalization RMSNorm "
    "--hidden-dropout 0 --attention-dropout 0 --qk-layernorm "
)


def test_megatron_defaults() -> None:
    """Sizes and scaled positions that megatron-core has without being told (``MLATransformerConfig``)."""
    latent = parse_megatron_args(f"{ARGUMENTS} --multi-latent-attention").model
    assert latent is not None
    assert latent.multi_latent_attention == LatentAttention(
        q_lora_rank=None, kv_lora_rank=32, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128, yarn=YarnScaling()
    )
    plain = parse_megatron_args(f"{ARGUMENTS} --multi-latent-attention --rope-type rope").model
    assert plain is not None
    assert plain.multi_latent_attention == LatentAttention(yarn=None)


def test_sizes_without_latent_attention_say_nothing() -> None:
    """As in Megatron, whose ordinary attention does not read them."""
    assert parse_megatron_args(f"{ARGUMENTS} --kv-lora-rank 64").model == parse_megatron_args(ARGUMENTS).model


def test_what_does_not_go_together() -> None:
    """Grouped queries, and a rank of nothing."""
    with pytest.raises(ValueError, match="num_query_groups = num_attention_heads = 32, got 8"):
        replace(LLAMA_8B, multi_latent_attention=LatentAttention())
    with pytest.raises(ValueError, match="kv_lora_rank of latent attention must be a whole number >= 1, got 0"):
        LatentAttention(kv_lora_rank=0)
