"""Options out of a command line, and the words that some of them may be."""

import pytest

from pipette_opt.errors import InputError
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.megatron_options import given_options


def test_options_have_their_types() -> None:
    """Whole and other numbers, words and flags, with a space or an equals sign; foreign ones are left out."""
    text = "pretrain.py --num-layers=4 --hidden-dropout 0 --normalization RMSNorm --swiglu --lr 1e-4 -- tail"
    given = given_options(text, "here")
    assert given == {"num_layers": 4, "hidden_dropout": 0.0, "normalization": "RMSNorm", "swiglu": True}
    assert isinstance(given["hidden_dropout"], float)


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ("--recompute-granularity", ("selective", "full")),
        ("--recompute-method", ("uniform", "block")),
        ("--moe-token-dispatcher-type", ("alltoall", "allgather")),
    ],
)
def test_words_are_checked(option: str, choices: tuple[str, ...]) -> None:
    """Each choice is taken as it is; any other word is an error that names them."""
    for word in choices:
        assert getattr(parse_megatron_args(f"{option} {word}"), option[2:].replace("-", "_")) == word
    with pytest.raises(InputError, match=f"{option} must be {' or '.join(choices)}, got 'other'"):
        parse_megatron_args(f"{option} other")


def test_granularity_wins_over_activations() -> None:
    """``--recompute-activations`` is selective, unless the granularity is given."""
    assert parse_megatron_args("--bf16").recompute_granularity is None
    assert parse_megatron_args("--recompute-activations").recompute_granularity == "selective"
    assert parse_megatron_args("--recompute-activations --recompute-granularity full").recompute_granularity == "full"
