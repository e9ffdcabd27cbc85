"""Latent attention: its kernels beside ordinary attention, and sizes that fp8 refuses."""

from dataclasses import replace
from typing import Any

import pytest
from factories import A100_80, make_cluster, make_config, make_job

from pipette_opt.candidates.legality import check_legal
from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.collectives import tensor_traffic
from pipette_opt.costs.compute import layer_times_s
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.model import read_model
from pipette_opt.specs import DEFAULT_STACK, LatentAttention, TrainingSpec

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


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_each_gather_of_latents_has_its_steps(tp: int) -> None:
    """
    By hand: three gathers (latents of queries, or the input; of keys; the key with positions), then a scatter.

    The MLP has one of both, so a layer has 6 calls of n - 1 steps, and 4 without latents. Backward, both gradients are
    gathered, and that of the key with positions is scattered: its gather is outside of the products.
    """
    one = split(tp=tp, dp=8 // tp, sequence_parallel=True)
    for model, both in (
        (replace(MODEL, multi_latent_attention=None), (4, 2)),
        (replace(MODEL, multi_latent_attention=replace(LATENT, q_lora_rank=None)), (6, 3)),
        (MODEL, (6, 3)),
    ):
        for calls, traffic in zip(both, tensor_traffic(model, TRAINING, one, model.layers[0]), strict=True):
            assert (traffic.num_calls, traffic.num_steps) == (calls, calls * (tp - 1))
