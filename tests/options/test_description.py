"""The declarations of a job: one for each field, from which options, keywords, files and pages come."""

import json
from pathlib import Path
from typing import get_args

import jsonschema
import pytest

from benchmarks import options_page as reference
from pipette_opt.base import types
from pipette_opt.base.shipped import shipped_path
from pipette_opt.candidates import SearchSpace
from pipette_opt.options.description import JobOptions, Measured, SearchOptions, SpaceOptions, field_of, fields_of
from pipette_opt.specs.objective import Objective
from pipette_opt.specs.precision import FP8_RECIPES
from pipette_opt.specs.training import DISPATCHER_WORDS


def test_every_field_is_declared_with_help() -> None:
    """No field of the classes is without an option, and no help is empty."""
    for described in (JobOptions, SpaceOptions, SearchOptions, Measured):
        assert set(fields_of(described)) == set(described.__dataclass_fields__)
        assert all(field.option.help for field in fields_of(described).values())


def test_words_are_those_that_the_product_knows() -> None:
    """The declaration repeats no list that has changed elsewhere."""
    assert set(field_of("fp8_recipe").option.words) == set(FP8_RECIPES)
    assert set(field_of("moe_token_dispatcher").option.words) == set(DISPATCHER_WORDS)
    assert field_of("p2p").option.words == get_args(types.P2PMode)
    assert set(field_of("allreduce").option.words) == set(get_args(types.Collective))
    assert {*field_of("launcher").option.words, "replicas-first"} == set(get_args(types.Launcher))
    assert set(field_of("precision").option.words) == set(get_args(types.Precision))
    assert set(field_of("objective").option.words) == set(Objective)
    assert set(field_of("prefer").option.words) == set(get_args(types.Prefer))


def test_a_search_space_has_the_declared_fields() -> None:
    """What people may pin is a field of the space under the same name."""
    assert set(fields_of(SpaceOptions)) <= set(SearchSpace.__dataclass_fields__)
    with pytest.raises(KeyError):
        field_of("no_such_field")


def test_page_and_schema_are_fresh() -> None:
    """``python -m benchmarks.options_page`` was run after the last change."""
    page = Path(__file__).parents[2] / "docs" / "job.md"
    schema = shipped_path("data", "schemas", "job.schema.json")
    assert page.read_text(encoding="utf-8") == reference.page()
    assert json.loads(schema.read_text(encoding="utf-8")) == reference.schema()


def test_schema_takes_and_refuses() -> None:
    """The example of the page is valid; a wrong word and an unknown key are not."""
    job = {"model": "llama-3-8b", "cluster": "cluster.yaml", "training": {"gbs": 64, "precision": "bf16"}}
    jsonschema.validate(job, reference.schema())
    for wrong in ({"modle": "x"}, {"training": {"precision": "int4"}}, {"parallel": {"tp": 0}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, reference.schema())
