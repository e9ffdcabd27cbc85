"""What of a model no number counts."""

from dataclasses import replace

import pytest
from factories import LLAMA_8B, TINY

from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.model_gaps import not_modelled_of

TRAINING = TrainingSpec(global_batch_size=8, seq_length=4096)
UNFUSED = replace(TRAINING, attention_kernel="unfused")


def test_plain_models_leave_nothing_out() -> None:
    """Positions, epsilons and ties change no time and no memory."""
    for model in (TINY, LLAMA_8B):
        assert not_modelled_of(model, TRAINING) == ()
        assert not_modelled_of(model, None) == ()


@pytest.mark.parametrize(("before", "counts"), [(4094, True), (4095, False), (-1, False)])
def test_a_window_counts_where_it_is_shorter_than_the_sequence(before: int, counts: bool) -> None:
    """The token itself is one more: 4,095 before it are all of 4,096. Fused kernels count the window."""
    model = replace(LLAMA_8B, window_size=(before, 0))
    assert bool(not_modelled_of(model, UNFUSED)) is counts
    assert not_modelled_of(model, TRAINING) == not_modelled_of(model, None) == ()


def test_layers_that_skip_the_window() -> None:
    """The sentence has the layers; with none left there is nothing to say."""
    half = replace(LLAMA_8B, window_size=(127, 0), window_attn_skip_freq=2)
    (gap,) = not_modelled_of(half, UNFUSED)
    assert (gap.option, gap.value, gap.effect, gap.direction) == ("--window-size", "127,0", "time", "less")
    assert "16 of 32 layers sees 128 tokens" in gap.why
    assert not_modelled_of(replace(half, window_attn_skip_freq=(0,) * 32), UNFUSED) == ()


@pytest.mark.parametrize(
    ("model", "option", "direction"),
    [
        (replace(TINY, activation_func="squared_relu"), "--squared-relu", "more"),
        (replace(LLAMA_8B, activation_func="quick_gelu"), "--quick-geglu", "more"),
        (replace(LLAMA_8B, softmax_type="learnable"), "--softmax-type", "more"),
        (replace(LLAMA_8B, no_rope_freq=4), "--no-rope-freq", "less"),
        (replace(TINY, parallel_residual=True), "parallel_residual", "less"),
    ],
)
def test_other_gaps(model: ModelSpec, option: str, direction: str) -> None:
    """Each named, with its direction."""
    (gap,) = not_modelled_of(model, TRAINING)
    assert (gap.option, gap.direction) == (option, direction)
    assert gap.why.endswith(".")
