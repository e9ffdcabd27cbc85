"""Fields of what is given that are refused: by their name, with their value."""

from dataclasses import replace
from typing import Any

import pytest
from factories import TINY
from test_efficiency import LAW

from pipette_opt.specs import GatedDeltaNet, Mamba, TrainingSpec, YarnScaling
from pipette_opt.specs.efficiency import ASSUMED_EFFICIENCY

TRAINING = TrainingSpec(global_batch_size=8, seq_length=1024)
FOUR_LAYERS = replace(TINY, num_layers=4)

REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (TRAINING, {"fp8": True, "fp4": True}, "fp8 and fp4 are both set"),
    (TRAINING, {"fp8_param_gather": True}, "fp8_param_gather=True needs fp8=True or fp4=True"),
    (TRAINING, {"fp4": True, "precision": "fp32"}, "fp4 goes with precision bf16 or fp16, got fp32"),
    (TRAINING, {"fp8": True, "fp8_recipe": "mx"}, "fp8_recipe must be one of delayed, tensorwise, blockwise, mxfp8"),
    (TRAINING, {"other_arguments": ()}, "other_arguments must be lists"),
    (TRAINING, {"offload_modules": ("router",)}, "offload_modules must be some of attn_norm, .*; got router"),
    (TRAINING, {"offload_modules": ("attn_proj",)}, "attn_proj without core_attn"),
    (TRAINING, {"offload_modules": ("moe_act",), "cpu_offloading_num_layers": 1}, "cannot be combined with"),
    (TRAINING, {"cpu_offloading_num_layers": -1}, "cpu_offloading_num_layers must be >= 0"),
    (TRAINING, {"optimizer_offload_fraction": 1.5}, "optimizer_offload_fraction must be in"),
    (TRAINING, {"global_batch_size": 0}, "global_batch_size"),
    (TRAINING, {"seq_length": 2.5}, "seq_length"),
    (TRAINING, {"precision": "fp8"}, "precision"),
    (TRAINING, {"attention_kernel": "triton"}, "attention_kernel"),
    (TRAINING, {"flash_version": "two"}, "flash_version"),
    (TRAINING, {"flash_version": None}, "flash_version"),
    (TRAINING, {"fused_norm": 1}, "fused_norm"),
    (TINY, {"num_layers": 0}, "num_layers must be a whole number >= 1, got 0"),
    (TINY, {"num_query_groups": 3}, "num_query_groups must divide"),
    (TINY, {"activation_func": "quick_gelu"}, "activation_func='quick_gelu' does not go with gated_linear_unit=False"),
    (TINY, {"glu_linear_offset": 1.0}, "glu_linear_offset=1.0 needs gated_linear_unit"),
    (TINY, {"norm_epsilon": 0.0}, "norm_epsilon must be a number > 0, got 0.0"),
    (TINY, {"rotary_base": 500000}, "rotary_base=500000 needs rotary positions, not .* learned_absolute"),
    (TINY, {"position_embedding_type": "rope", "rotary_percent": 0.0}, r"rotary_percent must be in \(0, 1\]"),
    (TINY, {"position_embedding_type": "rope", "rotary_base": 1}, "rotary_base must be a whole number >= 2"),
    (TINY, {"position_embedding_type": "rope", "no_rope_freq": 3}, "no_rope_freq=3 must divide num_layers=8"),
    (TINY, {"position_embedding_type": "rope", "no_rope_freq": (1, 0)}, "0 or 1 for each of the 8 layers, got 2"),
    (TINY, {"position_embedding_type": "yarn"}, r"yarn \(missing\) does not go with position_embedding_type: yarn"),
    (TINY, {"position_embedding_type": "rope", "yarn": YarnScaling()}, r"yarn \(given\) does not go with"),
    (TINY, {"window_size": (1, 2, 3)}, r"window_size must be two whole numbers, -1 for no bound, got \[1, 2, 3\]"),
    (TINY, {"window_attn_skip_freq": 2}, "window_attn_skip_freq=2 needs window_size"),
    (TINY, {"other_arguments": (("use-mup",),)}, "other_arguments must be lists that begin with an option"),
    (TINY, {"other_arguments": ()}, "other_arguments must be lists that begin with an option"),
    (TINY, {"moe_router_pre_softmax": True}, "moe_router_pre_softmax=True needs num_experts"),
    (FOUR_LAYERS, {"hybrid_layer_pattern": "M-"}, "must be 4 letters of"),
    (FOUR_LAYERS, {"hybrid_layer_pattern": "M-*X"}, "with 'X'"),
    (FOUR_LAYERS, {"hybrid_layer_pattern": "M-*-"}, "mamba must be given if and only if"),
    (FOUR_LAYERS, {"hybrid_layer_pattern": "*-*E"}, "num_experts must be given if and only if"),
    (FOUR_LAYERS, {"mamba": Mamba(num_heads=8)}, "mamba must be given if and only if"),
    (FOUR_LAYERS, {"linear_attention_freq": 4}, "gated_delta_net must be given if and only if"),
    (FOUR_LAYERS, {"linear_attention_freq": (1, 0), "gated_delta_net": GatedDeltaNet()}, "for each of the 4 layers"),
    (
        FOUR_LAYERS,
        {"hybrid_layer_pattern": "*-*-", "window_size": (3, 0)},
        "window_size does not go with hybrid_layer_pattern",
    ),
    (Mamba(num_heads=8), {"num_heads": 12}, "num_groups of mamba must divide num_heads=12"),
    (GatedDeltaNet(), {"num_key_heads": 12}, "num_key_heads of gated_delta_net must divide num_value_heads=32"),
    (LAW, {"head_sizes": (128, 64)}, "head_sizes must be whole numbers >= 1 that rise"),
    (LAW, {"head_sizes": ()}, "head_sizes must be"),
    (LAW, {"shares": (0.4,)}, "shares must be one in"),
    (LAW, {"shares": (0.4, 1.1)}, "shares must be one in"),
    (LAW, {"half_seq": -1.0}, "half_seq must be >= 0, got -1"),
    (LAW, {"start_s": float("inf")}, "start_s must be >= 0, got inf"),
    (LAW, {"flash2": 0.0}, "flash2 must be in .0, 1., got 0"),
    (LAW, {"flash2": 1.1}, "flash2 must be in .0, 1., got 1.1"),
    (ASSUMED_EFFICIENCY.wide, {"share": 0}, "must be in"),
    (ASSUMED_EFFICIENCY.wide, {"half_inner": -1}, ">= 0"),
]


@pytest.mark.parametrize(("spec", "changes", "message"), REFUSED)
def test_refused(spec: Any, changes: dict[str, Any], message: str) -> None:
    """Wrong alone, or beside another field."""
    with pytest.raises(ValueError, match=message):
        replace(spec, **changes)
