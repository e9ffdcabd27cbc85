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

GRANITE_H_SMALL: dict[str, Any] = table(__file__, "GRANITE_H_SMALL")
DELTA_NETS: dict[str, Any] = table(__file__, "DELTA_NETS")
"""What Qwen3.5's text parts share."""

BASES = {"granite": GRANITE_H_SMALL, "delta nets": DELTA_NETS, "llama": LLAMA_3_8B, "qwen2": QWEN2_7B, "none": {}}
SIZES: dict[str, dict[str, int]] = table(__file__, "SIZES")
VOCABULARY = table(__file__, "VOCABULARY")
PUBLISHED = table(__file__, "PUBLISHED")
"""Parameters as the models' pages say them: OLMo 2 7B, OLMoE, Qwen1.5-MoE-A2.7B, ERNIE-4.5-21B-A3B, GLM-4-9B-0414,
dots.llm1, GLM-4.7-Flash without multi-token prediction."""


def read(config: dict[str, Any]) -> ModelSpec:
    """The model of a config."""
    return model_from_hugging_face(config, "config.json", "model")


@pytest.mark.parametrize("family", SIZES)
def test_families_have_the_published_parameters(family: str) -> None:
    """Within the digits of the models' pages."""
    config = {"model_type": family, "vocab_size": VOCABULARY[family], "max_position_embeddings": 4096, **SIZES[family]}
    assert read(config).num_parameters == pytest.approx(PUBLISHED[family], rel=0.005)


def config_of(row: dict[str, Any]) -> dict[str, Any]:
    """Config of a row: a base with changed keys, or that as the text part of a larger model."""
    config = BASES[row["base"]] | row["changes"]
    return {"text_config": config, **row["around"]} if "around" in row else config


@pytest.mark.parametrize("row", table(__file__, "READ"), ids=lambda row: row["shows"])
def test_configs(row: dict[str, Any]) -> None:
    """Each config has the billions of parameters beside it, without multi-token prediction, and these fields."""
    model = read(config_of(row))
    if "billions" in row:
        assert (model.num_parameters - model.num_mtp_parameters) / 1e9 == pytest.approx(row["billions"], rel=row["rel"])
    for name, expected in row["means"].items():
        found = getattr(model, name)
        assert (dict(found) if name == "multipliers" else found) == expected, name


@pytest.mark.parametrize("row", table(__file__, "REFUSED"), ids=lambda row: row["error"])
def test_refused_configs(row: dict[str, Any]) -> None:
    """Each config is refused in the words beside it."""
    with pytest.raises(InputError, match=row["error"]):
        read(config_of(row))


@pytest.mark.parametrize("row", table(__file__, "SAME"), ids=lambda row: row["shows"])
def test_keys_that_change_nothing(caplog: pytest.LogCaptureFixture, row: dict[str, Any]) -> None:
    """They refuse no file; those that nobody knows are named, stored formats and kernels are not."""
    with caplog.at_level(logging.WARNING):
        assert read(config_of(row)) == read(BASES[row["base"]])
    assert (row["logged"] in caplog.text) if row["logged"] else not caplog.text


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


CONFIGS = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared")) / "cases" / "configs"
needs_configs = pytest.mark.skipif(not CONFIGS.is_dir(), reason="the published configs are not here")

SHARED: dict[str, float] = table(__file__, "SHARED")
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
@pytest.mark.parametrize(("folder", "preset"), table(__file__, "PRESETS"))
def test_presets_are_what_published_configs_say(folder: str, preset: str) -> None:
    """To the last field."""
    assert replace(read_model(CONFIGS / folder), name=preset) == read_model(preset)
