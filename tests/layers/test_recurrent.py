"""Layers with a state against counts by hand: Nemotron-H's Mamba-2 and Qwen3-Next's gated delta net."""

from dataclasses import replace

import pytest
from factories import TINY

from pipette_opt.layers.parameters import layer_parameters
from pipette_opt.read.model import read_model
from pipette_opt.specs import GatedDeltaNet, LayerKind, Mamba

HYBRID, NEXT = read_model("nemotron-h-56b"), read_model("qwen3-next-80b-a3b")


def test_mamba_layer_by_hand() -> None:
    """256 heads of 64 channels, states of 256 channels in 8 groups: each matrix and vector of the checkpoint."""
    kind, inner, groups = HYBRID.layers[0], 256 * 64, 8 * 256
    assert kind == LayerKind("mamba", "none")
    into = 8192 * (2 * inner + 2 * groups + 256)
    conv = (inner + 2 * groups) * (4 + 1)
    heads = 3 * 256  # dt_bias, A_log, D
    out = inner * 8192
    assert layer_parameters(HYBRID, kind).sharded == into + conv + heads + inner + out
    assert layer_parameters(HYBRID, kind).replicated == 8192
    # Megatron-LM's mamba_layer_flops, halved: matrices and 7 / 2 of channels times states.
    assert HYBRID.mixer(kind).multiplications == into + out + (inner + 2 * groups) * 4 + 3.5 * inner * 256


def test_delta_layer_by_hand() -> None:
    """16 heads of keys and 32 of values, 128 channels each; a mixture of 512 experts after it."""
    kind = NEXT.layers[0]
    assert kind == LayerKind("gated_delta_net", "experts")
    assert NEXT.layers[3] == LayerKind("attention", "experts", rotary=True)
    keys, values = 16 * 128, 32 * 128
    mixer = 2048 * (2 * keys + 2 * values + 2 * 32) + (2 * keys + values) * 4 + 2 * 32 + values * 2048
    shared = 3 * 2048 * 512
    assert layer_parameters(NEXT, kind).sharded == mixer + shared
    assert layer_parameters(NEXT, kind).replicated == 2 * 2048 + 128 + 2048 * 512
    assert layer_parameters(NEXT, kind).experts == 512 * 3 * 2048 * 512


def test_kept_activations_by_hand() -> None:
    """Elements of 16 bits for a token of Mamba-2: 37,120 of the product, twice 16,384; of the delta net those kept."""
    assert HYBRID.mamba is not None
    assert HYBRID.mamba.kept_bytes(2) == 2 * (37_120 + 2 * 16_384)
    net = NEXT.gated_delta_net
    assert net is not None
    assert net.in_size == 12_352
    assert net.kept_bytes(2) == 2 * (12_352 + 8192 + 2 * 4096 + 32 * 64 + 2 * 4096) + 8 * 32


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hybrid_layer_pattern": "M-"}, "must be 4 letters of"),
        ({"hybrid_layer_pattern": "M-*X"}, "with 'X'"),
        ({"hybrid_layer_pattern": "M-*-"}, "mamba must be given if and only if"),
        ({"hybrid_layer_pattern": "*-*E"}, "num_experts must be given if and only if"),
        ({"mamba": Mamba(num_heads=8)}, "mamba must be given if and only if"),
        ({"linear_attention_freq": 4}, "gated_delta_net must be given if and only if"),
        ({"linear_attention_freq": (1, 0), "gated_delta_net": GatedDeltaNet()}, "for each of the 4 layers"),
        ({"hybrid_layer_pattern": "*-*-", "window_size": (3, 0)}, "window_size does not go with hybrid_layer_pattern"),
    ],
)
def test_lists_that_do_not_fit(changes: dict[str, object], problem: str) -> None:
    """What is wrong, and what would be right."""
    with pytest.raises(ValueError, match=problem):
        replace(TINY, num_layers=4, **changes)  # type: ignore[arg-type]


def test_sizes_that_do_not_divide() -> None:
    """Groups share heads evenly, and so do keys values."""
    with pytest.raises(ValueError, match="num_groups of mamba must divide num_heads=12"):
        Mamba(num_heads=12)
    with pytest.raises(ValueError, match="num_key_heads of gated_delta_net must divide num_value_heads=32"):
        GatedDeltaNet(num_key_heads=12)
