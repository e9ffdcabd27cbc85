"""Rounds in which everybody meets everybody."""

from itertools import combinations

import pytest

from pipette_opt.measure.tournament import rounds


@pytest.mark.parametrize("num_nodes", range(34))
def test_every_pair_once_and_nobody_twice_in_a_round(num_nodes: int) -> None:
    """As few rounds as possible."""
    found = rounds(num_nodes)
    pairs = [pair for one in found for pair in one]
    assert sorted(pairs) == list(combinations(range(num_nodes), 2))
    for one in found:
        players = [player for pair in one for player in pair]
        assert len(set(players)) == len(players)
    assert len(found) == (0 if num_nodes < 2 else num_nodes - 1 + num_nodes % 2)
