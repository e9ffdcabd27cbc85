"""Layer lists and sizes of layers with a state that do not fit are refused."""

from dataclasses import replace

import pytest
from factories import TINY

from pipette_opt.specs import GatedDeltaNet, Mamba


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
