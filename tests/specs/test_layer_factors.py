"""Factors of layers: known, alike, unlike."""

from dataclasses import asdict, replace

import pytest

from pipette_opt.base.typed import typed
from pipette_opt.specs import DEFAULT_STACK, StackSpec
from pipette_opt.specs.layers import LayerFactor, LearnedLayers

KNOWN = LayerFactor(
    gpu="a100-80gb",
    kernels="bf16 flash2",
    tensor_model_parallel_size=2,
    sequence_parallel=False,
    seq_length=2048,
    hidden_size=4096,
    ffn_hidden_size=16384,
    micro_batch_size=2,
    factor=1.2,
    num_runs=9,
)


def test_a_shape_that_ran_has_its_factor() -> None:
    """Two of a family, each its own; the factor of the question does not count."""
    other = replace(KNOWN, micro_batch_size=4, factor=0.9)
    learned = LearnedLayers(shapes=(KNOWN, other))
    assert learned.factor(replace(KNOWN, factor=7.0)) == pytest.approx(1.2, rel=1e-4)
    assert learned.factor(other) == pytest.approx(0.9, rel=1e-4)


def test_likeness_fades() -> None:
    """A little wider: nearly the same. Much wider or another micro-batch: nearly nothing. Other ranks: nothing."""
    learned = LearnedLayers(shapes=(KNOWN,))
    assert learned.factor(replace(KNOWN, hidden_size=4352)) == pytest.approx(1.2, abs=0.01)
    assert 1.05 < learned.factor(replace(KNOWN, hidden_size=6144)) < 1.19
    assert learned.factor(replace(KNOWN, hidden_size=8 * 4096)) == pytest.approx(1.0, abs=0.03)
    assert learned.factor(replace(KNOWN, micro_batch_size=16)) == pytest.approx(1.0, abs=0.001)
    assert learned.factor(replace(KNOWN, tensor_model_parallel_size=4)) == 1.0
    assert learned.factor(replace(KNOWN, kernels="bf16 unfused")) == 1.0


def test_a_stack_as_plain_data() -> None:
    """As a plan's file keeps it."""
    stack = replace(DEFAULT_STACK, layers=LearnedLayers(shapes=(KNOWN,)))
    again = typed(StackSpec, asdict(stack), "here")
    assert again.layers is not None
    assert again.layers.shapes == (KNOWN,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 0.0}, r"factor must be a number in \[0.05, 20\], got 0"),
        ({"factor": 1e300}, r"factor must be a number in \[0.05, 20\]"),
        ({"hidden_size": 0}, "hidden_size must be a whole number >= 1, got 0"),
        ({"micro_batch_size": -2}, "micro_batch_size must be a whole number >= 1, got -2"),
    ],
)
def test_bad_factors_are_named(changes: dict, message: str) -> None:
    """As a damaged file would have them."""
    with pytest.raises(ValueError, match=message):
        replace(KNOWN, **changes)


def test_nothing_between_is_beyond_what_was_measured() -> None:
    """Near shapes with far factors would swing beyond both."""
    near = replace(KNOWN, hidden_size=4224, factor=0.8)
    learned = LearnedLayers(shapes=(KNOWN, near))
    factors = [learned.factor(replace(KNOWN, hidden_size=hidden)) for hidden in range(2048, 8192, 64)]
    assert min(factors) >= 0.8 - 1e-9
    assert max(factors) <= 1.2 + 1e-9
