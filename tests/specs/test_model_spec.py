"""Parameter and FLOP counts against published figures."""

from dataclasses import replace

import pytest
from factories import LLAMA_8B, TINY


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


@pytest.mark.parametrize(
    ("skip", "layers"), [(None, 8), (1, 0), (2, 4), (3, 6), ((1, 1, 1, 0, 1, 1, 1, 0), 6), ((0,) * 8, 0)]
)
def test_windowed_layers(skip: int | tuple[int, ...] | None, layers: int) -> None:
    """As ``is_layer_window_attention`` counts them: the last of every N has none, and a list marks those that do."""
    assert replace(TINY, window_size=(7, 0), window_attn_skip_freq=skip).num_windowed_layers == layers
