"""Layouts: the grammar against texts written out, shortest forms, and what a configuration keeps of one."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import make_config

from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.layout import layout_layers, layout_of, layout_parts

SHARED = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared"))
RECIPES = SHARED / "recipes" / "recipes.jsonl"


@pytest.mark.parametrize(
    ("layout", "parts"),
    [
        ("Ett|ttL", ("Ett", "ttL")),
        ("E,t*2|,t*2,L", ("Ett", "ttL")),
        ("Et|(tt|)*3mL", ("Et", "tt", "tt", "tt", "mL")),
        ("E(|t)*2,t|L", ("E", "t", "tt", "L")),
        ("E(t*2|)*2L", ("Ett", "tt", "L")),
        ("E||t*3|L", ("E", "", "ttt", "L")),
        ("tmE|x*0L", ("tmE", "L")),
    ],
)
def test_parts(layout: str, parts: tuple[str, ...]) -> None:
    """Repeats of letters and of parentheses, commas, empty parts; what they hold is no matter."""
    assert layout_parts(layout) == parts


@pytest.mark.parametrize("layout", ["Ext|L", "E t|L", "E(t(t|)*2|)*2L", "Et*|L", "(E)|t2L"])
def test_letters_that_megatron_does_not_know(layout: str) -> None:
    """Blanks, other letters, and repeats that do not come out."""
    with pytest.raises(ValueError, match="must consist of E, t, m, L and"):
        layout_parts(layout)


def test_a_slip_of_the_pen() -> None:
    """A layout of a thousand million layers is refused before it is written out."""
    with pytest.raises(ValueError, match="has more than 100,000 letters"):
        layout_parts("E(t*100000|)*10000L")


@pytest.mark.parametrize("seed", range(20))
def test_shortest_forms_are_read_back(seed: int) -> None:
    """Of random chunks, empty ones and runs of equal ones among them."""
    rng = np.random.default_rng(seed)
    held = tuple(map(tuple, rng.integers(0, 3, (rng.integers(1, 5), rng.integers(1, 7))).tolist()))
    assert layout_layers(layout_of(held), len(held[0])) == held


def test_shortest_forms() -> None:
    """Three and more equal parts are a repeat, two are not; a letter stands alone."""
    assert layout_of(((4, 3, 3), (3, 2, 2), (0, 1, 2))) == "Et*4|(t*3|)*3t*2|t*2||t|t*2L"
    assert layout_of(((5,),)) == "Et*5L"


def unequal(layout: str | None = "Ettt|tt|t|ttL", **changes: object) -> ParallelConfig:
    """Two stages of two chunks."""
    return make_config(
        tp=1,
        pp=2,
        dp=2,
        **{"layers_per_stage": (4, 4), "virtual_pipeline_model_parallel_size": 2} | changes,  # type: ignore[arg-type]
        pipeline_model_parallel_layout=layout,
    )


def test_a_configuration_keeps_unequal_chunks() -> None:
    """In their shortest form, by which configurations are equal; equal chunks need no layout."""
    found = unequal()
    assert found.pipeline_model_parallel_layout == "Et*3|t*2|t|t*2L"
    assert found == unequal("E,t*3|tt|t*1|t*2,L")
    assert found.layers_per_chunk == ((3, 2), (1, 2))
    assert found.label().endswith("vpp2 layout Et*3|t*2|t|t*2L")
    assert not found.counts_embedding
    assert not found.counts_loss
    np.testing.assert_allclose(found.chunk_shares, [[0.75, 0.5], [0.25, 0.5]])
    assert unequal("Ett|tt|tt|ttL") == unequal(None)
    counted = {"layers_per_stage": (3, 4)}
    assert unequal("Et|tt|tt|ttL", **counted) == unequal(None, **counted)
    assert unequal("Ett|tt|t|ttL", **counted) != unequal(None, **counted)


def test_chunks_that_do_not_divide_their_stages() -> None:
    """Stages of five and three layers in two chunks each."""
    found = unequal("Ettt|t|tt|ttL", layers_per_stage=(5, 3))
    assert found.layers_per_chunk == ((3, 1), (2, 2))
    assert found.recomputed_per_chunk == ((0, 0), (0, 0))
    block = replace(found, recompute_granularity="full", recompute_method="block", recompute_num_layers=2)
    assert block.recomputed_per_chunk == ((2, 1), (2, 2))


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("Ettt|tt|tt|ttL", {}, r"has 2 chunks of stages of \(5, 4\) layers, but .* layers_per_stage=\(4, 4\)"),
        ("Etttt|ttttL", {}, "has 1 chunks of stages"),
        ("Ettt|tt|t|tL", {}, r"stages of \(4, 3\) layers"),
        ("Ettt|tt|tm|ttL", {}, "must have all multi-token prediction layers"),
        ("ttt|tt|t|ttL", {}, "must have a single E"),
        (
            "Ettt|tt|t|ttL",
            {"virtual_pipeline_model_parallel_size": None},
            "but virtual_pipeline_model_parallel_size=None",
        ),
    ],
)
def test_layouts_that_contradict(layout: str, changes: dict[str, object], message: str) -> None:
    """The stages, the chunks, or Megatron-Core."""
    with pytest.raises(ValueError, match=message):
        unequal(layout, **changes)


@pytest.mark.skipif(not RECIPES.exists(), reason="needs the recipes in ../shared")
def test_layouts_of_nvidias_recipes() -> None:
    """All of them come out in whole rounds of stages, and those without further heads hold the model's layers."""
    plain = 0
    for job in map(json.loads, RECIPES.read_text().splitlines()):
        layout, pp = job["training"]["pipeline_model_parallel_layout"], job["training"]["pipeline_model_parallel_size"]
        if layout is None:
            continue
        parts, layers = layout_parts(layout), job["model"]["num_layers"]
        assert len(parts) % pp == 0
        assert sum(part.count("t") for part in parts) == layers
        if "m" in layout:
            assert sum(part.count("m") for part in parts) == job["model"]["mtp_num_layers"]
            continue
        held = layout_layers(layout, pp)
        assert sum(map(sum, held)) == layers
        plain += 1
    assert plain > 0
