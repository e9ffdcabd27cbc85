"""Hugging Face's ``config.json``: every key is used, changes nothing, or is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hugging_face_configs import CONFIGS, LLAMA_3_8B, LLAMA_3_SCALING, MISTRAL_7B, QWEN2_7B, QWEN3_8B, SMOLLM3_3B

from pipette_opt.base.errors import InputError
from pipette_opt.read.hugging_face import model_from_hugging_face
from pipette_opt.read.hugging_face_keys import harmless_keys, required_keys
from pipette_opt.read.model import list_models, read_model
from pipette_opt.specs import ModelSpec, YarnScaling

PARAMETERS = {"gpt2": 124_439_808, "phi-3-mini-4k": 3_821_079_552, "smollm3-3b": 3_075_098_624}
"""Sums of the tensors of published checkpoints, of models that are no presets."""


def read(config: dict[str, Any], name: str = "model") -> ModelSpec:
    """The model of a config."""
    return model_from_hugging_face(config, "config.json", name)


@pytest.mark.parametrize("name", sorted({*CONFIGS} & {*list_models()}))
def test_presets_are_what_the_files_say(name: str) -> None:
    """To the last field: sizes, positions, epsilons, windows, routers."""
    assert read(CONFIGS[name], name) == read_model(name)


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_sizes_come_out(tmp_path: Path, name: str) -> None:
    """A folder stands for its config.json, and gives the name."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    model = read_model(folder)
    assert (model.name, model.num_parameters) == (name, PARAMETERS[name])


def test_broken_files(tmp_path: Path) -> None:
    """Not JSON at all."""
    path = tmp_path / "config.json"
    path.write_text("{\nbroken")
    with pytest.raises(InputError, match="line 2: is not valid JSON"):
        read_model(path)


SAYS_NOTHING = (
    "architectures",  # only the kind of its head counts
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "max_window_layers",
    "n_ctx",
    "no_rope_layer_interval",
    "original_max_position_embeddings",
    "sliding_window",
    "use_sliding_window",
)
"""Keys that no class of transformers reads, or that say nothing beside the other keys of our examples."""


@pytest.mark.parametrize("name", CONFIGS)
def test_no_key_is_passed_over(name: str) -> None:
    """A new key, with a value, beside any family's is refused; an old one with another value changes or is refused."""
    with pytest.raises(InputError, match="unknown key 'new_size'"):
        read(CONFIGS[name] | {"new_size": 1})
    before = read(CONFIGS[name])
    for key, value in CONFIGS[name].items():
        if key in harmless_keys() or key.startswith("_") or value is None or key in SAYS_NOTHING:
            continue
        other = not value if isinstance(value, bool) else value * 2 if isinstance(value, int | float) else "other"
        try:
            assert read(CONFIGS[name] | {key: other or 3}) != before, key
        except InputError:
            continue


def test_notes_and_null_say_nothing() -> None:
    """Transformers' own notes, and keys without a value."""
    assert read(LLAMA_3_8B | {"_attn_implementation": "sdpa", "new_key": None}) == read(LLAMA_3_8B)


@pytest.mark.parametrize("key", sorted(required_keys()))
def test_values_that_change_nothing_are_taken(key: str) -> None:
    """Keys that other families have, at the value that means: not here."""
    for allowed in required_keys()[key].values:
        family = QWEN2_7B if key in ("attention_bias", "mlp_bias") else LLAMA_3_8B
        assert read(family | {key: allowed}) == read(family)


def test_rotary_positions_of_llama() -> None:
    """Base and scaling, by their old and by their new names."""
    found = read(LLAMA_3_8B | {"rope_scaling": LLAMA_3_SCALING})
    assert (found.rotary_base, found.rope_scaling_factor) == (500000, 8.0)
    new = {key: value for key, value in LLAMA_3_8B.items() if key not in ("rope_theta", "rope_scaling")}
    assert read(new | {"rope_parameters": {**LLAMA_3_SCALING, "rope_theta": 500000.0}}) == found
    linear = read(LLAMA_3_8B | {"rope_scaling": {"type": "linear", "factor": 4.0}})
    assert linear.rotary_seq_len_interpolation_factor == 4
    assert read(LLAMA_3_8B | {"partial_rotary_factor": 0.5}).rotary_percent == 0.5


def test_yarn() -> None:
    """As Qwen 2.5 and 3 have it for long sequences; mscale counts only where both are given, as in transformers."""
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    found = read(QWEN3_8B | {"rope_scaling": scaling})
    wanted = YarnScaling(rotary_scaling_factor=4.0, original_max_position_embeddings=32768)
    assert (found.position_embedding_type, found.yarn) == ("yarn", wanted)
    alone = read(QWEN3_8B | {"rope_scaling": {**scaling, "mscale": 0.7}})
    assert alone.yarn == wanted
    both = read(QWEN3_8B | {"rope_scaling": {**scaling, "mscale": 0.7, "mscale_all_dim": 0.9, "truncate": False}}).yarn
    assert both is not None
    assert (both.mscale, both.mscale_all_dim, both.correction_range_round_to_int) == (0.7, 0.9, False)


def test_windows() -> None:
    """Mistral's own default, none where null, and Qwen's in the upper layers only if switched on."""
    bare = {key: value for key, value in MISTRAL_7B.items() if key != "sliding_window"}
    assert read(bare).window_size == (4095, 0)
    assert read(MISTRAL_7B | {"sliding_window": None}).window_size is None
    assert read(QWEN2_7B | {"max_window_layers": 21}).window_size is None
    upper = read(QWEN2_7B | {"use_sliding_window": True, "max_window_layers": 21, "sliding_window": 4096})
    assert upper.window_size == (4095, 0)
    assert upper.window_attn_skip_freq == (0,) * 21 + (1,) * 7
    assert upper.num_windowed_layers == 7


def test_windows_by_kind_of_layer() -> None:
    """Five with a window, one without: every sixth layer skips it."""
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 6
    found = read(QWEN3_8B | {"use_sliding_window": True, "sliding_window": 1024, "layer_types": kinds})
    assert (found.window_size, found.window_attn_skip_freq, found.num_windowed_layers) == ((1023, 0), 6, 30)
    with pytest.raises(InputError, match=r"layer_types: .* it must be 36 times full_attention or sliding_attention"):
        read(QWEN3_8B | {"layer_types": ["linear_attention"] * 36})


def test_layers_without_positions() -> None:
    """SmolLM3 marks the layers with rotary positions, Megatron those without."""
    assert read(SMOLLM3_3B).no_rope_freq == 4
    odd = read(SMOLLM3_3B | {"no_rope_layers": [0] + [1] * 35})
    assert odd.no_rope_freq == (1,) + (0,) * 35


def test_activations_norms_and_residuals() -> None:
    """Squared ReLU with norms around 1, and GPT-NeoX's parallel layers."""
    nemotron = read(CONFIGS["minitron-4b"])
    assert (nemotron.activation_func, nemotron.gated_linear_unit) == ("squared_relu", False)
    assert (nemotron.layernorm_zero_centered_gamma, nemotron.rotary_percent) == (True, 0.5)
    neox = read(CONFIGS["gpt-neox-20b"])
    assert (neox.parallel_residual, neox.rotary_percent) == (True, 0.25)
    assert not read(CONFIGS["gpt-neox-20b"] | {"use_parallel_residual": False}).parallel_residual


ODD: list[Any] = [
    *("x", [], [1], [[1]], {"a": 1}, 0, -1, 1.5, 1e300, float("inf"), float("nan"), 10**30, True, [[1]] * 36),
    *({"rope_theta": one} for one in ("x", [1], float("inf"), float("nan"), -5)),
    *({"type": "yarn", "factor": one} for one in ("x", -4, None)),
    *({"type": one} for one in ([1], {"a": 1}, 3)),
    {"partial_rotary_factor": 5},
    {"type": "yarn", "factor": 4, "original_max_position_embeddings": 1.5},
]
"""Values that no config has."""


def test_arcee() -> None:
    """AFM-4.5B has 4.62 billion parameters, without gates; absent keys are those of ``ArceeConfig``."""
    model = read(CONFIGS["afm-4.5b"])
    assert model.num_parameters == pytest.approx(4.62e9, rel=0.002)
    assert (model.gated_linear_unit, model.activation_func) == (False, "squared_relu")
    small = {
        key: value for key, value in CONFIGS["afm-4.5b"].items() if key not in ("num_key_value_heads", "rms_norm_eps")
    }
    assert (read(small).num_query_groups, read(small).norm_epsilon) == (20, 1e-5)
    with pytest.raises(InputError, match="hidden_act: 'silu' is not supported"):
        read(small | {"hidden_act": "silu"})


@pytest.mark.parametrize("name", ["llama-3-8b", "qwen2-7b", "smollm3-3b", "mixtral-8x7b", "gpt2"])
def test_odd_values_are_taken_or_refused(name: str) -> None:
    """Whatever the value, the only exception is the one for wrong input."""
    refused = 0
    for key in (*CONFIGS[name], "rope_parameters", "rope_scaling", "layer_types", "max_window_layers", "head_dim"):
        for value in ODD:
            try:
                read(CONFIGS[name] | {key: value})
            except InputError:
                refused += 1
    assert refused > len(CONFIGS[name])


def test_absent_keys_have_the_defaults_of_their_family() -> None:
    """Defaults stand beside the family's reader; the head size need not divide the width."""
    config = {"model_type": "ernie4_5", "hidden_size": 500, "num_attention_heads": 8, "num_hidden_layers": 2}
    config |= {"intermediate_size": 1024, "vocab_size": 1000, "max_position_embeddings": 4096}
    model = model_from_hugging_face(config, "config.json", "small")
    assert (model.num_query_groups, model.kv_channels, model.rotary_base) == (2, 128, 500000)
    assert not model.untie_embeddings_and_output_weights
