"""Layers of model chunks against Megatron's rule, written out once more."""

from itertools import product

import pytest
from factories import make_config

from pipette_opt.parallel import fit_chunks
from pipette_opt.parallel.chunks import deal_layers


def built(layers: tuple[int, ...], chunks: int, embedding: int, loss: int) -> tuple[tuple[int, ...], ...] | None:
    """
    Layers of every chunk, with embedding and head counted or not; ``None`` if Megatron refuses.

    Counted, all stages are equal; otherwise any are taken that chunks divide.
    """
    counted = (layers[0] + embedding, *layers[1:-1], layers[-1] + loss)
    if any(count % chunks for count in counted) or ((embedding or loss) and len(set(counted)) > 1):
        return None
    held = [[count // chunks for count in counted] for _ in range(chunks)]
    held[0][0] -= embedding
    held[-1][-1] -= loss
    return tuple(map(tuple, held)) if min(map(min, held)) >= 0 else None


@pytest.mark.parametrize(("num_stages", "num_chunks"), [(2, 2), (2, 3), (2, 5), (3, 2), (3, 4), (4, 3)])
def test_exactly_what_megatron_builds(num_stages: int, num_chunks: int) -> None:
    """Of all stages of up to 7 layers those fit that one way of counting builds, and it is the only one."""
    fitting = 0
    for layers in product(range(8), repeat=num_stages):
        ways = [built(layers, num_chunks, *counted) for counted in product((0, 1), repeat=2)]
        possible = [way for way in ways if way is not None]
        assert len(possible) == fit_chunks(layers, num_chunks), layers
        if possible:
            assert deal_layers(layers, num_chunks) == possible[0]
            fitting += any(count % num_chunks for count in layers)
    assert fitting >= 3


def test_llama_405b() -> None:
    """126 layers, 8 stages of 8 chunks of 2, but for one layer of the very first and of the very last chunk."""
    chosen = make_config(pp=8, layers_per_stage=(15, *(16,) * 6, 15), virtual_pipeline_model_parallel_size=8)
    dealt = chosen.layers_per_chunk
    assert dealt[0] == (1, *(2,) * 7)
    assert dealt[-1] == (*(2,) * 7, 1)
    assert set(dealt[1:-1]) == {(2,) * 8}
    assert chosen.counts_embedding
    assert chosen.counts_loss


def test_a_chunk_may_be_empty() -> None:
    """On 16 stages of 8 chunks the first has only the embedding, the last only the head (arXiv 2407.21783, 3.3.2)."""
    chosen = make_config(pp=16, layers_per_stage=(7, *(8,) * 14, 7), virtual_pipeline_model_parallel_size=8)
    assert chosen.layers_per_chunk[0][0] == chosen.layers_per_chunk[-1][-1] == 0
    assert sum(map(sum, chosen.layers_per_chunk)) == 126


def test_without_chunks_nothing_is_counted() -> None:
    """Stages of any size are one chunk each."""
    chosen = make_config(pp=3, layers_per_stage=(3, 5, 4))
    assert chosen.layers_per_chunk == ((3, 5, 4),)
    assert not chosen.counts_embedding
    assert not chosen.counts_loss


@pytest.mark.parametrize(
    "layers",
    [
        (14, 16, 16, 15),  # two layers less
        (15, 16, 15, 16),  # a middle stage
        (15, 16, 16, 20),  # stages of other sizes beside it
        (15, 16, 16, 17),  # more instead of less
        (17, 16, 16, 16),
    ],
)
def test_other_stages_are_refused(layers: tuple[int, ...]) -> None:
    """The message has the numbers."""
    with pytest.raises(ValueError, match=r"4 chunks must divide .* got \(1"):
        make_config(pp=4, layers_per_stage=layers, virtual_pipeline_model_parallel_size=4)
