"""Histograms of document lengths: attention, padding, groups and cuts, by hand and by enumeration."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from factories import TINY, make_config

from pipette_opt.specs import TrainingSpec
from pipette_opt.specs.activations import attended_tokens, largest_micro_batch_tokens, micro_batch_tokens
from pipette_opt.specs.documents import MAX_LENGTHS, Documents, grouped

DOCUMENTS = Documents(lengths=(100, 300, 1000), counts=(6, 3, 1))


def test_attention_of_documents_by_hand() -> None:
    """Six of 100, three of 300, one of 1,000: 1.33 million pairs of 2,500 tokens."""
    assert DOCUMENTS.mean_length == 250
    assert DOCUMENTS.attended_length == pytest.approx((6 * 100**2 + 3 * 300**2 + 1000**2) / 2500)
    assert Documents(lengths=(512,), counts=(7,)).attended_length == 512


@pytest.mark.parametrize("size", [1, 2, 3])
def test_padding_is_the_expected_longest(size: int) -> None:
    """Against all ordered draws of a micro-batch."""
    each = [length for length, count in zip(DOCUMENTS.lengths, DOCUMENTS.counts, strict=True) for _ in range(count)]
    longest = [max(drawn) for drawn in product(each, repeat=size)]
    assert DOCUMENTS.padded_length(size) == pytest.approx(sum(longest) / len(longest))
    assert DOCUMENTS.padded_length(np.array([1, size]))[1] == pytest.approx(DOCUMENTS.padded_length(size))


@pytest.mark.parametrize("seed", range(3))
def test_groups_keep_tokens_attention_and_the_longest(seed: int) -> None:
    """Thousands of lengths become at most 256; tokens and attention move by less than a thousandth."""
    lengths = np.unique(np.random.default_rng(seed).lognormal(6.5, 1.0, 9000).astype(np.int64) + 1)
    counts = np.random.default_rng(seed).integers(1, 9, len(lengths))
    found = grouped(lengths, counts)
    assert len(found.lengths) <= MAX_LENGTHS < len(lengths)
    assert (found.longest, sum(found.counts)) == (lengths[-1], counts.sum())
    assert found.mean_length == pytest.approx(np.average(lengths, weights=counts), rel=1e-3)
    assert found.attended_length == pytest.approx(counts @ lengths**2 / (counts @ lengths), rel=1e-3)


def test_few_lengths_stay_as_they_are() -> None:
    """A histogram of three lengths, and one with counts beyond 64 bits of tokens."""
    assert grouped(np.array(DOCUMENTS.lengths), np.array(DOCUMENTS.counts)) == DOCUMENTS
    many = grouped(np.arange(1, 1001) * 10**6, np.full(1000, 10**12))
    assert sum(many.counts) == pytest.approx(1e15)
    assert many.mean_length == pytest.approx(500.5e6, rel=1e-3)


def test_cuts_merge_longer_documents() -> None:
    """At 300 tokens the longest document joins the three of 300."""
    assert DOCUMENTS.cut(300) == Documents(lengths=(100, 300), counts=(6, 4))
    training = TrainingSpec(global_batch_size=8, seq_length=1024, documents=DOCUMENTS)
    assert training.changed(seq_length=512).documents == DOCUMENTS.cut(512)
    assert training.changed(global_batch_size=4).documents == DOCUMENTS
    with pytest.raises(ValueError, match=r"documents must not be longer than seq_length=512, got 1000 tokens"):
        replace(training, seq_length=512)


@pytest.mark.parametrize(
    ("lengths", "counts"), [((), ()), ((5, 3), (1, 1)), ((5, 5), (1, 1)), ((0, 3), (1, 1)), ((3,), (0,))]
)
def test_wrong_histograms(lengths: tuple[int, ...], counts: tuple[int, ...]) -> None:
    """Lengths ascend from 1, counts are at least 1."""
    with pytest.raises(ValueError, match="documents"):
        Documents(lengths=lengths, counts=counts)


def test_tokens_of_a_micro_batch() -> None:
    """Padded: the mean longest; packed: all of the sequence; memory: always the whole sequence."""
    config = make_config(mbs=2, num_layers=TINY.num_layers)
    padded = TrainingSpec(global_batch_size=8, seq_length=1024, documents=DOCUMENTS)
    packed = replace(padded, packed=True)
    assert micro_batch_tokens(padded, config) == round(2 * DOCUMENTS.padded_length(2))
    assert attended_tokens(padded, config) == 2 * 250
    assert padded.tokens == 8 * 250
    assert micro_batch_tokens(packed, config) == attended_tokens(packed, config) == 2048
    assert packed.tokens == 8 * 1024
    assert largest_micro_batch_tokens(padded, config) == largest_micro_batch_tokens(packed, config) == 2048
