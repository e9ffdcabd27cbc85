"""megatron-core takes a model's positions, windows and activations as we mean them."""

import dataclasses
import inspect
import warnings
from dataclasses import replace
from typing import Any

import pytest
from clients_here import require_at_collection
from factories import LLAMA_8B, TINY, make_cluster, make_config, make_job, plan_of

from pipette_opt.frameworks.nemo import overrides
from pipette_opt.specs import ModelSpec, YarnScaling

require_at_collection("megatron.core")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.utils import is_layer_window_attention

pytestmark = pytest.mark.client("megatron.core")

MODELS: dict[str, ModelSpec] = {
    "llama": LLAMA_8B,
    "gpt": TINY,
    "windows": replace(LLAMA_8B, window_size=(4095, 0)),
    "every third without": replace(LLAMA_8B, window_size=(127, 0), window_attn_skip_freq=3),
    "a list": replace(LLAMA_8B, window_size=(127, 0), window_attn_skip_freq=(0,) * 21 + (1,) * 11),
    "no positions": replace(LLAMA_8B, no_rope_freq=4),
    "norms and softmax": replace(
        LLAMA_8B, norm_epsilon=1e-6, layernorm_zero_centered_gamma=True, softmax_type="learnable", qk_layernorm=True
    ),
}


def made(model: ModelSpec) -> TransformerConfig:
    """The configuration of megatron-core, from the fields that we write for Megatron-Bridge."""
    given = make_job(make_cluster(4, gpus=4), model)
    plan = plan_of(given, make_config(tp=4, pp=1, dp=4, num_layers=model.num_layers), (0, 1, 2, 3))
    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    fields: dict[str, Any] = {name: value for name, value in overrides(plan)["model"].items() if name in known}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TransformerConfig(**fields)


@pytest.mark.parametrize("name", MODELS)
def test_megatron_core_takes_the_fields(name: str) -> None:
    """Its own checks pass, and its own function counts the same layers with a window."""
    model = MODELS[name]
    found = made(model)
    assert found.layernorm_epsilon == model.norm_epsilon
    assert found.softmax_type == model.softmax_type
    layers = range(1, model.num_layers + 1)
    windowed = [is_layer_window_attention(found.window_size, found.window_attn_skip_freq, layer) for layer in layers]
    assert sum(windowed) == model.num_windowed_layers
    if model.no_rope_freq is not None:
        assert found.no_rope_freq == [0, 0, 0, 1] * 8


def defaults(function: Any) -> dict[str, Any]:
    """Default values of a function's parameters."""
    return {name: one.default for name, one in inspect.signature(function).parameters.items()}


def test_constants_of_scaled_positions() -> None:
    """What has no argument in Megatron, and what its parameters are without one."""
    scaling = defaults(RotaryEmbedding._apply_scaling)
    assert (scaling["low_freq_factor"], scaling["high_freq_factor"]) == (1, 4)
    assert scaling["original_max_position_embeddings"] == 8192
    assert defaults(GPTModel.__init__)["rope_scaling_factor"] == 8.0
    yarn = defaults(YarnRotaryEmbedding.__init__)
    theirs = {"rotary_scaling_factor": yarn["scaling_factor"], **yarn}
    for field in dataclasses.fields(YarnScaling):
        assert theirs[field.name] == field.default, field.name


def test_defaults_are_megatrons() -> None:
    """A model that says nothing has megatron-core's values."""
    theirs = {field.name: field.default for field in dataclasses.fields(TransformerConfig)}
    ours = {field.name: field.default for field in dataclasses.fields(ModelSpec)}
    theirs |= {"norm_epsilon": theirs["layernorm_epsilon"]}
    for name in (
        "activation_func_clamp_value",
        "glu_linear_offset",
        "init_method_std",
        "layernorm_zero_centered_gamma",
        "moe_router_pre_softmax",
        "no_rope_freq",
        "norm_epsilon",
        "rotary_interleaved",
        "softmax_type",
        "window_attn_skip_freq",
        "window_size",
    ):
        assert ours[name] == theirs[name], name
