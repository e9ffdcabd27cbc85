"""Arguments of Megatron-LM that are refused, each with one message that names the option and what would be right."""

import pytest
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.model import read_model
from pipette_opt.specs import ModelSpec


def model_of(text: str) -> ModelSpec:
    """Return the model of arguments that are right as a launch."""
    parse_megatron_args(text)
    return read_model(text)


@pytest.mark.parametrize(("text", "named"), table(__file__, "refused"))
def test_refused_arguments(text: str, named: str | list[str]) -> None:
    """Wrong values, options that Megatron refuses together, jobs of another kind, and models that cannot be."""
    with pytest.raises(InputError) as refused:
        model_of(text)
    for part in [named] if isinstance(named, str) else named:
        assert part in str(refused.value)
