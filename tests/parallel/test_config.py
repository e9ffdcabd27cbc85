"""Names of configurations."""

import pickle
from dataclasses import replace

import pytest
from factories import make_config

from pipette_opt.parallel import with_whole_layers


@pytest.mark.parametrize(
    ("layers", "expected"),
    [((17, 15), "layers17,15"), ((11, 12, 12, 12, 9), "layers11,12x3,9"), ((8, 8), None)],
)
def test_label_has_the_layers_of_uneven_stages(layers: tuple[int, ...], expected: str | None) -> None:
    """Every stage can be read off; equal stages are not mentioned."""
    words = make_config(pp=len(layers), layers_per_stage=layers).label().split()
    assert [word for word in words if word.startswith("layers")] == ([expected] if expected else [])


def test_the_hash_follows_the_fields() -> None:
    """It is computed once for an object; copies and pickles, which other processes read, begin without it."""
    config = make_config(tp=2, dp=4)
    assert hash(config) == hash(make_config(tp=2, dp=4)) == hash(config)
    assert hash(with_whole_layers(config, "block", 3)) == hash(
        replace(config, recompute_granularity="full", recompute_method="block", recompute_num_layers=3)
    )
    sent = pickle.loads(pickle.dumps(config))
    assert not hasattr(sent, "_hash")
    assert {config: 1}[sent] == 1
