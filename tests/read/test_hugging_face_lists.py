"""``config.json`` of models whose layers are of several kinds, as published, against the presets."""

import pytest
from hugging_face_configs import LAYER_LISTS

from pipette_opt.read.hugging_face import model_from_hugging_face
from pipette_opt.read.model import read_model


@pytest.mark.parametrize("name", LAYER_LISTS)
def test_published_files_are_the_presets(name: str) -> None:
    """To the last field."""
    assert model_from_hugging_face(LAYER_LISTS[name], "config.json", name) == read_model(name)
