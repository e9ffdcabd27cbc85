"""Latent attention: its products, its collectives, its kernels and what it keeps, by hand."""

from dataclasses import replace
from typing import Any

import pytest
from factories import A100_80, make_cluster, make_config, make_job

from pipette_opt.candidates.legality import check_legal
from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.collectives import tensor_traffic
from pipette_opt.costs.compute import layer_times_s
from pipette_opt.costs.context import key_value_bytes
from pipette_opt.memory.formula import formula_bytes, parameters
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.model import read_model
from pipette_opt.specs import DEFAULT_STACK, LatentAttention, LayerKind, ModelSpec, TrainingSpec

LATENT = LatentAttention(q_lora_rank=96, kv_lora_rank=64, qk_head_dim=32, qk_pos_emb_head_dim=16, v_head_dim=32)
MODEL = replace(
    read_model("llama-2-7b"),
    num_layers=2,
    hidden_size=512,
    ffn_hidden_size=1024,
    num_attention_heads=8,
    num_query_groups=8,
    kv_channels=64,
    qk_layernorm=True,
    multi_latent_attention=LATENT,
)
TRAINING = TrainingSpec(global_batch_size=8, seq_length=256)


def split(**options: Any) -> ParallelConfig:
    """Two layers on one stage."""
    return make_config(**{"tp": 1, "pp": 1, "dp": 8, "num_layers": 2, **options})


def activations(model: ModelSpec, **options: Any) -> float:
    """Bytes kept of two layers and one micro-batch."""
    return float(formula_bytes(stage_table(model, TRAINING, [split(**options)])).saved[0])


def test_kept_of_one_token_by_hand() -> None:
    """
    Against the same model with ordinary heads of 64 channels, in bf16 and without tensor parallelism.

    Ordinary: query, key, value and output, 4 x 512 channels. Latent: query and key 8 x 48, value and output 8 x 32;
    latents 96 + 64 + 16 as they come out of the down projections, 96 + 64 as they are normed.
    """
    plain = activations(replace(MODEL, multi_latent_attention=None, qk_layernorm=False))
    kept = 2 * (2 * 8 * 48 + 2 * 8 * 32 + (96 + 64 + 16) + (96 + 64))
    assert activations(MODEL) - plain == pytest.approx(2 * 256 * (kept - 2 * 4 * 512))


def test_ranks_hold_the_down_projections_whole() -> None:
    """Four tensor ranks: a quarter of the up projections and of the MLP, all of the down projections."""
    table = stage_table(MODEL, TRAINING, [split(tp=4, dp=2, sequence_parallel=True)])
    down = 512 * (96 + 64 + 16)
    up = 8 * 48 * 96 + 8 * 64 * 64 + 8 * 32 * 512
    mlp = 3 * 512 * 1024
    norms = 2 * 512 + 96 + 64
    assert table.layer_parameters[0] == down + norms + (up + mlp) / 4
    assert table.matrix_parameters[0] == 2 * (down + (up + mlp) / 4)
    head = 2 * 32256 * 512 / 4 + 512  # a vocabulary of 32,000, padded to 512 tokens
    assert float(parameters(table)[0]) == pytest.approx(2 * (down + norms + (up + mlp) / 4) + head)


def test_latents_are_gathered_in_place_of_the_input() -> None:
    """Sequence parallelism: 176 channels gathered and 512 reduced for attention, 512 and 512 for the MLP."""
    wide = split(tp=4, dp=2, sequence_parallel=True)
    ring = tensor_traffic(MODEL, TRAINING, wide, MODEL.layers[0])[0]
    plain = tensor_traffic(replace(MODEL, multi_latent_attention=None), TRAINING, wide, LayerKind())[0]
    assert ring.hop_bytes / plain.hop_bytes == pytest.approx((176 + 3 * 512) / (4 * 512))
    assert ring.num_calls == plain.num_calls + 2
    full = replace(MODEL, multi_latent_attention=replace(LATENT, q_lora_rank=None))
    assert tensor_traffic(full, TRAINING, wide, full.layers[0])[0].hop_bytes / plain.hop_bytes == pytest.approx(
        (80 + 4 * 512) / 2048
    )


def test_context_ranks_send_unequal_keys_and_values() -> None:
    """Keys of 48 channels and values of 32 for each of two heads on a rank, 64 tokens, two bytes."""
    assert key_value_bytes(MODEL, TRAINING, split(tp=4, context_parallel_size=2, dp=1)) == 128 * 2 * (48 + 32) * 2


def test_attention_of_equal_heads_is_the_ordinary_one() -> None:
    """With keys and values of 64 channels the kernels are those of ordinary attention."""
    equal = LatentAttention(qk_head_dim=48, qk_pos_emb_head_dim=16, v_head_dim=64)
    plain, one = replace(MODEL, multi_latent_attention=None), split()
    latent = replace(MODEL, multi_latent_attention=equal)
    times = [
        attention_times_s(model, TRAINING, one, A100_80, DEFAULT_STACK, model.layers[0]) for model in (plain, latent)
    ]
    assert times[0] == pytest.approx(times[1])


def test_a_layer_takes_longer_with_wider_latents() -> None:
    """Each of the ranks and heads adds time."""
    given = make_job(make_cluster(1), MODEL, seq_length=4096)
    before = sum(layer_times_s(given, split(), A100_80))
    for name in ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "v_head_dim"):
        wider = replace(LATENT, **{name: 16 * getattr(LATENT, name)})
        after = layer_times_s(replace(given, model=replace(MODEL, multi_latent_attention=wider)), split(), A100_80)
        assert sum(after) > before


def test_fp8_wants_latents_in_sixteens() -> None:
    """Products of every width are in fp8, those of latents too."""
    training = replace(TRAINING, fp8=True)
    assert not check_legal(MODEL, training, split())
    odd = replace(MODEL, multi_latent_attention=replace(LATENT, q_lora_rank=100))
    assert check_legal(odd, training, split()) == ["fp8 needs multiples of 16, and latent width 100 is 100"]
