"""Tests of the names of parallel degrees."""

from dataclasses import fields

from pipette_opt.base.degrees import DEGREES
from pipette_opt.candidates import SearchSpace
from pipette_opt.parallel import ParallelConfig
from tests.factories import make_config


def test_every_degree_is_a_field_of_configurations_and_of_the_search_space() -> None:
    """Names that nothing has would be silently ignored."""
    of_configs = {field.name for field in fields(ParallelConfig)}
    of_spaces = {field.name for field in fields(SearchSpace)}
    for degree in DEGREES:
        assert degree.field in of_configs
        assert degree.option in of_spaces
        assert getattr(make_config(), degree.number) >= 1


def test_no_two_degrees_share_a_name() -> None:
    """A shared name would be read as the wrong degree."""
    names = [name for degree in DEGREES for name in (degree.option.replace("_", "-"), *degree.names, *degree.plain)]
    assert len(names) == len(set(names))
