"""Latent attention and multi-token prediction in the words of Megatron-Bridge and Megatron-LM."""

from dataclasses import replace
from typing import Any

from factories import make_cluster, make_config, make_job, plan_of

from pipette_opt.export.megatron import builder_notes
from pipette_opt.frameworks.nemo import hydra_words, overrides
from pipette_opt.plans.plan import Plan
from pipette_opt.read.model import read_model
from pipette_opt.specs import ModelSpec


def tiny(name: str, **options: Any) -> ModelSpec:
    """A preset with two layers and few experts; functions that Hydra cannot name left out."""
    return replace(
        read_model(name), num_layers=2, num_dense_layers=1, num_experts=8, moe_ffn_hidden_size=64, moe_router_topk=4,
        other_arguments=None, **options,
    )  # fmt: skip


def planned(model: ModelSpec) -> Plan:
    """Two stages of four GPUs."""
    given = make_job(make_cluster(1), model, seq_length=1024)
    one = make_config(tp=1, pp=2, dp=4, mbs=1, num_layers=2)
    return plan_of(given, one, (0,), stages_per_host=2)


def test_bridge_says_all_of_latent_attention() -> None:
    """Names of ``MLATransformerConfig``, groups of experts, and depths of multi-token prediction."""
    model = tiny("deepseek-v3")
    words = hydra_words(overrides(planned(model)))
    for word in (
        "multi_latent_attention=true",
        "q_lora_rank=1536",
        "kv_lora_rank=512",
        "qk_pos_emb_head_dim=64",
        "v_head_dim=128",
        "rope_type=yarn",
        "rotary_scaling_factor=40.0",
        "mscale_all_dim=1.0",
        "mtp_num_layers=1",
        "moe_router_num_groups=8",
        "moe_router_group_topk=4",
    ):
        assert f"model.{word}" in words


def test_bridge_has_nothing_of_it_without() -> None:
    """An ordinary mixture with a second head keeps its recipe's attention."""
    words = hydra_words(overrides(planned(tiny("glm-4.5-air"))))
    assert not [word for word in words if "lora" in word]
    assert "model.mtp_num_layers=1" in words


def test_megatron_lm_has_no_word_for_the_ramp_of_kimi() -> None:
    """Kimi-K2 keeps no frequency as it is (``beta_fast`` 1); a comment tells who builds the model."""
    (note,) = builder_notes(read_model("kimi-k2"))
    assert note.startswith("Megatron-LM has no arguments for beta_fast=1.0 of latent attention")
    assert not builder_notes(read_model("deepseek-v3"))
