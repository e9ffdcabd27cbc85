"""Models: presets, Hugging Face, Megatron arguments."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.model import list_models, model_document, read_architecture, read_model
from pipette_opt.specs import ModelSpec

SHARED = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared"))
RECIPES = SHARED / "recipes" / "megatron_args"

EXACT = table(__file__, "EXACT")
"""Sum of the tensors of the published checkpoints."""

PAGES = table(__file__, "PAGES")
"""Billions that the models' pages and papers say, without multi-token prediction."""

PAPER = table(__file__, "PAPER")
"""The "number of parameters" columns of the papers."""


@pytest.mark.parametrize("name", EXACT)
def test_presets_have_the_published_parameters(name: str) -> None:
    """To the last parameter."""
    assert read_model(name).num_parameters == EXACT[name]


@pytest.mark.parametrize("name", PAPER)
def test_presets_agree_with_the_papers(name: str) -> None:
    """To the digits that the tables have."""
    tolerance = 0.03 if name == "megatron-1.7b" else 0.0125
    assert read_model(name).num_parameters == pytest.approx(PAPER[name], rel=tolerance)


@pytest.mark.parametrize("name", PAGES)
def test_presets_agree_with_their_pages(name: str) -> None:
    """To the digits that they have."""
    model = read_model(name)
    assert (model.num_parameters - model.num_mtp_parameters) / 1e9 == pytest.approx(PAGES[name], rel=0.01)


@pytest.mark.parametrize("name", list_models())
def test_every_preset_reads_and_names_its_source(name: str) -> None:
    """Any case; the file's name is the model's."""
    assert read_model(name.upper()).name == name
    from pipette_opt.base.shipped import shipped_path

    assert "source:" in shipped_path("data", "architectures", f"{name}.yaml").read_text()


def test_architecture_files_name_wrong_fields(tmp_path: Path) -> None:
    """A misspelt field of our YAML."""
    path = tmp_path / "mine.yaml"
    path.write_text("num_layer: 3")
    with pytest.raises(InputError, match=r"unknown field 'num_layer'. Did you mean num_layers"):
        read_architecture(path)


@pytest.mark.parametrize("row", table(__file__, "ARGUMENTS"), ids=lambda row: row["shows"])
def test_megatron_arguments(row: dict[str, Any], tmp_path: Path) -> None:
    """Arguments give the model, the launch, and the degrees of layers on GPUs beside them; a model also from a file."""
    launch = parse_megatron_args(row["text"])
    config = launch.parallel_config(row["layers"], row["gpus"]) if "gpus" in row else None
    sides = {"model": launch.model, "launch": launch, "config": config}
    if launch.model is not None:
        (tmp_path / "train.sh").write_text(row["text"])
        given = [tmp_path / "train.sh", *([row["text"]] if row["text"].strip().startswith("--") else [])]
        assert all(replace(read_model(source), name=launch.model.name) == launch.model for source in given)
    for name, expected in row["means"].items():
        side, _, field = name.partition(".")
        found = getattr(sides[side], field)
        if field == "padded_vocab_size":
            assert found(expected[0]) == expected[1]
        else:
            assert json.loads(json.dumps(found)) == expected, name


@pytest.mark.parametrize("row", table(__file__, "REFUSED_DEGREES"), ids=lambda row: row["error"])
def test_refused_degrees(row: dict[str, Any]) -> None:
    """Degrees that do not fit the layers or the GPUs are refused in the words beside them."""
    with pytest.raises(InputError, match=row["error"]):
        parse_megatron_args(row["text"]).parallel_config(row["layers"], row["gpus"])


@pytest.mark.parametrize(("name", "problem"), table(__file__, "NO_MODELS"))
def test_what_names_no_model(name: str, problem: str) -> None:
    """A typing mistake costs nothing, and nothing is downloaded."""
    with pytest.raises(InputError, match=problem):
        read_model(name)


def read_back(model: ModelSpec, folder: Path) -> ModelSpec:
    """Model of the architecture file that is written of a model."""
    file = folder / "model.yaml"
    file.write_text(yaml.safe_dump(model_document(model), sort_keys=False))
    return replace(read_architecture(file), name=model.name)


@pytest.mark.parametrize("name", list_models())
def test_presets_are_read_back_as_they_are(name: str, tmp_path: Path) -> None:
    """An architecture file has everything that a model says."""
    model = read_model(name)
    assert read_back(model, tmp_path) == model


HYBRID = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --group-query-attention --num-query-groups 2 "
    "--seq-length 512 --max-position-embeddings 512 --vocab-size 1024 --normalization RMSNorm "
    "--position-embedding-type none --hybrid-layer-pattern M*-M/*-/*- --disable-bias-linear --mamba-num-heads 8 "
    "--squared-relu"
)
"""A small hybrid with two depths of prediction layers of their own."""


def test_prediction_layers_of_a_hybrid_are_counted(tmp_path: Path) -> None:
    """Both depths count; a depth of repeated layers counts once."""
    model = read_model(HYBRID)
    assert (model.mtp_num_layers, model.mtp_layer_pattern) == (2, "*-")
    assert 0 < model.num_mtp_parameters < model.num_parameters
    repeated = replace(model, mtp_use_repeated_layer=True)
    assert repeated.num_mtp_parameters == model.num_mtp_parameters / 2
    assert read_back(repeated, tmp_path) == repeated


@pytest.mark.skipif(not RECIPES.is_dir(), reason="NVIDIA's recipes are not here")
def test_recipes_are_written_and_read_back_equal(tmp_path: Path) -> None:
    """Models of all recipes but those of DeepSeek V4, whose attention is refused."""
    equal, refused = 0, []
    for file in sorted(RECIPES.glob("*.args")):
        try:
            model = read_model(file)
        except InputError:
            refused.append(file.stem)
            continue
        equal += read_back(model, tmp_path) == model and model.num_mtp_parameters >= 0
    assert (equal, len(refused)) == (227, 2), refused
    assert all(name.startswith("deepseek_v4") for name in refused)


@pytest.mark.parametrize("name", ["Qwen/Qwen3.6-27B", "NewLab/Unheard-7B"])
def test_an_id_of_the_hub_that_is_no_preset(name: str) -> None:
    """The way on is named; a name without an organisation is no id."""
    fetch = f"`hf download {name} config.json --local-dir .`"
    with pytest.raises(InputError) as refused:
        read_model(name)
    assert f"Nothing is downloaded: of a model on the Hugging Face Hub give its config.json ({fetch})." in str(
        refused.value
    )
    with pytest.raises(InputError) as refused:
        read_model(name.partition("/")[2])
    assert "Hub" not in str(refused.value)
