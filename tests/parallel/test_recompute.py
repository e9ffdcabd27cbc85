"""Words of recomputation, and modules of a configuration."""

import pytest
from factories import make_config

from pipette_opt.parallel import without_recomputation
from pipette_opt.parallel.recompute import (
    RECOMPUTE_MODULES,
    amount,
    known_word,
    modules_in_order,
    recomputation_fields,
)


@pytest.mark.parametrize(
    ("word", "known"),
    [
        (None, None),
        ("selective", "selective"),
        ("core_attn", "selective"),
        ("block", "block"),
        ("full", "full"),
        ("layernorm+moe_act", "moe_act+layernorm"),
        ("mlp+mlp", "mlp"),
        ("ops", "ops"),
    ],
)
def test_words_and_configurations_are_each_other(word: str | None, known: str | None) -> None:
    """A configuration made of a word has that word again, with its modules in order."""
    assert known_word(word) == known
    assert make_config(**recomputation_fields(word)).recomputation == known


def test_unknown_modules_are_refused() -> None:
    """With those that there are."""
    with pytest.raises(ValueError, match=r"must be some of core_attn, .*; got router"):
        modules_in_order(["mlp", "router"])
    with pytest.raises(ValueError, match=r"must be some of core_attn, .*; got ops"):
        recomputation_fields("mlp+ops")
    with pytest.raises(ValueError, match="got none"):
        modules_in_order([])
    with pytest.raises(ValueError, match="need recompute_granularity=selective, got full"):
        make_config(recompute_granularity="full", recompute_modules=("mlp",))


def test_what_is_computed_again() -> None:
    """Modules alone, or everything; nothing without."""
    one = make_config(recompute_granularity="selective", recompute_modules=("mlp", "moe_act"))
    assert [one.recomputes(name) for name in ("mlp", "moe_act", "core_attn")] == [True, True, False]
    assert make_config(recompute_granularity="full").recomputes("core_attn")
    assert not without_recomputation(one).recomputes("mlp")
    assert one.label().endswith("moe_act+mlp") or "moe_act+mlp" in one.label()


def test_less_is_before_more() -> None:
    """Nothing, modules by their number, the first layers, all."""
    words = [None, "selective", "moe_act+layernorm", "+".join(RECOMPUTE_MODULES), "block", "full"]
    assert sorted(words, key=amount) == words
    assert amount("mlp") == amount("selective")
