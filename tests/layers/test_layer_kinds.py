"""A model as a list of layers: of which kinds, in which pattern, and how many in a range."""

from dataclasses import replace

import numpy as np
import pytest
from factories import TINY

from pipette_opt.layers.kinds import Pattern, count_layers, layers_before, pattern_of
from pipette_opt.specs import LayerKind

DENSE, EXPERTS = LayerKind(), LayerKind(mlp="experts")
WINDOW = LayerKind(mixer="windowed_attention")
MIXTURE = replace(TINY, num_layers=6, num_experts=8)


def test_layers_of_frequencies() -> None:
    """Megatron's rules: experts in the first of every N, no window and no positions in the last of every N."""
    assert replace(TINY, num_layers=3).layers == (DENSE,) * 3
    assert replace(MIXTURE, num_dense_layers=2).layers == (DENSE,) * 2 + (EXPERTS,) * 4
    assert replace(MIXTURE, moe_layer_freq=2).layers == (EXPERTS, DENSE) * 3
    assert replace(MIXTURE, moe_layer_freq=(0, 1, 1, 0, 0, 1)).layers == (
        DENSE, EXPERTS, EXPERTS, DENSE, DENSE, EXPERTS,
    )  # fmt: skip
    assert replace(MIXTURE, moe_layer_freq=2, num_dense_layers=1).layers == (DENSE, DENSE) + (EXPERTS, DENSE) * 2
    windowed = replace(TINY, num_layers=6, window_size=(127, 0))
    assert windowed.layers == (WINDOW,) * 6
    assert replace(windowed, window_attn_skip_freq=3).layers == (WINDOW, WINDOW, DENSE) * 2
    assert replace(windowed, window_attn_skip_freq=(1, 0, 0, 0, 0, 1)).layers == (WINDOW, *(DENSE,) * 4, WINDOW)
    assert replace(windowed, window_size=(-1, 0)).layers == (DENSE,) * 6
    rotary = replace(TINY, num_layers=4, position_embedding_type="rope", no_rope_freq=4)
    assert [kind.rotary for kind in rotary.layers] == [True, True, True, False]
    assert [kind.rotary for kind in replace(rotary, no_rope_freq=(1, 0, 0, 1)).layers] == [False, True, True, False]


@pytest.mark.parametrize(
    ("layers", "pattern"),
    [
        ("AAAA", (0, 1)),
        ("DDDEEEEEEE", (3, 1)),
        ("DEDEDEDEDE", (0, 2)),
        ("WWWWWAWWWWWAWW", (0, 6)),
        ("DDEDEDEDEDED", (1, 2)),
        ("DDDDDDDDEEEEEEEE", (0, 16)),
        ("M-M-M*-M-M-M*-M-", (0, 7)),
        ("DE", (1, 1)),
        ("A", (0, 1)),
    ],
)
def test_patterns(layers: str, pattern: tuple[int, int]) -> None:
    """A few first layers, then a period; by hand. Where too many come first the list is its own period."""
    assert pattern_of(tuple(LayerKind(mixer=letter) for letter in layers)) == Pattern(*pattern)  # type: ignore[arg-type]


def test_counts_of_ranges_are_those_of_slices() -> None:
    """At random lists and ranges; beyond the end the pattern goes on."""
    rng = np.random.default_rng(1)
    kinds = (DENSE, EXPERTS, WINDOW)
    for _ in range(50):
        period = tuple(kinds[one] for one in rng.integers(3, size=rng.integers(1, 5)))
        layers = (period * 10)[: int(rng.integers(8, 20))]
        longer = [*layers]
        while len(longer) < 60:
            longer.append(longer[len(longer) - pattern_of(layers).period])
        starts = rng.integers(0, 30, size=(2, 3))
        ends = starts + rng.integers(0, 30, size=(2, 3))
        found = count_layers(layers, starts, ends)
        assert list(found) == list(dict.fromkeys(layers))
        for kind, counts in found.items():
            by_hand = [longer[a:b].count(kind) for a, b in zip(starts.ravel(), ends.ravel(), strict=True)]
            assert counts.ravel().tolist() == by_hand
    assert layers_before((DENSE, EXPERTS), 2)[EXPERTS].tolist() == [0, 0, 1]
