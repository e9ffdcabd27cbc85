"""Further families of Hugging Face's ``config.json``, and files that other programs wrote."""

import contextlib
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hugging_face_configs import LLAMA_3_8B, QWEN2_7B, QWEN3_8B
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.read.hugging_face import model_from_hugging_face
from pipette_opt.read.model import read_model
from pipette_opt.specs import ModelSpec, SparseAttention

SIZES: dict[str, dict[str, int]] = table(__file__, "SIZES")
VOCABULARY = table(__file__, "VOCABULARY")
PUBLISHED = table(__file__, "PUBLISHED")
"""Parameters as the models' pages say them: OLMo 2 7B, OLMoE, Qwen1.5-MoE-A2.7B, ERNIE-4.5-21B-A3B, GLM-4-9B-0414,
dots.llm1, GLM-4.7-Flash without multi-token prediction."""

GRANITE_H_SMALL: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12,
    "hidden_size": 4096,
    "intermediate_size": 768,
    "layer_types": [("attention" if layer % 10 == 5 else "mamba") for layer in range(40)],
    "logits_scaling": 16,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "num_local_experts": 72,
    "position_embedding_type": "nope",
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000,
    "shared_intermediate_size": 1536,
    "tie_word_embeddings": True,
    "vocab_size": 100352,
}


def read(config: dict[str, Any]) -> ModelSpec:
    """The model of a config."""
    return model_from_hugging_face(config, "config.json", "model")


@pytest.mark.parametrize("family", SIZES)
def test_families_have_the_published_parameters(family: str) -> None:
    """Within the digits of the models' pages."""
    config = {"model_type": family, "vocab_size": VOCABULARY[family], "max_position_embeddings": 4096, **SIZES[family]}
    assert read(config).num_parameters == pytest.approx(PUBLISHED[family], rel=0.005)


def test_granite_hybrids() -> None:
    """Granite 4.0 H Small: 32.2 billion parameters, 9.1 active; a layer is two letters, factors are kept."""
    model = read(GRANITE_H_SMALL)
    assert model.num_parameters == pytest.approx(32.2e9, rel=0.005)
    assert (model.num_layers, model.num_moe_layers, model.has_rotary_positions) == (80, 40, False)
    assert model.hybrid_layer_pattern is not None
    assert model.hybrid_layer_pattern.count("*E") == 4
    assert dict(model.multipliers or ())["logits_scaling"] == "16"


def test_granite_without_experts() -> None:
    """``num_local_experts`` 0 is a dense MLP of the shared width, however wide experts would be."""
    dense = GRANITE_H_SMALL | {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 8192}
    assert read(dense).num_experts is None
    plain = read(dense | {"layer_types": ["attention"] * 40, "position_embedding_type": "rope"})
    assert (plain.num_layers, plain.ffn_hidden_size, plain.hybrid_layer_pattern) == (40, 8192, None)
    with pytest.raises(InputError, match=r"layer_types: .* it must be 40 times attention or mamba"):
        read(dense | {"layer_types": ["full_attention"] * 40})
    with pytest.raises(InputError, match="num_experts_per_tok: 10 is not supported; with num_local_experts 0"):
        read(dense | {"num_experts_per_tok": 10})


def test_norms_after_branches_only() -> None:
    """OLMo: as many norms as with norms before, queries and keys over all heads."""
    config = {"model_type": "olmo2", "vocab_size": 1024, "max_position_embeddings": 4096, **SIZES["olmo2"]}
    model = read(config)
    assert (model.pre_norms, model.post_norms, model.more_norms) == (False, True, 0)
    by_head = replace(model, qk_layernorm_across_heads=False)
    assert model.num_parameters - by_head.num_parameters == 32 * 2 * (4096 - 128)


def test_positions_by_kind_of_layer() -> None:
    """Transformers 5 writes them apart; OLMo 3 scales only those of layers without a window."""
    sizes = {"model_type": "olmo3", "vocab_size": 1024, "max_position_embeddings": 65536, **SIZES["olmo2"]}
    factor = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    old = read(sizes | {"rope_theta": 5e5, "rope_scaling": factor})
    by_kind = {
        "full_attention": {**factor, "rope_theta": 5e5, "attention_factor": 1.2079441541679836},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
    }
    assert read(sizes | {"rope_parameters": by_kind}) == old
    assert (old.position_embedding_type, old.local_rotary_base, old.window_attn_skip_freq) == ("yarn", 500000, 4)
    assert read(sizes | {"rope_theta": 5e5}).local_rotary_base is None


def test_text_parts(caplog: pytest.LogCaptureFixture) -> None:
    """Of a model with images the text part is read, and the rest is named."""
    text = QWEN3_8B | {"model_type": "qwen3_vl_text"}
    text["rope_scaling"] = {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}
    nested = {
        "model_type": "qwen3_vl",
        "text_config": text,
        "vision_config": {"depth": 27},
        "tie_word_embeddings": True,
    }
    assert read(nested) == read(QWEN3_8B)
    assert "only the text part, text_config, is read; left out: vision_config" in caplog.text


DELTA_NETS: dict[str, Any] = {
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
    "vocab_size": 248320,
}
"""What Qwen3.5's text parts share."""


def test_qwen_3_5() -> None:
    """26.9 and 34.7 billion parameters of Qwen3.5 27B and 35B-A3B, their depth of prediction apart."""
    dense = {"hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24}
    dense |= {"model_type": "qwen3_5_text", "num_key_value_heads": 4, "linear_num_value_heads": 48}
    experts = {"hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2}
    experts |= {"model_type": "qwen3_5_moe_text", "linear_num_value_heads": 32, "num_experts": 256}
    for text, billions in ((dense, 26.9), (experts, 34.7)):
        model = read({"model_type": "qwen3_5", "text_config": DELTA_NETS | text})
        assert (model.num_parameters - model.num_mtp_parameters) / 1e9 == pytest.approx(billions, rel=0.002)
        assert (model.mtp_num_layers, model.linear_attention_freq) == (1, 4)
    with pytest.raises(InputError, match="attn_output_gate: False is not supported"):
        read(DELTA_NETS | dense | {"attn_output_gate": False})


def test_gemma_as_it_is_published() -> None:
    """The text part of Gemma 3 4B leaves out what the family's class has as defaults; 3.88 billion parameters."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    model = read({"model_type": "gemma3", "text_config": text | {"sliding_window": 1024}, "vision_config": {}})
    assert (model.num_attention_heads, model.num_query_groups, model.vocab_size) == (8, 4, 262208)
    assert model.num_parameters == pytest.approx(3.88e9, rel=0.002)


def test_images_beside_the_text(caplog: pytest.LogCaptureFixture) -> None:
    """Qwen2.5-VL has keys of the text at the top, and positions of images that text does not have."""
    of_images = {"model_type": "qwen2_5_vl", "vision_config": {"depth": 32}, "image_token_id": 151655}
    found = read(QWEN2_7B | of_images | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}})
    assert found == read(QWEN2_7B)
    assert "not used: vision_config ({'depth': 32}), image_token_id (151655)" in caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("resid_pdrop", 0.1),
        ("unsloth_version", "2025.1"),
        ("router_dtype", "float32"),
        ("use_lm_head_gate", False),
        ("eos_token_ids", [1, 2]),
    ],
)
def test_keys_that_change_nothing_are_named(caplog: pytest.LogCaptureFixture, key: str, value: object) -> None:
    """They refuse no file."""
    with caplog.at_level(logging.WARNING):
        assert read(LLAMA_3_8B | {key: value}) == read(LLAMA_3_8B)
    assert f"not used: {key} (" in caplog.text


@pytest.mark.parametrize("family", [*SIZES, "granitemoehybrid", "qwen3_next"])
def test_odd_values_are_taken_or_refused(family: str) -> None:
    """Whatever the value of a list or an object, the only exception is the one for wrong input."""
    sizes = {"vocab_size": 1024, "max_position_embeddings": 4096, **SIZES.get(family, SIZES["olmo2"])}
    config = GRANITE_H_SMALL if family == "granitemoehybrid" else DELTA_NETS | sizes | {"model_type": family}
    keys = ("layer_types", "rope_parameters", "rope_scaling", "mlp_only_layers", "moe_layer_end_index", "text_config")
    for key in (*keys, "moe_layer_start_index", "num_hidden_layers", "quantization_config", "mamba_d_head"):
        for value in (0, -1, 1.5, True, "x", [], [1], [[1]] * 40, {"full_attention": 3}, {"type": []}):
            with contextlib.suppress(InputError):
                read(config | {key: value})


@pytest.mark.parametrize("config", [{"quantization_config": {"quant_method": "fp8"}}, {"use_grouped_mm": True}])
def test_stored_formats_and_kernels_say_nothing(caplog: pytest.LogCaptureFixture, config: dict[str, Any]) -> None:
    """Without a warning, as they are known."""
    assert read(LLAMA_3_8B | config) == read(LLAMA_3_8B)
    assert not caplog.text


CONFIGS = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared")) / "cases" / "configs"
needs_configs = pytest.mark.skipif(not CONFIGS.is_dir(), reason="the published configs are not here")

SHARED = {
    "GLM-4.7": 352.8,
    "INTELLECT-3": 106.9,
    "MiniMax-M2.7-BF16": 228.7,
    "Seed-OSS-36B": 36.15,
    "Olmo-3-7B": 7.30,
    "Ling-mini-2.0": 16.3,
    "Granite-4.0-micro-dense": 3.4,
    "v5-glm4moe-tiny": 0.543,
    "llama-pruna": 8.25,
}
"""Billions of parameters without multi-token prediction."""


@needs_configs
@pytest.mark.parametrize("name", SHARED)
def test_configs_as_published(name: str) -> None:
    """Each is read, with its parameters."""
    model = read_model(CONFIGS / name)
    assert (model.num_parameters - model.num_mtp_parameters) / 1e9 == pytest.approx(SHARED[name], rel=0.005)


@needs_configs
def test_sparse_attention_of_glm_5() -> None:
    """Its config has an indexer of 32 heads, and no size of values: DeepSeek's default counts."""
    model = read_model(CONFIGS / "GLM-5_20layer")
    assert model.sparse_attention == SparseAttention(n_heads=32, head_dim=128, topk=2048)
    assert {kind.mixer for kind in model.layers} == {"sparse_attention"}
    assert model.multi_latent_attention is not None
    assert model.multi_latent_attention.v_head_dim == 128


@needs_configs
@pytest.mark.parametrize(
    ("folder", "preset"),
    [
        ("GLM-4.7", "glm-4.7"),
        ("MiniMax-M2.7-BF16", "minimax-m2.7"),
        ("Seed-OSS-36B", "seed-oss-36b"),
        ("Olmo-3-7B", "olmo-3-7b"),
        ("Ling-mini-2.0", "ling-mini-2.0"),
        ("Granite-4.0-micro-dense", "granite-4.0-micro"),
    ],
)
def test_presets_are_what_published_configs_say(folder: str, preset: str) -> None:
    """To the last field."""
    assert replace(read_model(CONFIGS / folder), name=preset) == read_model(preset)


@pytest.mark.parametrize(
    "name",
    ["LlamaForSequenceClassification", "LlamaForTokenClassification", "LlamaForQuestionAnswering", "LlamaRewardModel"],
)
def test_heads_that_are_no_language_models_are_refused(name: str) -> None:
    """Megatron-LM's model has an output layer of the vocabulary."""
    with pytest.raises(
        InputError, match=rf"architectures: \['{name}'\] is not supported; its head is not a language model"
    ):
        read(LLAMA_3_8B | {"architectures": [name]})


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel", "LlamaForConditionalGeneration", "LlamaModel"])
def test_other_heads_are_those_of_language_models(caplog: pytest.LogCaptureFixture, name: str) -> None:
    """A class without a head is named."""
    with caplog.at_level(logging.WARNING):
        assert read(LLAMA_3_8B | {"architectures": [name]}) == read(LLAMA_3_8B)
    assert ("LlamaModel names no head" in caplog.text) == (name == "LlamaModel")
