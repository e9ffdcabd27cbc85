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
    """
    Six per weight of a product and attention's 12 L h s; Megatron's closed formula for GPT (arXiv 2104.04473).

    Causal attention has half of the scores. Recomputation adds a forward: 2 of 6 of the layers', 4 of 12 of attention.
    """
    layers, h, s, vocabulary = 8, 1024, 2048, 50257
    closed = 72 * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
    assert TINY.flops_per_token(s, causal=False) == pytest.approx(closed)
    causal = 72 * layers * h**2 * (1 + s / (12 * h) + vocabulary / (12 * layers * h))
    assert TINY.flops_per_token(s) == pytest.approx(causal)
    assert TINY.flops_per_token(s, recompute="selective") == pytest.approx(causal + 2 * layers * h * s)
    again = TINY.flops_per_token(s, recompute="full")
    assert again == pytest.approx((causal - 6 * h * vocabulary) * 4 / 3 + 6 * h * vocabulary)


def test_flops_of_long_sequences_are_counted_by_hand() -> None:
    """
    Llama 3 8B at 131,072 tokens: 32 layers, h = 4096, 8 of 32 heads for keys, MLP 14336, vocabulary 128,256.

    Weights that multiply: 32 (4096 (6144 + 4096) + 3 * 4096 * 14336) + 4096 * 128256 = 7.505e9, six FLOPs each. A token
    sees 65,536 on average: 12 * 32 * 4096 * 65536 = 1.0308e11; with all 131,072 it would be twice that.
    """
    assert LLAMA_8B.flops_per_token(131072) == pytest.approx(6 * 7.504658e9 + 1.030792e11, rel=1e-5)
    assert LLAMA_8B.flops_per_token(131072, causal=False) == pytest.approx(6 * 7.504658e9 + 2.061584e11, rel=1e-5)


def test_bad_sizes_are_refused() -> None:
    """Zero layers and query groups that do not divide the heads."""
    fields = {name: getattr(TINY, name) for name in TINY.__dataclass_fields__}
    with pytest.raises(ValueError, match="num_layers must be a whole number >= 1, got 0"):
        ModelSpec(**{**fields, "num_layers": 0})
    with pytest.raises(ValueError, match="num_query_groups must divide"):
        ModelSpec(**{**fields, "num_query_groups": 3})
