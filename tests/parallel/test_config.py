"""Names of configurations."""

import pytest
from factories import make_config


@pytest.mark.parametrize(
    ("layers", "expected"),
    [((17, 15), "layers17,15"), ((11, 12, 12, 12, 9), "layers11,12x3,9"), ((8, 8), None)],
)
def test_label_has_the_layers_of_uneven_stages(layers: tuple[int, ...], expected: str | None) -> None:
    """Every stage can be read off; equal stages are not mentioned."""
    words = make_config(pp=len(layers), layers_per_stage=layers).label().split()
    assert [word for word in words if word.startswith("layers")] == ([expected] if expected else [])
