"""``config.json`` of models whose layers are of several kinds, as published, against the presets."""

from typing import Any

import pytest
from hugging_face_configs import LAYER_LISTS

from pipette_opt.base.errors import InputError
from pipette_opt.read.hugging_face import model_from_hugging_face
from pipette_opt.read.model import read_model


@pytest.mark.parametrize("name", LAYER_LISTS)
def test_published_files_are_the_presets(name: str) -> None:
    """To the last field."""
    assert model_from_hugging_face(LAYER_LISTS[name], "config.json", name) == read_model(name)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("gpt-oss-120b", {"attention_bias": False}, "attention_bias: False is not supported"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "M-X"}, "with 'X'"),
        ("nemotron-h-8b", {"conv_kernel": 3}, "convolution sees four tokens"),
        ("nemotron-h-8b", {"mamba_num_heads": 12}, "num_groups of mamba must divide num_heads=12"),
        ("qwen3-next-80b-a3b", {"layer_types": ["full_attention"]}, "48 times full_attention or linear_attention"),
        ("llama-4-maverick", {"use_qk_norm": True}, "norm without weights"),
        ("llama-4-maverick", {"moe_layers": [48]}, "a list of layers below 48"),
    ],
)
def test_other_values_are_refused(name: str, changes: dict[str, Any], problem: str) -> None:
    """By name, with what would be right."""
    with pytest.raises(InputError, match=problem):
        model_from_hugging_face(LAYER_LISTS[name] | changes, "config.json", "some")
