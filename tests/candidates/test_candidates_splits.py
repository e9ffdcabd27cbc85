"""Layer splits against all compositions of a few layers."""

from itertools import product

import pytest

from pipette_opt.candidates import layer_splits, pipeline_split_options
from pipette_opt.candidates.splits import is_megatron_split
from pipette_opt.parallel import fit_chunks


def built_by_megatron(num_layers: int, num_stages: int, first: int | None, last: int | None) -> tuple[int, ...] | None:
    """What the two options give: the middle stages share what the named ends leave, or the options are refused."""
    named = [end for end in (first, last) if end is not None]
    left, stages_left = num_layers - sum(named), num_stages - len(named)
    if stages_left < 0 or left < 0 or bool(left) != bool(stages_left) or (stages_left and left % stages_left):
        return None
    split = [left // stages_left if stages_left else 0] * num_stages
    if first is not None:
        split[0] = first
    if last is not None:
        split[-1] = last
    return tuple(split)


@pytest.mark.parametrize(("num_layers", "num_stages"), [(n, p) for n in range(1, 10) for p in range(1, 6)])
def test_exactly_what_the_options_can_express(num_layers: int, num_stages: int) -> None:
    """A split is legal if and only if some pair of options gives it; the pair we name is such a pair."""
    ends = [None, *range(1, num_layers + 1)]
    expressible = {built_by_megatron(num_layers, num_stages, first, last) for first, last in product(ends, ends)}
    for split in product(range(num_layers + 1), repeat=num_stages):
        assert is_megatron_split(num_layers, split) == (split in expressible and sum(split) == num_layers), split
        if is_megatron_split(num_layers, split):
            assert built_by_megatron(num_layers, num_stages, *pipeline_split_options(split)) == split


@pytest.mark.parametrize("num_chunks", [1, 2, 3])
@pytest.mark.parametrize("num_layers", [4, 7, 12, 30, 80, 126])
def test_offered_splits(num_layers: int, num_chunks: int) -> None:
    """Every offer is legal, even splits come first where they exist, and without chunks no pipeline is left out."""
    for num_stages in range(1, num_layers + 1):
        splits = layer_splits(num_layers, num_stages, num_chunks)
        even = num_layers % (num_stages * num_chunks) == 0
        assert len(set(splits)) == len(splits) <= 4
        assert all(is_megatron_split(num_layers, split) and len(split) == num_stages for split in splits)
        assert all(fit_chunks(split, num_chunks) for split in splits)
        if even:
            assert splits[0] == (num_layers // num_stages,) * num_stages
        elif num_layers % num_chunks == 0 and num_stages <= num_layers // num_chunks and num_stages > 1:
            assert splits
        assert layer_splits(num_layers, num_stages, num_chunks, uneven=False) == (splits[:1] if even else [])


def test_known_splits() -> None:
    """
    By hand: 126 layers on 16 stages are 7.9 each, so 14 stages of 8 leave 14 for the ends, 7 each.

    (Llama 3.1 405B was trained with one layer less on the first and the last of its 16 stages, arXiv 2407.21783,
    section 3.3.2.) All 14 off one end: 6 and 8, which is above half of 8. 40 layers on 16 stages cannot have
    stages of 3 in the middle, so 14 stages of 2 leave 12.
    """
    middle = (8,) * 14
    assert layer_splits(126, 16) == [(7, *middle, 7), (8, *middle, 6), (6, *middle, 8)]
    assert layer_splits(40, 16) == [(6, *(2,) * 14, 6)]
    assert layer_splits(8, 2) == [(4, 4), (5, 3), (3, 5)]
    assert layer_splits(9, 2) == [(5, 4), (4, 5)]
    assert layer_splits(8, 1) == [(8,)]
    assert layer_splits(3, 4) == []


def test_splits_with_embedding_and_head_counted() -> None:
    """
    126 layers and two are 128: two for each of eight chunks of eight stages, less one at both ends.

    Two chunks divide 126 layers, too, and leave stages of other sizes beside that. 127 layers need the embedding or the
    head alone, 128 neither; 125 have no such split, and 3 times 8 chunks make none of 128. Six layers on four stages of
    two chunks leave nothing but the embedding in the first chunk.
    """
    whole = (16,) * 6
    assert layer_splits(126, 8, 8) == [(15, *whole, 15)]
    assert layer_splits(126, 8, 4) == [(15, *whole, 15)]
    assert layer_splits(126, 8, 2) == [(15, *whole, 15), (16, *whole, 14), (14, *whole, 16)]
    assert layer_splits(126, 8, 3) == [(9, *(18,) * 6, 9)]
    assert layer_splits(127, 8, 8) == [(16, *whole, 15), (15, *whole, 16)]
    assert layer_splits(128, 8, 8)[0] == (16,) * 8
    assert layer_splits(125, 8, 8) == layer_splits(126, 8, 8, uneven=False) == []
    assert (15, *whole, 15) in layer_splits(126, 8)
    assert layer_splits(6, 4, 2)[0] == (1, 2, 2, 1)


@pytest.mark.parametrize(
    ("split", "options"),
    [((8,), (None, None)), ((4, 4), (None, None)), ((5, 3), (5, None)), ((1, 2, 3), (1, 3)), ((2, 2, 1), (None, 1))],
)
def test_options(split: tuple[int, ...], options: tuple[int | None, int | None]) -> None:
    """Only what differs from the middle is named."""
    assert pipeline_split_options(split) == options
