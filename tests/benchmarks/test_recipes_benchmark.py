"""NVIDIA's recipes one by one: those that cannot start are refused for that, and no option is without a place."""

import os
from pathlib import Path
from typing import Any

import pytest
from benchmark_modules import loaded

SHARED = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).resolve().parents[3] / "shared"))
pytestmark = pytest.mark.skipif(not (SHARED / "recipes").is_dir(), reason=f"no folder {SHARED / 'recipes'}")


@pytest.fixture(scope="module")
def recipes() -> Any:
    """The benchmark."""
    return loaded("recipes", ".")


def test_recipes_that_cannot_start(recipes: Any) -> None:
    """Ten are marked, one more Megatron-LM refuses; none for an option that has no numbers."""
    rows = [recipes.measured(one) for one in recipes.recipes() if one["illegal"] or one["name"] in _refused(recipes)]
    assert len(rows) >= 11
    assert [row.name for row in rows if not row.refused or row.blocking] == []


def test_every_option_has_a_place(recipes: Any) -> None:
    """Of every eighth visible recipe; the benchmark has all."""
    folder = SHARED / "recipes" / "megatron_args"
    texts = {one["name"]: (folder / f"{one['name']}.args").read_text() for one in recipes.recipes()[::8]}
    assert {name: found for name, text in texts.items() if (found := recipes.unnamed(text, name))} == {}


def _refused(recipes: Any) -> set[str]:
    return set(recipes.refused_by_megatron())


def test_places_of_options(recipes: Any) -> None:
    """Read, harmless or moot, left out, refused, unknown: also where the launch as a whole is refused."""
    text = (
        "--tensor-model-parallel-size 2 --tp-comm-overlap --lr 1 --fp8-interval 2 --ours 1 "
        "--gdp-num-householder 2 --dsa-indexer-topk 64 "
        "--cuda-graph-impl none --muon-tp-mode blockwise --rotary-base 9"
    )
    assert recipes.places_of(text, "here") == {
        "--tensor-model-parallel-size": "read",
        "--tp-comm-overlap": "in part",
        "--lr": "no effect",
        "--fp8-interval": "no effect",
        "--gdp-num-householder": "refused",
        "--dsa-indexer-topk": "no effect",
        "--ours": "unknown",
        "--cuda-graph-impl": "read",
        "--muon-tp-mode": "no effect",
        "--rotary-base": "no effect",
    }
