"""Parameter and FLOP counts against published figures."""

from dataclasses import replace
from typing import Any

import pytest
from factories import LLAMA_8B, TINY

from pipette_opt.specs import ModelSpec, YarnScaling


def test_llama_3_8b_has_its_published_size() -> None:
    """8.03 billion parameters (Llama 3 model card)."""
    assert LLAMA_8B.num_parameters == 8_030_261_248


def test_padded_vocabulary() -> None:
    """GPT-2's 50,257 tokens become 50,304 on one and 51,200 on eight tensor ranks, as Megatron prints."""
    assert TINY.padded_vocab_size(1) == 50304
    assert TINY.padded_vocab_size(8) == 51200


def test_flops_per_token() -> None:
    """
    Six per weight of a product and attention's 12 L h s; Megatron's closed formula for GPT (arXiv 2104.04473).

    Causal attention has half of the scores.
    """
    layers, h, s, vocabulary = 8, 1024, 2048, 50257
    causal = 72 * layers * h**2 * (1 + s / (12 * h) + vocabulary / (12 * layers * h))
    assert TINY.flops_per_token(s) == pytest.approx(causal)


def test_flops_of_long_sequences_are_counted_by_hand() -> None:
    """
    Llama 3 8B at 131,072 tokens: 32 layers, h = 4096, 8 of 32 heads for keys, MLP 14336, vocabulary 128,256.

    Weights that multiply: 32 (4096 (6144 + 4096) + 3 * 4096 * 14336) + 4096 * 128256 = 7.505e9, six FLOPs each. A token
    sees 65,536 on average: 12 * 32 * 4096 * 65536 = 1.0308e11.
    """
    assert LLAMA_8B.flops_per_token(131072) == pytest.approx(6 * 7.504658e9 + 1.030792e11, rel=1e-5)


def test_a_window_bounds_what_a_token_sees() -> None:
    """
    Sequences of 2048, windows of 512 (511 before) in half of the 8 layers: a token sees 448 on average there.

    The first 512 tokens see 256 on average, the other 1,536 all 512: 448. A window of the whole sequence is none.
    """
    windowed = replace(TINY, window_size=(511, 0), window_attn_skip_freq=2)
    assert windowed.num_windowed_layers == 4
    saved = TINY.flops_per_token(2048) - windowed.flops_per_token(2048)
    assert saved == pytest.approx(12 * 1024 * 4 * (1024 - 448))
    assert replace(TINY, window_size=(4095, 0)).flops_per_token(2048) == pytest.approx(TINY.flops_per_token(2048))


def test_bad_sizes_are_refused() -> None:
    """Zero layers and query groups that do not divide the heads."""
    fields = {name: getattr(TINY, name) for name in TINY.__dataclass_fields__}
    with pytest.raises(ValueError, match="num_layers must be a whole number >= 1, got 0"):
        ModelSpec(**{**fields, "num_layers": 0})
    with pytest.raises(ValueError, match="num_query_groups must divide"):
        ModelSpec(**{**fields, "num_query_groups": 3})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_func": "quick_gelu"}, "activation_func='quick_gelu' does not go with gated_linear_unit=False"),
        ({"glu_linear_offset": 1.0}, "glu_linear_offset=1.0 needs gated_linear_unit"),
        ({"norm_epsilon": 0.0}, "norm_epsilon must be a number > 0, got 0.0"),
        ({"rotary_base": 500000}, "rotary_base=500000 needs rotary positions, not .* learned_absolute"),
        ({"position_embedding_type": "rope", "rotary_percent": 0.0}, r"rotary_percent must be in \(0, 1\]"),
        ({"position_embedding_type": "rope", "rotary_base": 1}, "rotary_base must be a whole number >= 2"),
        ({"position_embedding_type": "rope", "no_rope_freq": 3}, "no_rope_freq=3 must divide num_layers=8"),
        ({"position_embedding_type": "rope", "no_rope_freq": (1, 0)}, "0 or 1 for each of the 8 layers, got 2"),
        ({"position_embedding_type": "yarn"}, r"yarn \(missing\) does not go with position_embedding_type: yarn"),
        ({"position_embedding_type": "rope", "yarn": YarnScaling()}, r"yarn \(given\) does not go with"),
        ({"window_size": (1, 2, 3)}, r"window_size must be two whole numbers, -1 for no bound, got \[1, 2, 3\]"),
        ({"window_attn_skip_freq": 2}, "window_attn_skip_freq=2 needs window_size"),
        ({"other_arguments": (("use-mup",),)}, "other_arguments must be lists that begin with an option"),
        ({"other_arguments": ()}, "other_arguments must be lists that begin with an option"),
        ({"moe_router_pre_softmax": True}, "moe_router_pre_softmax=True needs num_experts"),
    ],
)
def test_fields_that_do_not_go_together(change: dict[str, Any], message: str) -> None:
    """The error names the field and its value."""
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)


@pytest.mark.parametrize(
    ("skip", "layers"), [(None, 8), (1, 0), (2, 4), (3, 6), ((1, 1, 1, 0, 1, 1, 1, 0), 6), ((0,) * 8, 0)]
)
def test_windowed_layers(skip: int | tuple[int, ...] | None, layers: int) -> None:
    """As ``is_layer_window_attention`` counts them: the last of every N has none, and a list marks those that do."""
    assert replace(TINY, window_size=(7, 0), window_attn_skip_freq=skip).num_windowed_layers == layers
