"""Parameter and FLOP counts against published figures."""

import pytest
from specs_for_tests import LLAMA_8B, TINY

from pipette_opt.specs import ModelSpec


def test_llama_3_8b_has_its_published_size() -> None:
    """8.03 billion parameters (Llama 3 model card)."""
    assert LLAMA_8B.num_parameters == 8_030_261_248


def test_gpt_layer_by_hand() -> None:
    """12 h^2 weights and 13 h biases and norms of a GPT layer."""
    assert TINY.layer_parameters == 12 * 1024**2 + 13 * 1024


def test_padded_vocabulary() -> None:
    """GPT-2's 50,257 tokens become 50,304 on one and 51,200 on eight tensor ranks, as Megatron prints."""
    assert TINY.padded_vocab_size(1) == 50304
    assert TINY.padded_vocab_size(8) == 51200


def test_flops_per_token() -> None:
    """Six per weight of a product and attention's 12 L h s; Megatron's closed formula for GPT (arXiv 2104.04473)."""
    layers, h, s, vocabulary = 8, 1024, 2048, 50257
    closed = 72 * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
    assert TINY.flops_per_token(s) == pytest.approx(closed)


def test_bad_sizes_are_refused() -> None:
    """Zero layers and query groups that do not divide the heads."""
    fields = {name: getattr(TINY, name) for name in TINY.__dataclass_fields__}
    with pytest.raises(ValueError, match="num_layers must be a whole number >= 1, got 0"):
        ModelSpec(**{**fields, "num_layers": 0})
    with pytest.raises(ValueError, match="num_query_groups must divide"):
        ModelSpec(**{**fields, "num_query_groups": 3})
